"""Small charts with common axes, drawn with matplotlib."""

import math
from typing import Any

from mtdinterp.pages.charts import Facet, Facets, Line, Sample
from mtdinterp.pages.scales import (
    MOST_LETTERS,
    cut,
    gap,
    is_visible,
    offsets,
    place_axis,
    thinned,
    value_axis,
)
from mtdinterp.plotting import grid, kl_axis, legend_below, literal
from mtdinterp.style import style_of

MOST_COLUMNS = 3
FACET_WIDTH = 2.7
FACET_HEIGHT = 2.3
"""Inches."""
ALONE_WIDTH = 5.0
"""Width of a chart that stands alone."""
MOST_NAME = 38
"""Longer titles and names of axes are cut."""
LETTER = 0.07
"""Average width of a letter of a tick's label in inches."""


def facets_size(block: Facets) -> tuple[float, float]:
    """Width and height in inches."""
    columns = min(MOST_COLUMNS, len(block.facets))
    rows = math.ceil(len(block.facets) / MOST_COLUMNS)
    width = ALONE_WIDTH if columns < 2 else FACET_WIDTH * columns
    return width, 1.0 + FACET_HEIGHT * max(1, rows)


def draw_facets(block: Facets, figure: Any) -> None:
    """Draw all charts in rows, and one legend below them."""
    y_range = value_axis(block)
    if y_range is None:
        return
    columns = min(MOST_COLUMNS, len(block.facets))
    rows = math.ceil(len(block.facets) / columns)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, facet in zip(axes, block.facets, strict=False):
        _facet(axis, block, facet)
        axis.set_ylim([10**end for end in y_range] if block.logarithmic else y_range)
    for axis in axes[len(block.facets) :]:
        axis.set_axis_off()
    legend_below(figure, axes, columns=2)


def _facet(axis: Any, block: Facets, facet: Facet) -> None:
    axis.set_title(literal(cut(facet.title, MOST_NAME)), loc="left", fontsize=9)
    grid(axis)
    if block.logarithmic:
        kl_axis(axis)
    for line in facet.references:
        _reference(axis, block, line)
    moved = offsets(block)
    for sample in facet.samples:
        _sample(axis, block, sample, moved[sample.key, sample.label])
    axis.set_xlim(place_axis(block))
    _ticks(axis, block)
    axis.set_xlabel(literal(cut(block.x_name, MOST_NAME)), fontsize=8)
    axis.set_ylabel(literal(cut(block.y_name, MOST_NAME)), fontsize=8)


def _ticks(axis: Any, block: Facets) -> None:
    """The labels that fit; names of categories are slanted if they do not."""
    low, high = place_axis(block)
    inches = ALONE_WIDTH if len(block.facets) == 1 else FACET_WIDTH
    scale = 0.75 * inches / (high - low)
    labels = [cut(label, MOST_LETTERS) for _, label in block.ticks]
    positions = [scale * x for x, _ in block.ticks]
    shown = thinned(positions, [LETTER * (len(label) + 1) for label in labels])
    slanted = len(shown) < len(labels) and not block.connected
    if slanted:
        shown = thinned(positions, [2 * LETTER] * len(labels))
    axis.set_xticks(
        [block.ticks[index][0] for index in shown],
        [literal(labels[index]) for index in shown],
        fontsize=8,
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
    )


def _reference(axis: Any, block: Facets, line: Line) -> None:
    points = [point for point in line.points if is_visible(block, point[1])]
    style = style_of(line.key)
    look = {"color": style.colour, "linestyle": style.line, "label": literal(line.label)}
    if block.connected and len(points) > 1:
        axis.plot([x for x, _ in points], [y for _, y in points], linewidth=1.2, **look)
        return
    half = 0.4 * gap(block)
    for x, y in points:
        axis.plot([x - half, x + half], [y, y], linewidth=1.2, **look)


def _sample(axis: Any, block: Facets, sample: Sample, offset: float) -> None:
    style = style_of(sample.key)
    dots = [dot for dot in sample.dots if is_visible(block, dot.value)]
    means = [mean for mean in sample.means if is_visible(block, mean.value)]
    places = [mean.x + offset for mean in means]
    values = [mean.value for mean in means]
    below = [mean.value - mean.low if math.isfinite(mean.low) else 0.0 for mean in means]
    above = [mean.high - mean.value if math.isfinite(mean.high) else 0.0 for mean in means]
    axis.errorbar(
        places,
        values,
        [below, above],
        color=style.colour,
        marker=style.marker,
        linestyle=style.line if block.connected else "none",
        label=literal(sample.label),
        markersize=4.5,
        linewidth=1.2,
        elinewidth=1,
        capsize=2,
        zorder=3,
    )
    axis.scatter(
        [dot.x + offset for dot in dots],
        [dot.value for dot in dots],
        s=10,
        facecolors="white",
        edgecolors=style.colour,
        linewidths=0.9,
        zorder=2.5,
    )
