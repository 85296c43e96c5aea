"""Vertical bars in groups, with a legend above; bars hang down where a value is negative."""

import math
from dataclasses import dataclass

from mtdinterp.pages.blocks import Groups, Series
from mtdinterp.pages.ranges import Range, ticks
from mtdinterp.pages.svg.elements import WIDTH, image, legend_places, mark, small_text
from mtdinterp.style import FAINT, style_of

LEFT = 34
BOTTOM = 22
PLOT_HEIGHT = 178
"""Height between the legend and the category names."""
GROUP_SHARE = 0.8
"""Share of a group's width that its bars take."""
BAR_SHARE = 0.9
"""Share of its place that a bar takes."""


@dataclass(frozen=True)
class _Frame:
    """Where values and bars lie in the image."""

    top: float
    values: Range
    group_width: float
    bar_width: float

    @property
    def height(self) -> float:
        return self.top + PLOT_HEIGHT + BOTTOM

    def y_of(self, value: float) -> float:
        low, high = self.values
        return self.height - BOTTOM - PLOT_HEIGHT * (value - low) / (high - low)

    def x_of(self, group: int, number: int) -> float:
        """The left edge of a bar: its group, and its number within the group."""
        margin = (1 - GROUP_SHARE) / 2
        return LEFT + (group + margin) * self.group_width + number * self.bar_width


def groups(block: Groups) -> str:
    """The chart as an SVG image; empty if there is nothing to show."""
    if not block.series or not block.categories:
        return ""
    places = legend_places([series.label for series in block.series])
    group_width = (WIDTH - LEFT) / len(block.categories)
    frame = _Frame(
        top=places[-1][1] + 8,
        values=_values_range(block),
        group_width=group_width,
        bar_width=GROUP_SHARE * group_width / len(block.series),
    )
    parts = _grid(frame)
    for number, (series, place) in enumerate(zip(block.series, places, strict=True)):
        parts += _legend_entry(series, place)
        parts += _bars(block.categories, series, number, frame)
    for group, category in enumerate(block.categories):
        middle = LEFT + (group + 0.5) * group_width
        parts.append(small_text(middle, frame.height - 6, category, "middle"))
    return image(WIDTH, frame.height, parts, block.title)


def _values_range(block: Groups) -> Range:
    """The range of all finite values and 0; never empty."""
    finite: list[float] = []
    for series in block.series:
        finite += filter(math.isfinite, series.values)
    return Range(min([0.0, *finite]), max([1e-9, *finite]))


def _grid(frame: _Frame) -> list[str]:
    parts = []
    for value in ticks(frame.values):
        y = frame.y_of(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="{FAINT}"/>')
        parts.append(small_text(LEFT - 4, y + 4, f"{value:g}", "end"))
    return parts


def _legend_entry(series: Series, place: tuple[int, int]) -> list[str]:
    x, y = place
    sample = f'<rect x="{x}" y="{y - 8}" width="9" height="9" {_fill(series.key)}/>'
    return [sample, small_text(x + 14, y, series.label)]


def _bars(categories: tuple[str, ...], series: Series, number: int, frame: _Frame) -> list[str]:
    parts = []
    for group, (category, value) in enumerate(zip(categories, series.values, strict=True)):
        if not math.isfinite(value):
            continue
        x = frame.x_of(group, number)
        upper, lower = sorted((frame.y_of(value), frame.y_of(0)))
        shape = (
            f'<rect x="{x:.1f}" y="{upper:.1f}" width="{BAR_SHARE * frame.bar_width:.1f}" '
            f'height="{lower - upper:.1f}" {_fill(series.key)}'
        )
        parts.append(mark(shape, f"{series.label}, {category}: {value:.4f}"))
    return parts


def _fill(key: str) -> str:
    """Fill and outline of a method's bars; those of the truth are hollow."""
    colour = style_of(key).colour
    fill = "none" if key == "truth" else colour
    return f'fill="{fill}" stroke="{colour}"'
