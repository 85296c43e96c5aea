"""The pictures of a document, drawn with matplotlib from the same blocks as the page."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtdinterp.formatting import measured
from mtdinterp.pages.blocks import (
    Bars,
    Facets,
    Groups,
    Intervals,
    Level,
    Line,
    Lines,
    Map,
    Maps,
    Matrices,
    Matrix,
    Picture,
)
from mtdinterp.pages.facet_pictures import draw_facets, facets_size
from mtdinterp.pages.ranges import (
    NORMAL_95,
    finite_or_zero,
    interval_axis,
    is_off_axis,
    reading_text,
    readings_range,
)
from mtdinterp.plotting import (
    legend_right,
    literal,
    probability_colours,
    rendered_figure,
    saved_figure,
    write_cells,
)
from mtdinterp.style import CHANGE, INK, OUTLINE, style_of

WIDTH = 6.4
"""Width of charts in inches."""
MAPS_WIDTH = 8.0
"""Width of heat maps in inches."""
MAX_WRITTEN = 8
"""Matrices with more rows than this are drawn without numbers."""


def draw(block: Picture, path: Path) -> None:
    """Draw one picture and write it to `path`."""
    width, height = _size(block)
    with saved_figure(width, height, path) as figure:
        _fill(figure, block)


def png(block: Picture) -> bytes:
    """One picture as the contents of a PNG file."""
    width, height = _size(block)
    content = io.BytesIO()
    with rendered_figure(width, height, content) as figure:
        _fill(figure, block)
    return content.getvalue()


def _fill(figure: Any, block: Picture) -> None:
    figure.suptitle(literal(block.title), x=0.01, ha="left", fontsize=10)
    DRAWERS[type(block)](block, figure)


def _size(block: Picture) -> tuple[float, float]:
    """Width and height in inches."""
    if isinstance(block, Bars):
        return WIDTH, 0.9 + 0.27 * len(block.bars)
    if isinstance(block, Intervals):
        return WIDTH, 1.4 + 0.35 * len(block.readings)
    if isinstance(block, Groups | Lines):
        return WIDTH, 3.4
    if isinstance(block, Facets):
        return facets_size(block)
    if isinstance(block, Matrices):
        return 2.3 * len(block.panels), 2.9
    if block.square:
        return MAPS_WIDTH, 4.4
    heights = [0.45 + 0.17 * len(panel.row_names) for panel in block.panels]
    return MAPS_WIDTH, 0.9 + sum(heights)


def _bars(block: Bars, figure: Any) -> None:
    axis = figure.subplots()
    places = range(len(block.bars))
    values = [bar.value for bar in block.bars]
    errors = [finite_or_zero(bar.stderr) for bar in block.bars]
    colours = [style_of(bar.key).colour for bar in block.bars]
    axis.barh(places, values, 0.7, xerr=errors, ecolor=INK, color=colours)
    for place, value, error in zip(places, values, errors, strict=True):
        axis.annotate(
            measured(value, error),
            (value + error, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_yticks(places, [literal(bar.label) for bar in block.bars])
    axis.margins(x=0.14)
    axis.invert_yaxis()
    axis.set_xlabel(literal(block.unit))


def _groups(block: Groups, figure: Any) -> None:
    axis = figure.subplots()
    groups = range(len(block.categories))
    for number, series in enumerate(block.series):
        width = 0.8 / len(block.series)
        offset = (number + 0.5) * width - 0.4
        colour = style_of(series.key).colour
        axis.bar(
            [group + offset for group in groups],
            series.values,
            0.9 * width,
            label=literal(series.label),
            edgecolor=colour,
            color="none" if series.key == "truth" else colour,
        )
    axis.set_xticks(groups, [literal(category) for category in block.categories])
    if block.series:
        legend_right(axis)


def _intervals(block: Intervals, figure: Any) -> None:
    axis = figure.subplots()
    colour = style_of("model").colour
    for place, reading in enumerate(block.readings):
        half = NORMAL_95 * finite_or_zero(reading.stderr)
        axis.errorbar(reading.value, place, xerr=half, fmt="o", color=colour, capsize=3)
    readings = readings_range(block)
    limits = interval_axis(block)
    for level in block.levels:
        if is_off_axis(level, readings):
            _off_axis_level(axis, level, to_the_right=level.value > limits.high)
        else:
            _interval_level(axis, level)
    labels = [f"{reading.label}: {reading_text(reading)}" for reading in block.readings]
    axis.set_yticks(range(len(block.readings)), map(literal, labels))
    axis.set_ylim(len(block.readings) - 0.5, -0.5)
    axis.set_xlim(limits)
    axis.set_xlabel(literal(block.unit))
    if block.levels:
        legend_right(axis)


def _interval_level(axis: Any, level: Level) -> None:
    style = style_of(level.key)
    axis.axvline(
        level.value,
        color=style.colour,
        linestyle=style.line,
        label=literal(f"{level.label} {level.value:.2f}"),
    )


def _off_axis_level(axis: Any, level: Level, to_the_right: bool) -> None:
    """An arrow at the upper corner of the axes; the legend shows the value."""
    axis.plot(
        1.0 if to_the_right else 0.0,
        1.0,
        marker=">" if to_the_right else "<",
        color=style_of(level.key).colour,
        linestyle="none",
        transform=axis.transAxes,
        clip_on=False,
        label=literal(f"{level.label} {level.value:.2f}\n(outside the axis)"),
    )


def _lines(block: Lines, figure: Any) -> None:
    axis = figure.subplots()
    for line in block.lines:
        _line(axis, line, block.logarithmic_x)
    for level in block.levels:
        style = style_of(level.key)
        label = literal(level.label)
        axis.axhline(level.value, color=style.colour, linestyle=style.line, label=label)
    for moment, name in _placed_moments(block):
        label = literal(f"{name} ({moment:g})")
        axis.axvline(moment, color=INK, linestyle=(0, (1, 2)), linewidth=0.8, label=label)
    if block.logarithmic:
        axis.set_yscale("log")
    if block.logarithmic_x:
        axis.set_xscale("log")
    axis.set_xlabel(literal(block.x_name))
    axis.set_ylabel(literal(block.y_name))
    if len(block.lines) + len(block.levels) + len(block.moments) > 1:
        legend_right(axis)


def _placed_moments(block: Lines) -> list[tuple[float, str]]:
    """The events that have a place on the x axis."""
    return [entry for entry in block.moments if entry[0] > 0 or not block.logarithmic_x]


def _line(axis: Any, line: Line, logarithmic_x: bool) -> None:
    style = style_of(line.key)
    points = [point for point in line.points if point[0] > 0 or not logarithmic_x]
    axis.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=style.colour,
        linestyle=style.line,
        marker=style.marker,
        markersize=3,
        label=literal(line.label),
    )


def _matrices(block: Matrices, figure: Any) -> None:
    axes = figure.subplots(1, len(block.panels), squeeze=False)[0]
    for axis, panel in zip(axes, block.panels, strict=True):
        _matrix(axis, panel, block.largest)


def _matrix(axis: Any, panel: Matrix, largest: float) -> None:
    size = len(panel.values)
    axis.imshow(panel.values.numpy(), cmap=probability_colours(), vmin=0, vmax=largest)
    axis.set_title(literal(f"{panel.title}\n{panel.subtitle}"), loc="left", fontsize=9)
    axis.set_xticks(range(size))
    axis.set_yticks(range(size))
    axis.tick_params(length=0)
    if size <= MAX_WRITTEN:
        write_cells(axis, panel.values, largest)


def _maps(block: Maps, figure: Any) -> None:
    """Square maps next to each other, others below each other with heights by their rows."""
    if block.square:
        axes = figure.subplots(1, len(block.panels), squeeze=False)[0]
        lowest = axes
    else:
        heights = [max(1, len(panel.row_names)) for panel in block.panels]
        ratios = {"height_ratios": heights}
        axes = figure.subplots(len(heights), 1, squeeze=False, gridspec_kw=ratios)[:, 0]
        lowest = axes[-1:]
    for axis, panel in zip(axes, block.panels, strict=True):
        image = _map(axis, block, panel)
    for axis in lowest:
        axis.set_xlabel(literal(block.column_axis))
    figure.colorbar(image, ax=list(axes), fraction=0.03, pad=0.01)


def _map(axis: Any, block: Maps, panel: Map) -> Any:
    """Draw one heat map and return its image, for the colour bar."""
    from matplotlib.ticker import MaxNLocator

    rows, columns = panel.values.shape
    left = panel.first_column - 0.5
    top = panel.first_row - 0.5
    image = axis.imshow(
        panel.values.nan_to_num().numpy(),
        aspect="equal" if block.square else "auto",
        interpolation="nearest",
        cmap=CHANGE if block.changes else probability_colours(),
        norm=_colour_scale(block),
        extent=(left, left + columns, top + rows, top),
    )
    for outline in panel.outlines:
        closed = (*outline, outline[0])
        across = [left + x for x, _ in closed]
        down = [top + y for _, y in closed]
        axis.plot(across, down, color=OUTLINE, linewidth=1)
    axis.set_title(literal(panel.title), loc="left")
    # Rows and columns are numbered, and a map of few cells must not get ticks between them.
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.row_names:
        axis.set_yticks(range(rows), map(literal, panel.row_names), fontsize=7)
        axis.tick_params(axis="y", length=0)
    else:
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_ylabel(literal(block.row_axis))
    return image


def _colour_scale(block: Maps) -> Any:
    """The colour scale; probabilities are coloured by their square root, as on the page."""
    from matplotlib.colors import Normalize, PowerNorm

    if block.changes:
        return Normalize(-block.largest, block.largest)
    return PowerNorm(0.5, 0, block.largest)


DRAWERS: dict[type, Callable[[Any, Any], None]] = {
    Bars: _bars,
    Facets: draw_facets,
    Groups: _groups,
    Intervals: _intervals,
    Lines: _lines,
    Matrices: _matrices,
    Maps: _maps,
}
