"""How an architecture carries out an algorithm: formula to weights, sites and readings.

One file per pair of algorithm and architecture, found by listing this package. Each construction
is exact at the last position of a sequence exactly as long as its tables, because the masks are
relative; the models are marked `exact_length` and refuse other lengths.
"""

from mtdinterp.algorithms.k_steps import KStepConstants, tune_k_step
from mtdinterp.algorithms.two_step import tune_two_step
from mtdinterp.construction.base import Implementation, LayerRole, implementation_for
from mtdinterp.construction.k_steps_disentangled import k_step
from mtdinterp.construction.one_step_disentangled import one_step
from mtdinterp.construction.one_step_standard import one_step_standard
from mtdinterp.construction.two_step_disentangled import two_step
from mtdinterp.construction.varied_one_step import (
    leaky_lag_mass,
    leaky_one_step,
    token_weighted_one_step,
)

__all__ = [
    "Implementation",
    "KStepConstants",
    "LayerRole",
    "implementation_for",
    "k_step",
    "leaky_lag_mass",
    "leaky_one_step",
    "one_step",
    "one_step_standard",
    "token_weighted_one_step",
    "tune_k_step",
    "tune_two_step",
    "two_step",
]
