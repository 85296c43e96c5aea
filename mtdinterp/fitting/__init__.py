"""Which estimator explains given predictions: every family's constants fitted to them, KL(given ‖
estimator).

The predictions may be a model's or anybody's.
"""

from mtdinterp.fitting.descent import (
    beta_of_theory,
    fit_beta,
    one_step_weights,
    optimal_beta,
    usual_beta,
)
from mtdinterp.fitting.evidence import EXPLAINED, Evidence, explained
from mtdinterp.fitting.families import FAMILIES, WORDS, Constants, Family
from mtdinterp.fitting.two_step import RESOLUTION, Combination, fit_two_step, identify_combinations

__all__ = [
    "EXPLAINED",
    "FAMILIES",
    "RESOLUTION",
    "WORDS",
    "Combination",
    "Constants",
    "Evidence",
    "Family",
    "beta_of_theory",
    "explained",
    "fit_beta",
    "fit_two_step",
    "identify_combinations",
    "one_step_weights",
    "optimal_beta",
    "usual_beta",
]
