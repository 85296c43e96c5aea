"""Colours, markers and line styles: a method looks the same in every figure and on every page.

Colours differ in lightness, and lines differ in dashes and markers, so that figures stay readable
in greyscale. Nothing heavy is imported here. Drawing is left to `mtdinterp.plotting` (matplotlib)
and `mtdinterp.pages.svg`.
"""

import zlib
from typing import NamedTuple

INK = "#333333"
"""Text and axes."""
FAINT = "#d4d4d8"
"""Grid lines and frames."""
PAIR = ("#9ca3af", "#1d4ed8")
"""Before and after an intervention."""
SEQUENTIAL = ("#ffffff", "#08306b")
"""Probabilities from 0 to 1: darker is larger."""
OUTLINE = "#ea580c"
"""The outline around the relevant cells of a heat map."""
CHANGE = "RdBu"
"""Matplotlib's colour map for changes: blue is an increase, red a decrease, white no change.

In greyscale, every change is dark; its sign is in the table next to the map."""


class Style(NamedTuple):
    """How one object is drawn."""

    colour: str
    """A hexadecimal colour, such as "#1d4ed8"."""
    marker: str
    """A matplotlib marker, or "" for none."""
    line: str
    """A matplotlib line style: "-", "--", "-." or ":"."""


STYLES = {
    "truth": Style(INK, "", "-"),
    "before": Style(PAIR[0], "", "-"),
    "after": Style("#c2410c", "o", "-"),
    "model": Style("#c2410c", "o", "-"),
    "standard": Style("#f59e0b", "s", "-"),
    "construction": Style("#7c3aed", "D", "--"),
    "early_stopped": Style("#0e7490", "h", "-."),
    "entropic_written": Style("#9f1239", "x", ":"),
    "series_1": Style("#c2410c", "o", "-"),
    "series_2": Style("#0f766e", "s", "-"),
    "series_3": Style("#7e22ce", "^", "-"),
    "series_4": Style("#65a30d", "D", "-"),
    "series_5": Style("#be185d", "v", "-"),
    "series_6": Style("#78716c", "o", "--"),
    "series_7": Style("#b45309", "s", "--"),
    "series_8": Style("#155e75", "^", "--"),
}
"""Styles of everything that is not a registered estimator.

"before" and "after" are the two sides of an edit, "model" is any trained model, and "standard" is a
trained standard transformer where the two architectures are compared. "series_1" and so on are
groups of trained models that differ in any setting."""
MOST_SERIES = 8
"""More groups of models than this cannot be told apart in one chart."""

SHADES = (
    Style("#111827", "o", "-"),
    Style("#4b5563", "s", "--"),
    Style("#6b7280", "^", "-."),
    Style("#9ca3af", "v", ":"),
    Style("#c4c8cf", "D", "-"),
)
"""For several lines of one kind that are not methods, such as lags or bounds."""

PALETTE = (
    "#b45309",
    "#be185d",
    "#4d7c0f",
    "#0f766e",
    "#6d28d9",
    "#0369a1",
    "#a21caf",
    "#475569",
)
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "*")
LINES = ("-", "--", "-.", ":")


def style_of(name: str) -> Style:
    """The style of a method: its table entry, its estimator's own style, or one derived from it."""
    # Estimators import torch, and this module must stay cheap to import.
    from mtdinterp.registry import ESTIMATORS

    if name in STYLES:
        return STYLES[name]
    if name in ESTIMATORS and ESTIMATORS[name].style is not None:
        return ESTIMATORS[name].style
    return derived_style(name)


def derived_style(name: str) -> Style:
    """A default style that depends on the name alone, the same in every process."""
    # Python's hash() of a string differs between processes; a checksum does not.
    rest = zlib.crc32(name.encode())
    rest, colour = divmod(rest, len(PALETTE))
    rest, marker = divmod(rest, len(MARKERS))
    line = rest % len(LINES)
    return Style(PALETTE[colour], MARKERS[marker], LINES[line])
