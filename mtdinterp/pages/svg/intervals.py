"""Readings with 95% intervals, one per row, and dashed lines at the levels they should have."""

import math
from dataclasses import dataclass

from mtdinterp.pages.blocks import Intervals, Level, Reading
from mtdinterp.pages.ranges import (
    Range,
    finite_levels,
    interval,
    interval_axis,
    is_off_axis,
    reading_text,
    readings_range,
    ticks,
)
from mtdinterp.pages.svg.elements import (
    DASHES,
    LEGEND_LINE,
    WIDTH,
    image,
    mark,
    small_text,
    text,
    text_beside_line,
)
from mtdinterp.style import FAINT, style_of

LEFT = 4
RIGHT = 12
STEP = 44
"""Height of one reading with its label."""
LEAST_TOP = 40
"""Space above the readings for the labels of two levels."""


@dataclass(frozen=True)
class _Frame:
    """Where values and rows lie in the image."""

    axis: Range
    top: int
    bottom: int

    def x_of(self, value: float) -> float:
        low, high = self.axis
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)


def intervals(block: Intervals) -> str:
    """The chart as an SVG image."""
    levels = finite_levels(block.levels)
    top = max(LEAST_TOP, 12 + LEGEND_LINE * len(levels))
    frame = _Frame(interval_axis(block), top, top + STEP * len(block.readings))
    readings = readings_range(block)
    parts = _grid(frame)
    for index, level in enumerate(levels):
        label_y = 12 + LEGEND_LINE * index
        if is_off_axis(level, readings):
            parts += _off_axis_level(level, frame, label_y)
        else:
            parts += _level(level, frame, label_y)
    for index, reading in enumerate(block.readings):
        parts += _reading(reading, frame, top + STEP * index + 30)
    parts.append(small_text(WIDTH - RIGHT, frame.bottom + 29, block.unit, "end"))
    return image(WIDTH, frame.bottom + 36, parts, block.title)


def _grid(frame: _Frame) -> list[str]:
    parts = []
    for value in ticks(frame.axis):
        x = frame.x_of(value)
        parts.append(f'<path d="M{x:.1f} {frame.top}V{frame.bottom}" stroke="{FAINT}"/>')
        parts.append(small_text(x, frame.bottom + 15, f"{value:g}", "middle"))
    return parts


def _level(level: Level, frame: _Frame, label_y: int) -> list[str]:
    """A dashed line with its label above the readings."""
    style = style_of(level.key)
    x = frame.x_of(level.value)
    line = mark(
        f'<path d="M{x:.1f} {frame.top - 4}V{frame.bottom}" stroke="{style.colour}" '
        f'stroke-width="1.5" stroke-dasharray="{DASHES[style.line]}"',
        f"{level.label}: {level.value:.2f}",
    )
    label = f"{level.label} {level.value:.2f}"
    return [line, text_beside_line(x, label_y, label, end=x > WIDTH / 2)]


def _off_axis_level(level: Level, frame: _Frame, label_y: int) -> list[str]:
    """An arrow at the edge of the chart, with the level's label and value."""
    to_the_right = level.value > frame.axis.high
    tip = WIDTH if to_the_right else 0
    base = tip - 8 if to_the_right else tip + 8
    arrow = mark(
        f'<path d="M{base} {label_y - 8}L{tip} {label_y - 4}L{base} {label_y}Z" '
        f'fill="{style_of(level.key).colour}"',
        f"{level.label}: {level.value:.2f}, outside the axis",
    )
    label = f"{level.label} {level.value:.2f}"
    return [arrow, text_beside_line(base, label_y, label, end=to_the_right)]


def _reading(reading: Reading, frame: _Frame, y: int) -> list[str]:
    """A label, and below it at height y the value as a point on its 95% interval."""
    number = reading_text(reading)
    label = text(LEFT, y - 12, f"{reading.label}: {number} ({reading.note})", halo=True)
    if not math.isfinite(reading.value):
        return [label]
    ends = interval(reading.value, reading.stderr)
    first = frame.x_of(ends.low)
    last = frame.x_of(ends.high)
    colour = style_of("model").colour
    bar = f'<path d="M{first:.1f} {y}H{last:.1f}" stroke="{colour}" stroke-width="3"/>'
    point = mark(
        f'<circle cx="{frame.x_of(reading.value):.1f}" cy="{y}" r="4.5" fill="{colour}"',
        f"{reading.label}: {number}",
    )
    return [label, bar, point]
