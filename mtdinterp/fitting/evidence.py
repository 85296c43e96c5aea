"""Sequences as the estimators see them, and how far weights on them are from given predictions."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.estimators import lag_likelihoods
from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.task import MTDTask


@dataclass(frozen=True, eq=False)
class Evidence:
    """Sequences as the estimators see them."""

    task: MTDTask
    tokens: Int[Tensor, "batch pos"]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def likelihoods(self) -> Float64[Tensor, "batch step lag"]:
        return lag_likelihoods(self.task.transition, self.tokens, self.task.order)

    @cached_property
    def responsibilities(self) -> Float64[Tensor, "batch step lag"]:
        """γ at positions m..T-1."""
        return self.likelihoods / self.likelihoods.sum(-1, keepdim=True)

    @cached_property
    def mean_responsibilities(self) -> Float64[Tensor, "batch lag"]:
        """Γ."""
        return self.responsibilities.mean(1)

    @cached_property
    def rows(self) -> Float64[Tensor, "batch lag vocab"]:
        """π[y_{T-g}] for every lag g."""
        return self.task.transition[self.tokens[:, -self.task.order :].flip(-1)]

    def predict(self, weights: Float64[Tensor, "batch lag"]) -> Float64[Tensor, "batch vocab"]:
        return torch.einsum("bg,bgv->bv", weights, self.rows)

    def divergence(
        self, given: Float64[Tensor, "batch vocab"], weights: Float64[Tensor, "batch lag"]
    ) -> Float64[Tensor, " batch"]:
        """KL(given ‖ prediction with these weights), both clipped alike: no estimator is infinitely
        wrong."""
        return kl_divergence(
            clip_to_distribution(given)[0], clip_to_distribution(self.predict(weights))[0]
        )


EXPLAINED = 0.5
"""An estimator that explains less than this share of the predictions is not the model's."""


def explained(
    evidence: Evidence, given: Float64[Tensor, "batch vocab"], weights: Float64[Tensor, "batch lag"]
) -> float:
    """1 - KL(given ‖ prediction with these weights) / KL(given ‖ the token marginal): 0 is no
    better than that."""
    marginal = clip_to_distribution(evidence.task.stationary)[0].expand_as(given)
    nothing = kl_divergence(clip_to_distribution(given)[0], marginal).mean().item()
    return 1 - evidence.divergence(given, weights).mean().item() / nothing if nothing > 0 else 0.0
