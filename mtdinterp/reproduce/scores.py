"""KL to the truth of estimators and models on the same sequences, with standard errors that use
that they are the same.

Values are kept by sequence: the ratio of two methods is far better known than either of them, since
what makes a sequence hard is common to both.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.construction import one_step
from mtdinterp.estimators import (
    TunedRate,
    exact_posterior_mean,
    learning_rate_from_beta,
    mirror_descent,
    tune_learning_rate,
)
from mtdinterp.fitting import Evidence
from mtdinterp.metrics import Estimate, divergences, kl_divergence, paired_ratio
from mtdinterp.models import LensTransformer
from mtdinterp.readout import predictions
from mtdinterp.task import MTDTask, Sample

BAYES_SEQUENCES = {
    (4, 256): 1024,
    (4, 512): 512,
    (5, 64): 2048,
    (5, 128): 512,
    (5, 256): 160,
    (5, 512): 0,
}
"""By order and length, how many sequences the exact posterior mean is computed on where all would
take minutes."""
FIGURE_TOLERANCE = 1e-4
"""Of its weights: KL is of second order in them, so this is invisible in it."""


TUNING_BETAS = tuple(np.geomspace(1, 300, 16))
"""Where β is looked for first; narrower than the library's own grid, whose ends no task here comes
near."""
TUNING_TOKENS = 2**19
"""Tokens to tune a learning rate on: its optimum is flat, and long sequences tell more each."""


@dataclass(frozen=True, eq=False)
class Scores:
    """KL(truth ‖ prediction) by method and sequence; a method may have the first sequences only."""

    values: Mapping[str, Float64[Tensor, " some"]]
    base: str = "one_step"
    """The method that ratios are to; it has all sequences."""

    def kl(self, method: str) -> Estimate:
        """The mean; from some sequences, by the ratio there to what the base has on all."""
        values, base = self.values[method], self.values[self.base]
        if len(values) == len(base):
            return Estimate(values.mean().item(), _stderr(values))
        ratio, level = self.ratio(method), base.mean().item()
        return Estimate(
            ratio.value * level,
            (ratio.stderr**2 * level**2 + ratio.value**2 * _stderr(base) ** 2) ** 0.5,
        )

    def ratio(self, method: str, to: str | None = None) -> Estimate:
        """Mean over mean on the sequences that both have, with the error of a ratio of paired
        means."""
        above, below = self.values[method], self.values[to or self.base]
        some = min(len(above), len(below))
        return paired_ratio(above[:some], below[:some])

    def rows(self, **where: Any) -> list[dict[str, Any]]:
        """A row of the table for every method."""
        rows = []
        for method in self.values:
            kl, ratio = self.kl(method), self.ratio(method)
            rows.append(
                {
                    **where,
                    "method": method,
                    "kl": kl.value,
                    "kl_stderr": kl.stderr,
                    "over_one_step": ratio.value,
                    "over_one_step_stderr": ratio.stderr,
                    "sequences": len(self.values[method]),
                }
            )
        return rows


def _stderr(values: Float64[Tensor, " some"]) -> float:
    return values.std().item() / len(values) ** 0.5


def weights_kl(
    evidence: Evidence, data: Sample, weights: Float64[Tensor, "some lag"]
) -> Float64[Tensor, " some"]:
    """KL(truth ‖ prediction) with these weights, on as many of the first sequences as there are
    weights."""
    some = len(weights)
    mixed = torch.einsum("bg,bgv->bv", weights, evidence.rows[:some])
    return kl_divergence(data.next_probs[:some], mixed)


def model_kl(model: LensTransformer, data: Sample) -> Float64[Tensor, " batch"]:
    """The same for a model, whose output is clipped to a distribution first."""
    return divergences(data.next_probs, predictions(model, data.tokens))


def tuned_rate(task: MTDTask, length: int, steps: int = 1, seed: int = 0) -> TunedRate:
    """The rate of mirror descent that is best against the truth, on other sequences than those that
    are scored."""
    grid = [learning_rate_from_beta(beta, task.order, length) for beta in TUNING_BETAS]
    return tune_learning_rate(
        task, length, steps=steps, seed=seed, n_sequences=tuning_sequences(length), grid=grid
    )


def tuning_sequences(length: int) -> int:
    return min(5000, max(1000, TUNING_TOKENS // length))


def usual_scores(
    task: MTDTask, data: Sample, steps: tuple[int, ...] = (1,)
) -> dict[str, Float64[Tensor, " some"]]:
    """Tuned mirror descent of so many steps, the one-step construction as a transformer, and the
    exact posterior mean.

    Rates are tuned against the truth on other sequences. The posterior mean is left out where its
    rule is too large.
    """
    evidence, length = Evidence(task, data.tokens), data.tokens.shape[1]
    problem, values = (task.transition, data.tokens, task.order), {}
    for count in steps:
        rate = tuned_rate(task, length, count)
        if count == 1:
            built = one_step(task.transition, task.order, length, rate.beta)
            values["construction"] = model_kl(built, data)
        name = "one_step" if count == 1 else f"mirror_descent_{count}"
        values[name] = weights_kl(
            evidence, data, mirror_descent(*problem, rate.learning_rate, steps=count)
        )
    some = min(BAYES_SEQUENCES.get((task.order, length), len(data.tokens)), len(data.tokens))
    if some:
        weights = exact_posterior_mean(
            task.transition, data.tokens[:some], task.order, task.concentration, FIGURE_TOLERANCE
        )
        values["exact_bayes"] = weights_kl(evidence, data, weights)
    return values
