"""Parts that several figures draw: lines in the one style, maps of probabilities, a legend beside
the panels."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mtdinterp.fitting import WORDS
from mtdinterp.reproduce.figure import Row
from mtdinterp.style import FAINT, INK, LOOKS, amounts

NAMES = {
    **WORDS,
    "model": "trained, disentangled",
    "standard": "trained, standard",
    "construction": "one-step construction",
    "one_step": "one-step mirror descent",
    **{f"mirror_descent_{steps}": f"{steps}-step mirror descent" for steps in (2, 3, 4, 5)},
    "one_step_theory": "one-step at η = 1/(m+1)",
    "exact_bayes": "exact posterior mean",
    "two_step_construction": "two-step construction",
}
"""What legends call the methods."""
ASIDE = {"model": 0.955, "standard": 1.045}
"""Factors on a logarithmic axis: trained models beside what they are compared with."""


def line(
    axis: Any,
    method: str,
    points: Sequence[tuple[float, float, float]],
    label: str | None = None,
    aside: float = 1.0,
) -> None:
    """One method: (x, y, standard error of y), moved aside by a factor on x. Constructions are
    hollow and large: methods that coincide, as the paper says they do, all stay visible."""
    if not points:
        return
    look, hollow = LOOKS[method], "construction" in method
    x, y, errors = zip(*points, strict=True)
    axis.errorbar(
        [value * aside for value in x],
        y,
        errors,
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        label=label or NAMES[method],
        markerfacecolor="none" if hollow else look.colour,
        markersize=8 if hollow else 7 if look.marker == "*" else 4.5,
        linewidth=1.3,
        elinewidth=1,
        capsize=2,
    )


def lines(
    axis: Any,
    rows: Iterable[Row],
    methods: Sequence[str],
    x: str,
    y: str,
    error: str,
    aside: Mapping[str, float] = ASIDE,
) -> None:
    """Every method that the rows have, in the given order."""
    rows = list(rows)
    for method in methods:
        line(
            axis,
            method,
            [(row[x], row[y], row[error]) for row in rows if row["method"] == method],
            aside=aside.get(method, 1.0),
        )


def lengths_axis(axis: Any, lengths: Sequence[int]) -> None:
    """Doubling lengths, each named."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [str(length) for length in lengths])
    axis.minorticks_off()
    axis.set_xlabel("sequence length T (tokens)")


def kl_axis(axis: Any) -> None:
    """Logarithmic, with a few plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def grid(axis: Any) -> None:
    axis.grid(True, color=FAINT, linewidth=0.5)
    axis.set_axisbelow(True)


def legend_below(figure: Any, axes: Iterable[Any], columns: int) -> None:
    """One legend for all panels, each name once, where it can hide nothing."""
    handles: dict[str, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=columns)


def probability_map(axis: Any, values: Any, largest: float = 1.0, root: bool = False) -> Any:
    """A map of probabilities from white to dark blue, from 0 to the largest; by the square root if
    asked."""
    from matplotlib.colors import PowerNorm

    scale = PowerNorm(0.5 if root else 1.0, 0, largest)
    image = axis.imshow(values, cmap=amounts(), norm=scale, interpolation="nearest")
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set(visible=True, color=FAINT)
    return image


def write_cells(axis: Any, values: Any, largest: float) -> None:
    """The number in every cell of a small map."""
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
