"""Conversion and checks of the indices that callers pass for positions, layers and heads."""

from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor


def positions_of(position: Any, length: int, what: str = "position") -> Tensor | slice:
    """Convert a choice of positions into an index of the position axis.

    Args:
        position: an index, a slice, several indices, or None for all positions.
        length: the number of positions.
        what: the name of the argument in error messages.

    Returns:
        The non-negative positions as an integer tensor, or `slice(None)` if `position` is None.
    """
    if position is None:
        return slice(None)
    chosen = _listed(position, length, what)
    if not chosen:
        raise ValueError(f"{what}: {position} selects none of the {length} positions")
    for entry in chosen:
        if not -length <= entry < length:
            raise ValueError(
                f"{what}: expected positions in {-length}..{length - 1}, got {entry!r}"
            )
    return torch.tensor([entry % length for entry in chosen])


def _listed(position: Any, length: int, what: str) -> list[int]:
    """The chosen positions as given, negative ones included."""
    try:
        if isinstance(position, slice):
            return list(range(length))[position]
        entries = np.atleast_1d(np.asarray(position)).tolist()
        return [index(entry) for entry in entries]
    except (TypeError, ValueError):
        raise ValueError(
            f"{what}: expected an index, a slice or indices of positions, got {position!r}"
        ) from None


def counted(name: str, value: Any, count: int, what: str) -> int:
    """Check an index into `count` items; negative indices count from the end.

    Args:
        name: the name of the argument in error messages.
        value: the index that the caller passed.
        count: the number of items.
        what: the expectation in error messages, such as "expected a layer in".

    Returns:
        The index in 0..count-1.
    """
    try:
        number = index(value)
    except TypeError:
        number = count
    if isinstance(value, bool) or not -count <= number < count:
        raise ValueError(f"{name}: {what} 0..{count - 1}, got {value!r}")
    return number % count
