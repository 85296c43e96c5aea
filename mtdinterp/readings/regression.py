"""Slopes through the origin, with standard errors that are clustered by sequence."""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Slope:
    """A least-squares slope with its standard error and the share of variance it explains."""

    value: float
    stderr: float
    r2: float


NO_SLOPE = Slope(math.nan, math.nan, math.nan)
"""The slope if there is nothing to regress."""


def centred(values: Float[Tensor, "*batch component"]) -> Float[Tensor, "*batch component"]:
    """Subtract the mean over the last axis, to which a softmax is invariant."""
    return values - values.mean(-1, keepdim=True)


def varying(values: Float[Tensor, "batch component"]) -> Float[Tensor, "batch component"]:
    """Subtract the means over components and over sequences, leaving what varies by sequence.

    A constant per component says nothing about a sequence, and the last layer's static scores undo
    it. Counted as unexplained variance, it would hide a clear mechanism: R² 0.6 instead of 0.97
    with the same slope.
    """
    return centred(values - values.mean(0))


def fit_slope(x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"], least: float = 0.0) -> Slope:
    """Least squares of y on x.

    Args:
        x: centred already; the first axis is sequences.
        y: a tensor of the same shape, already centred.
        least: a slope that counts as zero. The variance that it would explain is added to the total
            variance, so far smaller slopes have an R² near zero.

    Returns:
        The slope; standard errors are clustered by sequence.
    """
    across = (x * y).sum().item()
    spread = x.square().sum().item()
    square = y.square().sum().item()
    if not (spread > 0 and square > 0):
        return Slope(0.0, math.nan, 0.0)
    value = across / spread
    errors = (x * (y - value * x)).flatten(1).sum(1)
    stderr = errors.square().sum().item() ** 0.5 / spread
    r2 = across**2 / (spread * (square + least**2 * spread))
    return Slope(value, stderr, r2)
