"""Constant weights: one weight vector for all sequences, so that nothing is inferred in context.

A model that has learned the mean of the prior, or a fixed lag, predicts like this.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.estimators.base import Constant, Estimator, Fit
from mtdinterp.evidence import SMALLEST_WEIGHT, Evidence, mix_rows
from mtdinterp.metrics import to_distribution
from mtdinterp.plugins import register_estimator

MOST_UPDATES = 2000
TOLERANCE = 1e-9
"""Largest change of a weight in the last update."""


@register_estimator
class ConstantWeights(Estimator):
    """The same weights for every sequence; one constant per component but the first."""

    name, label = "constant_weights", "constant weights"
    in_context = False
    rank = 5

    def constants_for(self, evidence: Evidence) -> tuple[Constant, ...]:
        numbers = range(2, evidence.n_components + 1)
        return tuple(Constant(f"weight_{g}", f"w{g}", 0.0, 1.0, log=False) for g in numbers)

    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        others = [constants[constant.name] for constant in self.constants_for(evidence)]
        row = torch.tensor([1 - sum(others), *others], dtype=torch.float64)
        return row.expand(len(evidence), -1)

    def fit(self, evidence: Evidence, predictions: Float64[Tensor, "batch vocab"]) -> Fit:
        """The weights that minimise the mean KL(predictions ‖ Σ_g w_g·rows[g]), by EM.

        The problem is that of maximum likelihood with the predictions as observed frequencies, so
        w_g ← w_g · mean over sequences of Σ_v predictions[v]·rows[g, v] / Σ_h w_h·rows[h, v].
        """
        given = to_distribution(predictions)
        weights = evidence.uniform[0]
        for _ in range(MOST_UPDATES):
            mixed = mix_rows(evidence.rows, weights.expand(len(evidence), -1))
            ratio = given / mixed.clamp_min(SMALLEST_WEIGHT)
            updated = weights * torch.einsum("bgv,bv->bg", evidence.rows, ratio).mean(0)
            change = (updated - weights).abs().max().item()
            weights = updated / updated.sum()
            if change < TOLERANCE:
                break
        names = [constant.name for constant in self.constants_for(evidence)]
        constants = dict(zip(names, weights[1:].tolist(), strict=True))
        reached = evidence.divergence(predictions, self.weights(evidence, **constants))
        return Fit(constants, reached.mean().item())
