"""Estimators that a transformer can implement, as variables that follow from each other.

One file per algorithm, found by listing this package. How an architecture carries one out is an
`Implementation`; those are in `mtdinterp.construction`.
"""

from mtdinterp.algorithms.base import Algorithm, Variable
from mtdinterp.algorithms.one_step import OneStep
from mtdinterp.algorithms.two_step import TwoStep, TwoStepConstants, reweighted_two_step

__all__ = [
    "Algorithm",
    "OneStep",
    "TwoStep",
    "TwoStepConstants",
    "Variable",
    "reweighted_two_step",
]
