"""Line charts: points on lines, levels as dashed lines, events as dotted vertical lines."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from mtdinterp.pages.blocks import Level, Line, Lines, Point
from mtdinterp.pages.ranges import Range, log_ticks, ticks
from mtdinterp.pages.svg.elements import (
    DASHES,
    LEGEND_LINE,
    WIDTH,
    image,
    legend_places,
    mark,
    small_text,
    text_beside_line,
)
from mtdinterp.style import FAINT, INK, style_of

LEFT = 52
RIGHT = 10
BOTTOM = 42
PLOT_HEIGHT = 222
"""Height of the frame."""
TITLE_HEIGHT = 20
"""Height of the y axis's name, which is the first line of the image."""
SAMPLE = 28
"""Width of a line's sample in the legend."""


@dataclass(frozen=True)
class _Frame:
    """The frame of the chart: how data become positions in the image."""

    top: int
    x_range: Range
    y_range: Range
    """Both on the scale of the axis: exponents of ten if it is logarithmic."""
    logarithmic_x: bool
    logarithmic: bool

    @property
    def bottom(self) -> int:
        return self.top + PLOT_HEIGHT

    def x_of(self, x: float) -> float:
        first, last = self.x_range
        share = (_scale(self.logarithmic_x)(x) - first) / ((last - first) or 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y_of(self, y: float) -> float:
        low, high = self.y_range
        share = (_scale(self.logarithmic)(y) - low) / (high - low)
        return self.bottom - share * PLOT_HEIGHT


def lines(block: Lines) -> str:
    """The chart as an SVG image; empty if no point can be shown."""
    points = _visible_points(block)
    if not points:
        return ""
    levels = [level for level in block.levels if _is_visible(level.value, block.logarithmic)]
    moments = _visible_moments(block)
    places = legend_places([line.label for line in block.lines], SAMPLE)
    has_legend = len(block.lines) > 1
    legend_height = places[-1][1] + 6 if has_legend else 0
    labels_height = LEGEND_LINE * len(moments)
    frame = _frame(block, points, levels, TITLE_HEIGHT + legend_height + labels_height)

    parts = _box(frame)
    for level in levels:
        parts += _level(level, frame)
    for index, (moment, label) in enumerate(_stacked(moments, frame)):
        parts += _moment(moment, label, frame, legend_height + LEGEND_LINE * index)
    for line, (x, baseline) in zip(block.lines, places, strict=True):
        if has_legend:
            parts.append(_legend_entry(line, x, TITLE_HEIGHT + baseline - 4))
        parts += _line(line, frame)
    parts += _axis_names(block, frame)
    return image(WIDTH, frame.bottom + BOTTOM, parts, block.title)


def _scale(logarithmic: bool) -> Callable[[float], float]:
    return math.log10 if logarithmic else float


def _is_visible(value: float, logarithmic: bool) -> bool:
    """Whether a value has a place on an axis."""
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _visible_points(block: Lines) -> list[Point]:
    points: list[Point] = []
    for line in block.lines:
        points += _visible(line, block.logarithmic_x, block.logarithmic)
    return points


def _visible(line: Line, logarithmic_x: bool, logarithmic: bool) -> list[Point]:
    visible = []
    for x, y in line.points:
        if _is_visible(x, logarithmic_x) and _is_visible(y, logarithmic):
            visible.append((x, y))
    return visible


def _visible_moments(block: Lines) -> list[tuple[float, str]]:
    """The events within the range of all points, visible or not."""
    ends: list[float] = []
    for line in block.lines:
        ends += [x for x, _ in line.points if _is_visible(x, block.logarithmic_x)]
    first = min(ends)
    last = max(ends)
    return [moment for moment in block.moments if first <= moment[0] <= last]


def _frame(block: Lines, points: list[Point], levels: list[Level], top: int) -> _Frame:
    scale = _scale(block.logarithmic)
    scale_x = _scale(block.logarithmic_x)
    xs = [scale_x(x) for x, _ in points]
    ys = [scale(y) for _, y in points]
    ys += [scale(level.value) for level in levels]
    return _Frame(
        top=top,
        x_range=Range(min(xs), max(xs)),
        y_range=Range(min(ys), max(ys)).padded(0.08),
        logarithmic_x=block.logarithmic_x,
        logarithmic=block.logarithmic,
    )


def _box(frame: _Frame) -> list[str]:
    """The frame itself, with horizontal grid lines and the ticks of both axes."""
    parts = [
        f'<rect x="{LEFT}" y="{frame.top}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{PLOT_HEIGHT}" fill="none" stroke="{FAINT}"/>'
    ]
    make_ticks = log_ticks if frame.logarithmic else ticks
    for value in make_ticks(frame.y_range):
        y = frame.y_of(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{FAINT}"/>')
        parts.append(small_text(LEFT - 6, y + 4, f"{value:g}", "end"))
    make_ticks = log_ticks if frame.logarithmic_x else ticks
    for value in make_ticks(frame.x_range):
        x = frame.x_of(value)
        parts.append(small_text(x, frame.bottom + 16, f"{value:g}", "middle"))
    return parts


def _level(level: Level, frame: _Frame) -> list[str]:
    """A dashed horizontal line with its label at the right end."""
    style = style_of(level.key)
    right = WIDTH - RIGHT
    y = frame.y_of(level.value)
    # A falling curve ends just above a low level, so its label goes below the line.
    is_low = y > (frame.top + frame.bottom) / 2
    label_y = y + 13 if is_low and frame.logarithmic else y - 4
    line = mark(
        f'<path d="M{LEFT} {y:.1f}H{right}" stroke="{style.colour}" stroke-width="1.5" '
        f'stroke-dasharray="{DASHES[style.line]}"',
        f"{level.label}: {level.value:.5g}",
    )
    return [line, small_text(right - 4, label_y, level.label, "end", halo=True)]


def _stacked(moments: list[tuple[float, str]], frame: _Frame) -> list[tuple[float, str]]:
    """The events in an order, from the top, in which no line starts above a label that it crosses.

    A label is to the right of its line in the left half of the image, and to the left in the right
    half.
    """
    in_order = sorted(moments)
    left = [moment for moment in in_order if not _is_right(moment[0], frame)]
    right = [moment for moment in in_order if _is_right(moment[0], frame)]
    return [*left, *reversed(right)]


def _is_right(x: float, frame: _Frame) -> bool:
    return frame.x_of(x) >= WIDTH / 2


def _moment(moment: float, label: str, frame: _Frame, offset: int) -> list[str]:
    """A dotted vertical line that starts at its label, `offset` below the y axis's name."""
    x = frame.x_of(moment)
    line = mark(
        f'<path d="M{x:.1f} {18 + offset}V{frame.bottom}" stroke="{INK}" stroke-dasharray="2 3"',
        f"{label}: {moment:g}",
    )
    content = f"{label} ({moment:g})"
    is_right = _is_right(moment, frame)
    return [line, text_beside_line(x, 27 + offset, content, end=is_right, halo=True)]


def _legend_entry(line: Line, x: int, y: int) -> str:
    style = style_of(line.key)
    sample = (
        f'<path d="M{x} {y}h22" stroke="{style.colour}" stroke-width="2" '
        f'stroke-dasharray="{DASHES[style.line]}"/>'
    )
    return sample + small_text(x + SAMPLE, y + 4, line.label)


def _line(line: Line, frame: _Frame) -> list[str]:
    """A line through the visible points, and a mark with a tooltip on each."""
    style = style_of(line.key)
    corners = []
    marks = []
    for x, y in _visible(line, frame.logarithmic_x, frame.logarithmic):
        place_x = frame.x_of(x)
        place_y = frame.y_of(y)
        corners.append(f"{place_x:.1f},{place_y:.1f}")
        marks.append(
            mark(
                f'<circle cx="{place_x:.1f}" cy="{place_y:.1f}" r="2.5" fill="{style.colour}"',
                f"{line.label} at {x:g}: {y:.5g}",
            )
        )
    path = (
        f'<polyline points="{" ".join(corners)}" fill="none" stroke="{style.colour}" '
        f'stroke-width="2" stroke-dasharray="{DASHES[style.line]}"/>'
    )
    return [path, *marks]


def _axis_names(block: Lines, frame: _Frame) -> list[str]:
    x_name = f"{block.x_name} (logarithmic)" if block.logarithmic_x else block.x_name
    y_name = f"{block.y_name} (logarithmic)" if block.logarithmic else block.y_name
    return [
        small_text(WIDTH - RIGHT, frame.bottom + BOTTOM - 8, x_name, "end"),
        small_text(0, 11, y_name),
    ]
