"""How pictures look, in one place: the same colour, line and mark for the same thing in every
figure and page.

Colours differ in lightness, and lines in dashes and marks, so that greyscale keeps them apart.
Nothing heavy is imported before it is needed: the command line asks for names of files before it
starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

FORMATS = (".png", ".pdf", ".svg")
INK, FAINT = "#333333", "#d4d4d8"
PAIR = ("#9ca3af", "#1d4ed8")
"""Before and after."""
SEQUENTIAL = ("#ffffff", "#08306b")
"""From none to all, for probabilities: darker is more."""
OUTLINE = "#ea580c"
"""Around what counts in a map."""
CHANGE = "RdBu"
"""For changes: the lightest is none, blue up, red down; in greyscale any change is dark, and the
table has its sign."""

MATPLOTLIB = {
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


class Style(NamedTuple):
    """How one method is drawn; `marker` and `line` in matplotlib's spelling."""

    colour: str
    marker: str
    line: str


Look = Style


def derived_style(name: str) -> Style:
    return Style("#777777", "o", "-")


LOOKS = {
    "truth": Look(INK, "", "-"),
    "before": Look(PAIR[0], "", "-"),
    "model": Look("#c2410c", "o", "-"),
    "standard": Look("#f59e0b", "s", "-"),
    "construction": Look("#7c3aed", "D", "--"),
    "uniform": Look("#9ca3af", "", ":"),
    "one_step": Look("#1d4ed8", "^", "--"),
    "one_step_theory": Look("#0891b2", "v", ":"),
    "mirror_descent_2": Look("#2563eb", "v", "-."),
    "mirror_descent_3": Look("#3b82f6", "<", "-."),
    "mirror_descent_4": Look("#60a5fa", ">", "-."),
    "mirror_descent_5": Look("#93c5fd", "p", "-."),
    "maximum_likelihood": Look("#15803d", "X", ":"),
    "entropic": Look("#4ade80", "P", "-"),
    "exact_bayes": Look("#111827", "*", "-"),
    "two_step_construction": Look("#a78bfa", "d", "--"),
    "early_stopped": Look("#0e7490", "h", "-."),
    "entropic_written": Look("#9f1239", "x", ":"),
}
"""The truth, a model before its edits, a trained model (disentangled, or any), a trained standard
one, the exact constructions, and every estimator."""
SHADES = (
    Look("#111827", "o", "-"),
    Look("#4b5563", "s", "--"),
    Look("#6b7280", "^", "-."),
    Look("#9ca3af", "v", ":"),
    Look("#c4c8cf", "D", "-"),
)
"""For several of one kind that is no method: lags, bounds."""

UNDATED = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""The same picture is the same file, whenever it is drawn."""


def amounts() -> Any:
    """The colour map of probabilities."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("amounts", SEQUENTIAL)


@contextmanager
def styled(width: float, height: float, path: Path) -> Iterator[Any]:
    """A figure in the project's style, written to `path` at the end; no window, and nobody else's
    figures touched."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    check_figure_path(path)
    with mpl.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata=UNDATED.get(path.suffix))


def plain(words: str) -> str:
    """Words in which a dollar sign is one: matplotlib would read a formula, and names may hold
    anything."""
    return words.replace("$", r"\$")


def check_figure_path(path: Path) -> Path:
    if path.suffix not in FORMATS:
        raise ValueError(
            f"expected a file that ends in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got "
            f"{str(path)!r}"
        )
    return path
