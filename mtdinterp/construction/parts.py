"""Pieces that the constructions share."""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_transition, check_count, check_number, check_order

LOG_FLOOR = float(torch.finfo(torch.float64).tiny)
"""Zeros of π are raised to this before the logarithm."""


def log_transition(transition: Float64[Tensor, "vocab vocab"]) -> Float64[Tensor, "vocab vocab"]:
    """log π with its zeros floored: log 0 times a one-hot zero would be NaN.

    The floor is the smallest normal number, so every positive entry keeps its own logarithm, and
    exp of the floor vanishes next to any of them.
    """
    return transition.clamp_min(LOG_FLOOR).log()


def check_mask(delta: float, largest_score: float) -> None:
    """Refuse a mask that the largest score could overcome.

    A masked position keeps at most e⁻⁴⁰ of the attention, which is below float64 rounding.
    """
    if largest_score + 40 > delta:
        raise ValueError(
            f"delta: expected at least {largest_score + 40:.4g} to mask such scores, got {delta:g}"
        )


def check_problem(
    transition: ArrayLike, order: int, length: int, delta: float
) -> tuple[Float64[Tensor, "vocab vocab"], int, int, float]:
    """The arguments that all constructions share, checked.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        order: the number of lags m.
        length: tokens per sequence.
        delta: size of the masks' scores.

    Returns:
        The same four, as a tensor and plain numbers.
    """
    length = check_count("length", length)
    delta = check_number("delta", delta, minimum=0, exclusive=True)
    return as_transition(transition), check_order(order, length), length, delta
