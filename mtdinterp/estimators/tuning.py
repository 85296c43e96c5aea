"""Choose the learning rate of mirror descent for a task and a length: a wide grid, then refinement.

What "best" means is an argument, because the paper says both: the text tunes against the truth, its
appendix against the posterior mean. An optimum on the edge of the grid is an error, never an
answer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import check_count, check_number, check_option, check_order
from mtdinterp.estimators.bayes import exact_posterior_mean
from mtdinterp.estimators.likelihood import lag_likelihoods
from mtdinterp.estimators.mirror import beta_from_learning_rate, descend, learning_rate_from_beta
from mtdinterp.metrics import kl_divergence
from mtdinterp.task import MTDTask, Sample, predict_next

TARGETS = ("truth", "posterior_mean")
BETA_GRID = tuple(np.geomspace(0.1, 2000, 45))
"""The default grid in units of β = η·m·(T-m), where optima were 11 to 52 for T = 64 to 256."""


@dataclass(frozen=True)
class TunedRate:
    """The best learning rate, the same as β, and the mean KL(target ‖ prediction) it reaches."""

    learning_rate: float
    beta: float
    kl: float
    steps: int
    target: str


def tune_learning_rate(
    task: MTDTask,
    length: int,
    steps: int = 1,
    target: str = "truth",
    seed: int = 0,
    n_sequences: int = 5000,
    grid: Sequence[float] | None = None,
) -> TunedRate:
    """The learning rate of `steps`-step mirror descent that minimises the mean KL to the target."""
    check_order(task.order, length)
    data = task.sample(check_count("n_sequences", n_sequences), length, seed)
    rates = (
        grid
        if grid is not None
        else [learning_rate_from_beta(b, task.order, length) for b in BETA_GRID]
    )
    objective = _objective(task, data, check_count("steps", steps), target)
    best, kl = minimise_on_grid(objective, rates, "learning_rate")
    return TunedRate(best, beta_from_learning_rate(best, task.order, length), kl, steps, target)


def _target_predictions(task: MTDTask, data: Sample, target: str) -> Float64[Tensor, "batch vocab"]:
    """The predictions that `target` names: the truth, or the Bayes-optimal ones."""
    if check_option("target", target, TARGETS) == "truth":
        return data.next_probs
    weights = exact_posterior_mean(task.transition, data.tokens, task.order, task.concentration)
    return predict_next(task.transition, data.tokens, weights)


def _objective(task: MTDTask, data: Sample, steps: int, target: str) -> Callable[[float], float]:
    wanted = _target_predictions(task, data, target)
    likelihoods = lag_likelihoods(task.transition, data.tokens, task.order)

    def mean_kl(learning_rate: float) -> float:
        weights = descend(likelihoods, learning_rate, steps)
        return (
            kl_divergence(wanted, predict_next(task.transition, data.tokens, weights)).mean().item()
        )

    return mean_kl


def minimise_on_grid(
    objective: Callable[[float], float],
    grid: Sequence[float],
    name: str,
    relative_tolerance: float = 1e-4,
    edges: bool = False,
) -> tuple[float, float]:
    """The minimiser of a function of one positive number: best of the grid, then golden section.

    With `edges` an optimum at an end of the grid is an answer: for fits to models that may be far
    from everything.
    """
    points = sorted(check_number(name, value, minimum=0, exclusive=True) for value in grid)
    if len(points) < 3:
        raise ValueError(f"{name}: expected a grid of at least 3 values, got {len(points)}")
    values = [objective(point) for point in points]
    best = int(np.argmin(values))
    if edges and best in (0, len(points) - 1):
        return points[best], values[best]
    if min(values) == max(values):
        raise ValueError(
            f"{name}: the objective does not depend on it, so there is nothing to tune"
        )
    if best in (0, len(points) - 1):
        raise ValueError(
            f"{name}: the optimum {points[best]:.4g} lies on the edge of the grid "
            f"[{points[0]:.4g}, {points[-1]:.4g}]; search a wider one"
        )
    return _golden_section(objective, points[best - 1], points[best + 1], relative_tolerance)


def _golden_section(
    objective: Callable[[float], float], low: float, high: float, relative_tolerance: float
) -> tuple[float, float]:
    """Golden-section search in the logarithm."""
    ratio = (np.sqrt(5) - 1) / 2
    a, b = np.log(low), np.log(high)
    left, right = b - ratio * (b - a), a + ratio * (b - a)
    f_left, f_right = objective(float(np.exp(left))), objective(float(np.exp(right)))
    while b - a > relative_tolerance:
        if f_left <= f_right:
            b, right, f_right = right, left, f_left
            left = b - ratio * (b - a)
            f_left = objective(float(np.exp(left)))
        else:
            a, left, f_left = left, right, f_right
            right = a + ratio * (b - a)
            f_right = objective(float(np.exp(right)))
    return (float(np.exp(left)), f_left) if f_left <= f_right else (float(np.exp(right)), f_right)
