"""The methods that figures compare: their labels in legends, and how a table of them is drawn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mtdinterp.plotting import draw_method
from mtdinterp.registry import ESTIMATORS
from mtdinterp.reproduce.figure import Row, rows_where

LABELS = {
    "model": "trained, disentangled",
    "standard": "trained, standard",
    "construction": "one-step construction",
}
"""Labels of the methods that are not registered estimators."""
X_FACTORS = {"model": 0.955, "standard": 1.045}
"""Factors on a logarithmic x axis that separate trained models from methods they coincide with."""


def method_of(architecture: str) -> str:
    """The method under which a trained model of an architecture is drawn."""
    return architecture if architecture in LABELS else "model"


def label_of(method: str) -> str:
    """The label of a method in legends: an estimator's own, or the one in the table."""
    if method in LABELS:
        return LABELS[method]
    return ESTIMATORS[method].label


def draw_methods(
    axis: Any,
    rows: Iterable[Row],
    methods: Sequence[str],
    x: str,
    y: str,
    error: str,
    x_factors: Mapping[str, float] = X_FACTORS,
) -> None:
    """Draw a line with error bars for every method that occurs in the rows.

    Args:
        axis: the matplotlib axes.
        rows: rows of a figure's table, each with a "method".
        methods: the methods to draw, in the order of the legend.
        x: the column with the x value.
        y: the column with the y value.
        error: the column with the standard error of y.
        x_factors: factors on x by method, to separate points that would overlap.
    """
    rows = list(rows)
    for method in methods:
        some = rows_where(rows, method=method)
        points = [(row[x], row[y], row[error]) for row in some]
        draw_method(axis, method, points, label_of(method), x_factors.get(method, 1.0))
