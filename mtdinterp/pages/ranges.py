"""Ranges, ticks and intervals of charts: numbers only, shared by `svg` and `pictures`."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from mtdinterp.pages.blocks import Intervals, Level, Reading

NORMAL_95 = 1.96
"""Half the width of a 95% interval, in standard errors."""
MAX_LOG_TICKS = 6
"""With more ticks than this, a logarithmic axis shows powers of ten only."""
FAR = 1.0
"""A level is off the axis if its distance to the readings is more than this share of their size.

The size is the range of the readings and 0. For positive readings, a level is off the axis if it is
more than twice as large: such a level answers no question about their exact values, and an axis
that reaches it would draw all readings and all closer levels on top of each other."""


LEAST_SHARE = 0.25
"""An interval axis spans at least this share of its largest value.

A shorter axis would show a difference of one percent like one that matters."""


class Range(NamedTuple):
    """The ends of an axis."""

    low: float
    high: float

    def padded(self, share: float = 0.05) -> "Range":
        """The range extended at both ends by a share of its length, or by 0.5 if it has none."""
        pad = share * (self.high - self.low) or 0.5
        return Range(self.low - pad, self.high + pad)


def finite_or_zero(value: float) -> float:
    """The value, or 0 if it is NaN or infinite."""
    return value if math.isfinite(value) else 0.0


def interval(value: float, stderr: float) -> Range:
    """The 95% interval of a value; it has no width if the standard error is not finite."""
    half = NORMAL_95 * finite_or_zero(stderr)
    return Range(value - half, value + half)


def reading_text(reading: Reading) -> str:
    """A reading's value, with its standard error if there is one."""
    if math.isfinite(reading.stderr):
        return f"{reading.value:.2f} ± {reading.stderr:.2f}"
    return f"{reading.value:.2f}"


def finite_levels(levels: Sequence[Level]) -> list[Level]:
    """The levels that can be drawn."""
    return [level for level in levels if math.isfinite(level.value)]


def readings_range(block: Intervals) -> Range | None:
    """The range of all 95% intervals and 0, or None if no reading is finite."""
    ends = [0.0]
    for reading in block.readings:
        if math.isfinite(reading.value):
            ends += interval(reading.value, reading.stderr)
    if len(ends) == 1:
        return None
    return Range(min(ends), max(ends))


def is_off_axis(level: Level, readings: Range | None) -> bool:
    """Whether a level is too far from the readings to share their axis."""
    if readings is None or readings.low == readings.high:
        return False
    distance = max(readings.low - level.value, level.value - readings.high)
    return distance > FAR * (readings.high - readings.low)


def interval_axis(block: Intervals) -> Range:
    """The axis of an interval chart: all intervals, and all levels that are not far away."""
    readings = readings_range(block)
    ends: list[float] = []
    for reading in block.readings:
        ends += interval(reading.value, reading.stderr)
    ends += [level.value for level in block.levels if not is_off_axis(level, readings)]
    finite = [value for value in ends if math.isfinite(value)]
    if not finite:
        return Range(0.0, 1.0).padded()
    low = min(finite)
    high = max(finite)
    least_length = LEAST_SHARE * max(abs(low), abs(high))
    missing = max(0.0, least_length - (high - low))
    return Range(low - missing / 2, high + missing / 2).padded()


def ticks(axis: Range) -> list[float]:
    """About five round numbers within the range."""
    rough = (axis.high - axis.low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    step = min(steps, key=lambda candidate: abs(candidate - rough))
    first = math.ceil(axis.low / step - 1e-9)
    last = math.floor(axis.high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def log_ticks(exponents: Range) -> list[float]:
    """Round numbers between two powers of ten, which are given by their exponents."""
    inside = []
    for power in range(math.floor(exponents.low), math.ceil(exponents.high) + 1):
        for factor in (1, 2, 5):
            value = factor * 10.0**power
            if exponents.low <= math.log10(value) <= exponents.high:
                inside.append(value)
    if len(inside) <= MAX_LOG_TICKS:
        return inside
    return [value for value in inside if math.log10(value) % 1 < 1e-9]
