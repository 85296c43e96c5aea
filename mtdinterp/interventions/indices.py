"""Indices as people give them, counted out and checked."""

from operator import index
from typing import Any

import numpy as np
import torch


def positions_of(position: Any, length: int, what: str = "position") -> Any:
    """What selects these positions of a sequence: their indices, or a slice of all where there is
    no choice."""
    if position is None:
        return slice(None)
    try:
        if isinstance(position, slice):
            chosen = list(range(length))[position]
        else:
            chosen = [index(entry) for entry in np.atleast_1d(np.asarray(position)).tolist()]
    except (TypeError, ValueError):
        raise ValueError(
            f"{what}: expected an index, a slice or indices of positions, got {position!r}"
        ) from None
    if not chosen:
        raise ValueError(f"{what}: {position} selects none of the {length} positions")
    for entry in chosen:
        if not -length <= entry < length:
            raise ValueError(
                f"{what}: expected positions of {-length}..{length - 1}, got {entry!r}"
            )
    return torch.tensor([entry % length for entry in chosen])


def counted(name: str, value: Any, count: int, what: str) -> int:
    """An index of `count` things, negative ones from the end."""
    try:
        number = index(value)
    except TypeError:
        number = count
    if isinstance(value, bool) or not -count <= number < count:
        raise ValueError(f"{name}: {what} 0..{count - 1}, got {value!r}")
    return number % count
