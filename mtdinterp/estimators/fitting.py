"""Constants of an estimator, and the search for the values that fit best.

A single constant is searched on a grid and then refined, and gets an interval (`optimum`). Several
constants are searched by descent; `algorithms.precision` says how well they are determined.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64
from scipy.optimize import minimize
from torch import Tensor

from mtdinterp.estimators.optimum import Interval
from mtdinterp.estimators.tuning import AtEdge, find_optimum

Constants = dict[str, float]
PerSequence = Callable[[Constants], Float64[Tensor, " sequence"]]
"""The divergence of every sequence as a function of named constants."""

SMALLEST_DIVERGENCE = 1e-12
"""A mean divergence so small that no fit needs to improve it."""

DIFFERENCE = 1e-6
"""Share of its range by which a constant is moved to find a slope: large enough to be visible to an
estimator that computes in float32.
"""


@dataclass(frozen=True)
class Constant:
    """A number that an estimator depends on, and the range in which it is searched."""

    name: str
    symbol: str
    """How formulas and tables write it."""
    low: float
    high: float
    log: bool = True
    """Whether the search is uniform in the logarithm."""
    signed: bool = False
    """Whether negative values of the same sizes are tried too."""

    def grid(self, n_points: int) -> np.ndarray:
        """Values that cover the range, in increasing order."""
        space = np.geomspace if self.log else np.linspace
        return space(self.low, self.high, n_points)


@dataclass(frozen=True)
class Fit:
    """Constants that were fitted, and how well they do."""

    constants: Constants
    divergence: float
    """Mean KL(target ‖ estimator) at these constants."""
    at_bound: tuple[str, ...] = ()
    """Constants that ended on a bound of their range: the data do not determine them."""
    intervals: dict[str, Interval] = field(default_factory=dict)
    """Values within one standard error of the optimum (see `optimum`). Known for an estimator with
    a single constant, if that is positive."""
    flat: tuple[str, ...] = ()
    """Constants whose optimum is flat: any value of the interval fits as well."""

    def constant_text(self, constant: Constant) -> str:
        """A constant with its interval if it is known, or that its optimum is flat.

        Args:
            constant: one of the fitted constants.

        Returns:
            The text, such as "β = 16.13 (15.92 to 16.35)".
        """
        value = self.constants[constant.name]
        interval = self.intervals.get(constant.name)
        if interval is None:
            bound = " (at the bound of its range)" if constant.name in self.at_bound else ""
            return f"{constant.symbol} = {value:.4g}{bound}"
        if constant.name in self.flat:
            return f"{constant.symbol} = {value:.3g}, {interval.text(constant.symbol, value, True)}"
        return f"{constant.symbol} = {interval.text(constant.symbol, value, False)}"


def minimise_constants(
    per_sequence: PerSequence,
    constants: tuple[Constant, ...],
    grid_points: int,
    tolerance: float,
) -> Fit:
    """Minimise the mean over sequences on the box of the constants' ranges.

    Args:
        per_sequence: divergence of every sequence as a function of named constants.
        constants: the constants to search over.
        grid_points: for a single constant, the size of the starting grid.
        tolerance: for a single constant, its relative accuracy.

    Returns:
        The best constants found; those at a bound of their range are marked.
    """
    if not constants:
        return Fit({}, per_sequence({}).mean().item())
    if len(constants) == 1:
        return _minimise_one(per_sequence, constants[0], grid_points, tolerance)
    return _minimise_several(per_sequence, constants)


def _minimise_one(
    per_sequence: PerSequence, constant: Constant, grid_points: int, tolerance: float
) -> Fit:
    grid = constant.grid(grid_points)

    def at(value: float) -> Float64[Tensor, " sequence"]:
        return per_sequence({constant.name: value})

    found = find_optimum(at, grid, constant.name, tolerance, AtEdge.ACCEPT)
    if constant.signed and found.best <= grid[0]:
        # Close to zero: the constant may be negative, or zero.
        mirrored = find_optimum(
            lambda size: at(-size), grid, constant.name, tolerance, AtEdge.ACCEPT
        )
        is_negative = mirrored.divergence < found.divergence and mirrored.best > grid[0]
        best = -mirrored.best if is_negative else 0.0
        at_bound = (constant.name,) if best == -constant.high else ()
        return Fit({constant.name: best}, at(best).mean().item(), at_bound)
    bounds = (constant.high,) if constant.signed else (constant.low, constant.high)
    return Fit(
        {constant.name: found.best},
        found.divergence,
        at_bound=(constant.name,) if found.best in bounds else (),
        intervals={constant.name: found.interval},
        flat=(constant.name,) if found.flat else (),
    )


def _minimise_several(per_sequence: PerSequence, constants: tuple[Constant, ...]) -> Fit:
    """L-BFGS-B from a few starts, in coordinates that map every range to [0, 1]."""

    def named(position: np.ndarray) -> Constants:
        return {
            constant.name: _at_fraction(constant, fraction)
            for constant, fraction in zip(constants, position, strict=True)
        }

    def value(position: np.ndarray) -> float:
        return per_sequence(named(position)).mean().item()

    box = [(0.0, 1.0)] * len(constants)
    starts = [np.full(len(constants), fraction) for fraction in (0.25, 0.5, 0.75)]
    found = [_descend_from(start, value, box) for start in starts]
    # Tolerances are relative to the value at the start, so a second run from the best point is
    # more precise by the factor that the first run gained.
    best = _descend_from(min(found, key=value), value, box)
    at_bound = tuple(
        constant.name
        for constant, fraction in zip(constants, best, strict=True)
        if fraction in (0.0, 1.0)
    )
    return Fit(named(best), value(best), at_bound)


def _descend_from(
    start: np.ndarray, value: Callable[[np.ndarray], float], box: list[tuple[float, float]]
) -> np.ndarray:
    """Where L-BFGS-B ends, with tolerances relative to the value at the start."""
    size = max(value(start), SMALLEST_DIVERGENCE)
    result = minimize(
        lambda position: value(position) / size,
        start,
        method="L-BFGS-B",
        bounds=box,
        options={"ftol": 1e-10, "gtol": 1e-7, "eps": DIFFERENCE},
    )
    return result.x


def _at_fraction(constant: Constant, fraction: float) -> float:
    """The value a fraction of the way through a constant's range."""
    if constant.log:
        return float(constant.low * (constant.high / constant.low) ** fraction)
    return float(constant.low + (constant.high - constant.low) * fraction)
