"""Formula to weights: transformers that compute an estimator exactly.

Each is exact at the last position of a sequence exactly as long as its tables, because the masks
are relative; the models are marked `exact_length` and refuse other lengths.
"""

from mtdinterp.construction.beside import construction_with, two_step_delta
from mtdinterp.construction.disentangled import one_step, two_step
from mtdinterp.construction.standard import one_step_standard
from mtdinterp.construction.tuning import tune_two_step

__all__ = [
    "construction_with",
    "one_step",
    "one_step_standard",
    "tune_two_step",
    "two_step",
    "two_step_delta",
]
