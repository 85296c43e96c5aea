"""The pictures of a document as files, for Markdown: the same data as on the page, drawn by
matplotlib."""

import math
from pathlib import Path
from typing import Any

from mtdinterp.pages.blocks import Bars, Groups, Intervals, Lines, Maps, Matrices, Picture
from mtdinterp.style import CHANGE, INK, LOOKS, OUTLINE, amounts, plain, styled


def draw(block: Picture, path: Path) -> None:
    """Write one picture."""
    if isinstance(block, Bars):
        size = 6.4, 0.9 + 0.27 * len(block.bars)
    elif isinstance(block, Intervals):
        size = 6.4, 1.4 + 0.35 * len(block.readings)
    elif isinstance(block, Groups | Lines):
        size = 6.4, 3.4
    elif isinstance(block, Matrices):
        size = 2.3 * len(block.panels), 2.9
    else:
        size = (
            8.0,
            4.0
            if block.square
            else 0.9 + sum(0.45 + 0.17 * len(panel.row_names) for panel in block.panels),
        )
    with styled(*size, path) as figure:
        figure.suptitle(plain(block.title), x=0.01, ha="left", fontsize=10)
        DRAWERS[type(block)](block, figure)


def _bars(block: Bars, figure: Any) -> None:
    axis = figure.subplots()
    places = range(len(block.bars))
    errors = [bar.stderr if math.isfinite(bar.stderr) else 0.0 for bar in block.bars]
    axis.barh(
        places,
        [bar.value for bar in block.bars],
        0.7,
        xerr=errors,
        ecolor=INK,
        color=[LOOKS[bar.key].colour for bar in block.bars],
    )
    for place, bar, error in zip(places, block.bars, errors, strict=True):
        axis.annotate(
            f"{bar.value:.5f}",
            (bar.value + error, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axis.set_yticks(places, [plain(bar.words) for bar in block.bars])
    axis.margins(x=0.14)
    axis.invert_yaxis()
    axis.set_xlabel(plain(block.unit))


def _groups(block: Groups, figure: Any) -> None:
    axis = figure.subplots()
    width = 0.8 / len(block.series)
    for number, series in enumerate(block.series):
        places = [group - 0.4 + (number + 0.5) * width for group in range(len(block.categories))]
        colour = LOOKS[series.key].colour
        axis.bar(
            places,
            series.values,
            0.9 * width,
            label=plain(series.words),
            edgecolor=colour,
            color="none" if series.key == "truth" else colour,
        )
    axis.set_xticks(
        range(len(block.categories)), [plain(category) for category in block.categories]
    )
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _intervals(block: Intervals, figure: Any) -> None:
    axis = figure.subplots()
    for place, reading in enumerate(block.readings):
        reach = 1.96 * reading.stderr if math.isfinite(reading.stderr) else 0.0
        axis.errorbar(
            reading.value, place, xerr=reach, fmt="o", color=LOOKS["model"].colour, capsize=3
        )
    for level in block.levels:
        look = LOOKS[level.key]
        axis.axvline(
            level.value,
            color=look.colour,
            linestyle=look.line,
            label=plain(f"{level.words} {level.value:.2f}"),
        )
    axis.set_yticks(
        range(len(block.readings)),
        [
            plain(f"{reading.words}: {reading.value:.2f}")
            + (f" ± {reading.stderr:.2f}" if math.isfinite(reading.stderr) else "")
            for reading in block.readings
        ],
    )
    axis.set_ylim(len(block.readings) - 0.5, -0.5)
    axis.set_xlim(left=min(0.0, axis.get_xlim()[0]))
    axis.set_xlabel(plain(block.unit))
    if block.levels:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _lines(block: Lines, figure: Any) -> None:
    axis = figure.subplots()
    for line in block.lines:
        look = LOOKS[line.key]
        axis.plot(
            *zip(*line.points, strict=True),
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=3,
            label=plain(line.words),
        )
    for level in block.levels:
        look = LOOKS[level.key]
        axis.axhline(level.value, color=look.colour, linestyle=look.line, label=plain(level.words))
    for moment, words in block.moments:
        axis.axvline(
            moment,
            color=INK,
            linestyle=(0, (1, 2)),
            linewidth=0.8,
            label=plain(f"{words} ({moment:g})"),
        )
    if block.logarithmic:
        axis.set_yscale("log")
    axis.set_xlabel(plain(block.x_name))
    axis.set_ylabel(plain(block.y_name))
    if len(block.lines) + len(block.levels) + len(block.moments) > 1:
        axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _matrices(block: Matrices, figure: Any) -> None:
    for axis, panel in zip(
        figure.subplots(1, len(block.panels), squeeze=False)[0], block.panels, strict=True
    ):
        size = len(panel.values)
        axis.imshow(panel.values.numpy(), cmap=amounts(), vmin=0, vmax=block.most)
        axis.set_title(plain(f"{panel.title}\n{panel.subtitle}"), loc="left", fontsize=9)
        axis.set_xticks(range(size))
        axis.set_yticks(range(size))
        axis.tick_params(length=0)
        if size <= 8:
            for row, line in enumerate(panel.values.tolist()):
                for column, value in enumerate(line):
                    axis.text(
                        column,
                        row,
                        f"{value:.2f}",
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white" if value > block.most / 2 else INK,
                    )


def _maps(block: Maps, figure: Any) -> None:
    from matplotlib.colors import Normalize, PowerNorm

    heights = [max(1, len(panel.row_names)) for panel in block.panels]
    axes = (
        figure.subplots(1, len(block.panels), squeeze=False)[0]
        if block.square
        else figure.subplots(
            len(block.panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights}
        )[:, 0]
    )
    for axis, panel in zip(axes, block.panels, strict=True):
        rows, columns = panel.values.shape
        left, top = panel.first_column - 0.5, panel.first_row - 0.5
        image = axis.imshow(
            panel.values.nan_to_num().numpy(),
            aspect="equal" if block.square else "auto",
            interpolation="nearest",
            cmap=CHANGE if block.changes else amounts(),
            norm=Normalize(-block.most, block.most)
            if block.changes
            else PowerNorm(0.5, 0, block.most),
            extent=(left, left + columns, top + rows, top),
        )
        for outline in panel.outlines:
            across, down = zip(*(*outline, outline[0]), strict=True)
            axis.plot(
                [left + x for x in across], [top + y for y in down], color=OUTLINE, linewidth=1
            )
        axis.set_title(plain(panel.title), loc="left")
        if panel.row_names:
            axis.set_yticks(range(rows), map(plain, panel.row_names), fontsize=7)
            axis.tick_params(axis="y", length=0)
        else:
            axis.set_ylabel(plain(block.down))
    for axis in axes if block.square else axes[-1:]:
        axis.set_xlabel(plain(block.across))
    figure.colorbar(image, ax=list(axes), fraction=0.03, pad=0.01)


DRAWERS: dict[type, Any] = {
    Bars: _bars,
    Groups: _groups,
    Intervals: _intervals,
    Lines: _lines,
    Matrices: _matrices,
    Maps: _maps,
}
