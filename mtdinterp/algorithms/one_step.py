"""One step of mirror descent from uniform weights, in closed form (paper, eq. md_one_step_mtd).

γ -> Γ = mean of γ -> w = softmax(β·Γ). A negative β is a step against the likelihood.
"""

from collections.abc import Mapping
from dataclasses import replace

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.algorithms.base import Algorithm, Values, Variable
from mtdinterp.estimators.base import Constants, Fit
from mtdinterp.estimators.mirror_descent import (
    BETA,
    BETA_POINTS,
    learning_rate_of,
    tune_learning_rate,
)
from mtdinterp.evidence import Evidence, mean_over_steps
from mtdinterp.plugins import register_algorithm
from mtdinterp.style import Style
from mtdinterp.tasks.base import Task

RESPONSIBILITIES = Variable(
    "responsibilities",
    "γ",
    lambda evidence, values, constants: evidence.responsibilities(),
    per_step=True,
    as_attention=True,
)


def _mean(
    evidence: Evidence, values: Values, constants: Mapping[str, float | Tensor]
) -> Float64[Tensor, "batch component"]:
    gamma = values["responsibilities"]
    if gamma is evidence.responsibilities():
        # Not replaced by an interchange, so the cached mean can be used; fits need it often.
        return evidence.mean_responsibilities
    return mean_over_steps(gamma)


MEAN_RESPONSIBILITIES = Variable("mean_responsibilities", "Γ", _mean)


def one_step_weights(
    mean_responsibilities: Float64[Tensor, "batch component"], beta: float | Tensor
) -> Float64[Tensor, "batch component"]:
    """softmax(β·Γ)."""
    return (beta * mean_responsibilities).softmax(-1)


@register_algorithm
class OneStep(Algorithm):
    """One mirror-descent step from uniform weights: w = softmax(β·Γ)."""

    name, label = "one_step", "one step of mirror descent"
    constants = (replace(BETA, signed=True),)
    rank = 10
    style = Style("#1d4ed8", "^", "--")
    grid_points = BETA_POINTS
    tolerance = 1e-4
    variables = (
        RESPONSIBILITIES,
        MEAN_RESPONSIBILITIES,
        Variable(
            "weights",
            "w",
            lambda evidence, values, constants: one_step_weights(
                values["mean_responsibilities"], constants["beta"]
            ),
            as_attention=True,
        ),
    )

    def derived(self, evidence: Evidence, constants: Constants) -> Constants:
        return learning_rate_of(evidence, constants)

    def tune(
        self, task: Task, length: int, target: str = "truth", seed: int = 0, n_sequences: int = 5000
    ) -> Fit:
        """The β of `tune_learning_rate`, so that a task has one tuned β.

        Args:
            task: where sequences come from.
            length: tokens per sequence.
            target: "truth" or "posterior_mean".
            seed: seed for drawing the sequences.
            n_sequences: number of sequences to draw.

        Returns:
            The fit, with the mean KL(target ‖ one step) it reaches and the interval of β.
        """
        tuned = tune_learning_rate(task, length, target=target, seed=seed, n_sequences=n_sequences)
        return Fit(
            {"beta": tuned.beta},
            tuned.kl,
            intervals={"beta": tuned.interval},
            flat=("beta",) if tuned.flat else (),
        )

    def default_constants(self, evidence: Evidence) -> Constants:
        return {"beta": 10.0}
