"""Matplotlib helpers: figures in one style, and the parts that several figures share.

Matplotlib is imported inside the functions, because the command line checks file names with this
module before any work starts. What a figure shows is left to `mtdinterp.figures`,
`mtdinterp.reproduce` and `mtdinterp.pages.pictures`; colours come from `mtdinterp.style`.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from mtdinterp.storage import write_file
from mtdinterp.style import FAINT, INK, SEQUENTIAL, style_of

FORMATS = (".png", ".pdf", ".svg")
SETTINGS = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "image.cmap": "cividis",
    "svg.hashsalt": "mtdinterp",
}
"""Matplotlib settings of all figures."""
UNDATED = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""Metadata without dates: the same figure gives the same file whenever it is drawn."""


def check_figure_path(path: Path) -> Path:
    """Return `path` if its suffix is a supported figure format; raise ValueError otherwise."""
    if path.suffix not in FORMATS:
        raise ValueError(
            f"expected a file that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got "
            f"{str(path)!r}"
        )
    return path


@contextmanager
def saved_figure(width: float, height: float, path: Path) -> Iterator[Any]:
    """An empty figure in the project's style, which is saved when the block ends.

    An older file is replaced only when the new one is complete.

    Args:
        width: width of the figure in inches.
        height: height of the figure in inches.
        path: the file to write; missing parent directories are created.

    Returns:
        A context manager that yields a `matplotlib.figure.Figure`.
    """
    check_figure_path(path)
    content = io.BytesIO()
    with rendered_figure(width, height, content, path.suffix) as figure:
        yield figure
    write_file(path, content.getvalue())


@contextmanager
def rendered_figure(
    width: float, height: float, content: io.BytesIO, suffix: str = ".png"
) -> Iterator[Any]:
    """An empty figure in the project's style, which is rendered in memory when the block ends.

    No window is opened, and matplotlib's global state (`pyplot`, `rcParams`) is left unchanged.

    Args:
        width: width of the figure in inches.
        height: height of the figure in inches.
        content: receives the bytes of the file.
        suffix: the format, one of `FORMATS`.

    Returns:
        A context manager that yields a `matplotlib.figure.Figure`.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(content, format=suffix[1:], metadata=UNDATED.get(suffix))


def literal(text: str) -> str:
    """Escape dollar signs: names may contain anything, and matplotlib would read a formula."""
    return text.replace("$", r"\$")


@cache
def probability_colours() -> Any:
    """The colour map of probabilities, from white to dark blue."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("amounts", SEQUENTIAL)


def draw_method(
    axis: Any,
    method: str,
    points: Sequence[tuple[float, float, float]],
    label: str,
    x_factor: float = 1.0,
) -> None:
    """Draw one method as a line with error bars.

    Constructions get large hollow markers, so that they stay visible where they coincide with the
    estimator that they implement.

    Args:
        axis: the matplotlib axes.
        method: the name whose style is used.
        points: (x, y, standard error of y) for each point; nothing is drawn if it is empty.
        label: the text in the legend.
        x_factor: all x are multiplied by it, to separate points that would overlap.
    """
    if not points:
        return
    style = style_of(method)
    hollow = "construction" in method
    x, y, errors = zip(*points, strict=True)
    axis.errorbar(
        [value * x_factor for value in x],
        y,
        errors,
        color=style.colour,
        marker=style.marker,
        linestyle=style.line,
        label=label,
        markerfacecolor="none" if hollow else style.colour,
        markersize=_marker_size(style.marker, hollow),
        linewidth=1.3,
        elinewidth=1,
        capsize=2,
    )


def _marker_size(marker: str, hollow: bool) -> float:
    if hollow:
        return 8
    # A star looks smaller than other markers of the same size.
    return 7 if marker == "*" else 4.5


def lengths_axis(axis: Any, lengths: Sequence[int]) -> None:
    """Give the x axis a base-2 logarithmic scale with one labelled tick per sequence length."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.minorticks_off()
    axis.set_xlabel("sequence length T (tokens)")


def kl_axis(axis: Any) -> None:
    """Give the y axis a logarithmic scale with a few ticks written as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def grid(axis: Any) -> None:
    """Draw a faint grid behind the data."""
    axis.grid(True, color=FAINT, linewidth=0.5)
    axis.set_axisbelow(True)


def legend_below(figure: Any, axes: Iterable[Any], columns: int) -> None:
    """Put one legend for all panels below them, with each label once.

    Args:
        figure: the matplotlib figure.
        axes: the panels whose labels are collected.
        columns: the number of columns of the legend.
    """
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def legend_right(axis: Any) -> None:
    """Put the legend to the right of the axes, where it hides no data."""
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def probability_map(axis: Any, values: Any, largest: float = 1.0, root: bool = False) -> Any:
    """Draw a heat map of probabilities, from white at 0 to dark blue at `largest`.

    Args:
        axis: the matplotlib axes.
        values: probabilities, [row, column].
        largest: the value of the darkest colour.
        root: colour by the square root, so that small probabilities stay visible.

    Returns:
        The matplotlib image, for a colour bar.
    """
    from matplotlib.colors import PowerNorm

    scale = PowerNorm(0.5 if root else 1.0, 0, largest)
    image = axis.imshow(values, cmap=probability_colours(), norm=scale, interpolation="nearest")
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set(visible=True, color=FAINT)
    return image


def write_cells(axis: Any, values: Any, largest: float) -> None:
    """Write the number into every cell of a small heat map.

    Args:
        axis: the axes that show the heat map.
        values: the numbers, [row, column], as a tensor or an array.
        largest: the value of the darkest colour; text on dark cells is white.
    """
    for row, entries in enumerate(values.tolist()):
        for column, value in enumerate(entries):
            axis.text(
                column,
                row,
                f"{value:.2f}".removeprefix("0"),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if value > 0.55 * largest else INK,
            )
