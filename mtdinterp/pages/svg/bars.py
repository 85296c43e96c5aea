"""Horizontal bars: the label above each bar, the value behind it, the standard error as a line."""

import math

from mtdinterp.formatting import fixed, measured_decimals, with_error
from mtdinterp.pages.blocks import Bar, Bars
from mtdinterp.pages.ranges import finite_or_zero
from mtdinterp.pages.svg.elements import WIDTH, image, mark, small_text, text
from mtdinterp.style import INK, style_of

LONGEST = WIDTH - 80
"""Length of the longest bar; the rest is for its value."""
STEP = 36
"""Height of one bar with its label."""
EMPHASISED = "this model"
"""The label that is set in bold."""


def bars(block: Bars) -> str:
    """The chart as an SVG image."""
    scale = LONGEST / _largest(block)
    parts = []
    for index, bar in enumerate(block.bars):
        parts += _bar(bar, index * STEP, scale)
    bottom = len(block.bars) * STEP
    parts.append(small_text(0, bottom + 14, block.unit))
    return image(WIDTH, bottom + 20, parts, block.title)


def _largest(block: Bars) -> float:
    """The largest value with its standard error, or 1 if nothing is above 0."""
    finite = [bar for bar in block.bars if math.isfinite(bar.value)]
    ends = [bar.value + finite_or_zero(bar.stderr) for bar in finite]
    return max(ends, default=0) or 1.0


def _bar(bar: Bar, y: float, scale: float) -> list[str]:
    """One bar whose label starts at height y; `scale` is in SVG units per unit of the value."""
    weight = "600" if bar.label == EMPHASISED else ""
    label = text(0, y + 13, bar.label, weight=weight)
    if not math.isfinite(bar.value):
        return [label, small_text(0, y + 29, "NaN")]
    error = finite_or_zero(bar.stderr)
    digits = measured_decimals(bar.value, bar.stderr)
    length = max(0.0, scale * bar.value)
    low = scale * max(0.0, bar.value - error)
    high = scale * max(0.0, bar.value + error)
    rectangle = mark(
        f'<rect x="0" y="{y + 18}" width="{length:.1f}" height="12" '
        f'fill="{style_of(bar.key).colour}"',
        f"{bar.label}: {with_error(bar.value, bar.stderr, digits)}",
    )
    whisker = f'<path d="M{low:.1f} {y + 24}H{high:.1f}" stroke="{INK}"/>'
    value = small_text(max(length, high) + 6, y + 28, fixed(bar.value, digits))
    return [label, rectangle, whisker, value]
