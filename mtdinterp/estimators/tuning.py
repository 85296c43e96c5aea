"""Minimise a function of one positive number: a wide grid, then golden section.

An optimum on the edge of the grid means that the grid was too narrow. Tuning then raises an error
(`AtEdge.REFUSE`). Fits to a model, which may be far from every estimator, accept the edge and mark
it (`AtEdge.ACCEPT`). An optimum that the data do not determine is flat, on the edge or not: that is
an answer, with an interval (`optimum`).
"""

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from mtdinterp.checks import check_number
from mtdinterp.errors import NothingToTune, OptimumAtEdge
from mtdinterp.estimators.optimum import Optimum, PairedObjective, PerSequence, optimum_at


class AtEdge(Enum):
    """What to do if the optimum lies on the edge of the grid and is not flat."""

    REFUSE = "refuse"
    ACCEPT = "accept"


def find_optimum(
    per_sequence: PerSequence,
    grid: Sequence[float] | np.ndarray,
    name: str,
    relative_tolerance: float = 1e-4,
    at_edge: AtEdge = AtEdge.REFUSE,
) -> Optimum:
    """The minimiser of a mean over sequences, with the interval of one standard error around it.

    Args:
        per_sequence: the function, which gives one value per sequence.
        grid: positive values to try first, at least three. They are the searched range.
        name: the number's name, for error messages.
        relative_tolerance: accuracy of the minimiser.
        at_edge: whether a clear optimum at an end of the grid is an answer.

    Returns:
        The optimum, which may be flat.

    Raises:
        NothingToTune: if the function is constant on the grid and `at_edge` refuses that.
        OptimumAtEdge: if the optimum is clearly at an end of the grid and `at_edge` refuses that.
    """
    objective = PairedObjective(per_sequence)
    best, _ = minimise_on_grid(objective.mean, grid, name, relative_tolerance)
    if at_edge is AtEdge.REFUSE:
        _check_dependence(objective, name)
    found = optimum_at(best, objective)
    if at_edge is AtEdge.REFUSE and found.at_edge and not found.flat:
        low, high = found.searched
        raise OptimumAtEdge(
            f"{name}: the optimum {best:.4g} lies on the edge of the grid [{low:.4g}, {high:.4g}]; "
            "search a wider one"
        )
    return found


def _check_dependence(objective: PairedObjective, name: str) -> None:
    """Refuse an objective that has one value everywhere."""
    means = {objective.mean(value) for value in objective.evaluated}
    if len(means) == 1:
        raise NothingToTune(
            f"{name}: the objective does not depend on it, so there is nothing to tune"
        )


def minimise_on_grid(
    objective: Callable[[float], float],
    grid: Sequence[float] | np.ndarray,
    name: str,
    relative_tolerance: float = 1e-4,
) -> tuple[float, float]:
    """The minimiser of a function of one positive number.

    Args:
        objective: the function.
        grid: positive values to try first, at least three.
        name: the number's name, for error messages.
        relative_tolerance: accuracy of the minimiser.

    Returns:
        The minimiser, which may be an end of the grid, and the minimum.
    """
    points = sorted(check_number(name, value, minimum=0, exclusive=True) for value in grid)
    if len(points) < 3:
        raise ValueError(f"{name}: expected a grid of at least 3 values, got {len(points)}")
    values = [objective(point) for point in points]
    best = int(np.argmin(values))
    if best in (0, len(points) - 1):
        return points[best], values[best]
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
    if f_left <= f_right:
        return float(np.exp(left)), f_left
    return float(np.exp(right)), f_right
