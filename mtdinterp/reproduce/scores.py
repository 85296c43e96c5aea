"""KL to the truth of estimators and models on the same sequences, with paired standard errors.

Values are kept per sequence. Some sequences are hard for every method, so the ratio of two methods
is known far more precisely than the KL of either.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.algorithms.one_step import one_step_weights
from mtdinterp.construction import one_step
from mtdinterp.estimators import TunedRate, learning_rate_from_beta, tune_learning_rate
from mtdinterp.estimators.exact_bayes import posterior_mean_of
from mtdinterp.estimators.mirror_descent import descend
from mtdinterp.evidence import Evidence
from mtdinterp.metrics import Estimate, divergences, kl_divergence, mean_stderr, paired_ratio
from mtdinterp.models import LensTransformer
from mtdinterp.readings import predictions_of
from mtdinterp.tasks import MTDTask, Sample, Task

FIGURE_TOLERANCE = 1e-4
"""Accuracy of the posterior mean's weights. The KL is of second order in their error, so the error
is invisible in it."""
TUNING_BETAS = tuple(np.geomspace(1, 300, 16))
"""The first grid for β; narrower than the library's own, because no optimum here is near its
ends."""
TUNING_TOKENS = 2**19
"""Tokens to tune a learning rate on. Few are enough: the optimum is flat, and long sequences tell
more about it than short ones."""

SCORED_SEQUENCES = 4096
"""Methods are scored on this many sequences of every length."""

Values = dict[str, Float64[Tensor, " batch"]]
"""KL(truth ‖ prediction) per sequence, by method."""


@dataclass(frozen=True, eq=False)
class Scores:
    """KL(truth ‖ prediction) by method and sequence; all methods have the same sequences."""

    values: Mapping[str, Float64[Tensor, " batch"]]
    base: str = "one_step"
    """The method that ratios refer to."""

    def kl(self, method: str) -> Estimate:
        """The mean KL over sequences."""
        values = self.values[method]
        return Estimate(values.mean().item(), mean_stderr(values))

    def ratio(self, method: str, to: str | None = None) -> Estimate:
        """Mean KL over mean KL of another method.

        Args:
            method: the numerator.
            to: the denominator; the base if None.

        Returns:
            The ratio with the standard error of a ratio of paired means.
        """
        below = self.values[self.base if to is None else to]
        return paired_ratio(self.values[method], below)

    def rows(self, **where: Any) -> list[dict[str, Any]]:
        """One row per method; `where` gives the columns that all rows share."""
        rows = []
        for method, values in self.values.items():
            kl = self.kl(method)
            ratio = self.ratio(method)
            row = {
                **where,
                "method": method,
                "kl": kl.value,
                "kl_stderr": kl.stderr,
                "over_one_step": ratio.value,
                "over_one_step_stderr": ratio.stderr,
                "sequences": len(values),
            }
            rows.append(row)
        return rows


def weights_kl(
    evidence: Evidence, data: Sample, weights: Float64[Tensor, "batch component"]
) -> Float64[Tensor, " batch"]:
    """KL(truth ‖ prediction with these weights) of every sequence.

    Args:
        evidence: the evidence of the sequences.
        data: the sampled sequences themselves.
        weights: weights for every sequence.

    Returns:
        One KL per sequence.
    """
    return kl_divergence(data.next_probs, evidence.predict(weights))


def model_kl(model: LensTransformer, data: Sample) -> Float64[Tensor, " batch"]:
    """The same for a model, whose output is clipped to a distribution first."""
    return divergences(data.next_probs, predictions_of(model, data.tokens))


def tuned_rate(task: Task, length: int, steps: int = 1, seed: int = 0) -> TunedRate:
    """The learning rate of mirror descent with the smallest KL to the truth.

    Args:
        task: the task to draw sequences from.
        length: tokens per sequence.
        steps: mirror-descent steps.
        seed: seed for drawing the sequences, which are not the held-out ones.

    Returns:
        The tuned rate.
    """
    grid = [learning_rate_from_beta(beta, task.n_components, length) for beta in TUNING_BETAS]
    count = tuning_sequences(length)
    return tune_learning_rate(task, length, steps=steps, seed=seed, n_sequences=count, grid=grid)


def tuning_sequences(length: int) -> int:
    """How many sequences of a length constants are tuned on."""
    return min(5000, max(1000, TUNING_TOKENS // length))


def say_sequences(rows: Iterable[Mapping[str, Any]]) -> str:
    """A sentence about how many sequences the means in a table's rows are taken over."""
    lengths: dict[int, list[int]] = {}
    for row in rows:
        of_count = lengths.setdefault(row["sequences"], [])
        if row["length"] not in of_count:
            of_count.append(row["length"])
    parts = []
    for count, some in lengths.items():
        parts.append(f"{count:,} sequences (T = {', '.join(map(str, some))})")
    return f"All methods are scored on the same sequences: {', '.join(parts)}."


def mirror_descent_name(steps: int) -> str:
    """The registered name of mirror descent with `steps` steps."""
    return "one_step" if steps == 1 else f"mirror_descent_{steps}"


def paper_scores(task: MTDTask, data: Sample, steps: Sequence[int] = (1,)) -> Values:
    """The methods that the paper compares trained models with.

    These are tuned mirror descent, the one-step construction as a transformer, and the exact
    posterior mean. Rates are tuned against the truth on other sequences.

    Args:
        task: the task.
        data: the sequences to score on.
        steps: the numbers of mirror-descent steps; they include 1.

    Returns:
        KL per sequence, by method.
    """
    evidence = task.evidence(data.tokens)
    length = data.tokens.shape[1]
    values: Values = {}
    for count in steps:
        rate = tuned_rate(task, length, count)
        if count == 1:
            built = one_step(task.transition, task.order, length, rate.beta)
            values["construction"] = model_kl(built, data)
            weights = one_step_weights(evidence.mean_responsibilities, rate.beta)
        else:
            weights = descend(evidence.likelihoods, rate.learning_rate, count)
        values[mirror_descent_name(count)] = weights_kl(evidence, data, weights)
    weights = posterior_mean_of(evidence, FIGURE_TOLERANCE)
    values["exact_bayes"] = weights_kl(evidence, data, weights)
    return values
