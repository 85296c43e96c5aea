"""The methods that figures compare: their labels in legends, and how a table of them is drawn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mtdinterp.plotting import draw_method
from mtdinterp.registry import ESTIMATORS
from mtdinterp.reproduce.figure import Row

LABELS = {
    "model": "trained, disentangled",
    "standard": "trained, standard",
    "construction": "one-step construction",
    "one_step": "one-step mirror descent",
    "mirror_descent_2": "2-step mirror descent",
    "mirror_descent_3": "3-step mirror descent",
    "mirror_descent_4": "4-step mirror descent",
    "mirror_descent_5": "5-step mirror descent",
    "one_step_theory": "one-step at η = 1/(m+1)",
    "exact_bayes": "exact posterior mean",
    "two_step_construction": "two-step construction",
}
"""Labels in legends, where they differ from the estimator's own label."""
X_FACTORS = {"model": 0.955, "standard": 1.045}
"""Factors on a logarithmic x axis that separate trained models from methods they coincide with."""


def label_of(method: str) -> str:
    """The label of a method in legends."""
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
        points = [(row[x], row[y], row[error]) for row in rows if row["method"] == method]
        draw_method(axis, method, points, label_of(method), x_factors.get(method, 1.0))
