"""The x axis of a sweep's charts: where the values of a setting stand, and its ticks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mtdinterp.pages.ranges import Range, log_ticks, ticks
from mtdinterp.sweep.statistics import is_number, key_of, shown

MOST_TICKS = 10
LEAST_POWERS = 3
"""From so many powers of two on, the axis is logarithmic."""
LARGE_SHARE = 20
"""If the largest value is more than so many times the smallest, an axis is logarithmic."""


@dataclass(frozen=True)
class Scale:
    """Where the values of the setting along x stand."""

    places: Mapping[str, float]
    """By the value's key."""
    ticks: tuple[tuple[float, str], ...]
    name: str
    connected: bool
    """Whether they are numbers."""


def scale_of(name: str, values: Sequence[Any]) -> Scale:
    """The x axis of a setting: numbers on a linear or logarithmic scale, or categories."""
    if not all(map(is_number, values)):
        labels = [shown(value) for value in values]
        places = {key_of(value): float(index) for index, value in enumerate(values)}
        return Scale(places, tuple(zip(places.values(), labels, strict=True)), name, False)
    logarithmic = _is_logarithmic(values)
    places = {key_of(value): _place(value, logarithmic) for value in values}
    marks = tuple((_place(value, logarithmic), shown(value)) for value in values)
    if len(values) > MOST_TICKS and not _are_powers_of_two(values):
        ends = Range(min(places.values()), max(places.values()))
        rounded = log_ticks(ends) if logarithmic else ticks(ends)
        marks = tuple((_place(value, logarithmic), f"{value:g}") for value in rounded)
    return Scale(places, marks, f"{name} (logarithmic)" if logarithmic else name, True)


def _place(value: float, logarithmic: bool) -> float:
    return math.log10(value) if logarithmic else float(value)


def _is_logarithmic(values: Sequence[float]) -> bool:
    if len(values) < LEAST_POWERS or min(values) <= 0:
        return False
    return _are_powers_of_two(values) or max(values) > LARGE_SHARE * min(values)


def _are_powers_of_two(values: Sequence[float]) -> bool:
    return min(values) > 0 and all(math.frexp(value)[0] == 0.5 for value in values)
