"""Uniform weights: the estimate before any evidence, and the control for "it infers weights"."""

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.estimators.base import Estimator
from mtdinterp.evidence import Evidence
from mtdinterp.plugins import register_estimator
from mtdinterp.style import Style


@register_estimator
class Uniform(Estimator):
    """1/m for every component."""

    name, label = "uniform", "uniform weights"
    in_context = False
    rank = 0
    style = Style("#9ca3af", "", ":")

    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        return evidence.uniform
