"""The algorithm with its variables laid open, so that one of them can be taken from another
sequence.

One step:   γ -> Γ = mean γ -> w = softmax(β·Γ) -> Σ_g w_g·π[y_{T-g}]. Two steps:  γ -> Γ -> w¹ =
softmax(β₁·Γ) -> Γ² = Σ_i softmax_i(-a·w¹·γ_i)·γ_i -> w = softmax(c₁·Γ + c₂·Γ²) -> the same.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.estimators import TwoStepConstants
from mtdinterp.fitting import Evidence, fit_beta, fit_two_step, identify_combinations
from mtdinterp.models import LensTransformer
from mtdinterp.readout import predictions
from mtdinterp.task import MTDTask

ONE_STEP = ("responsibilities", "mean_responsibilities", "weights")
TWO_STEP = ("responsibilities", "mean_responsibilities", "first_weights", "reweighted", "weights")
"""Variables in the order they are computed."""

Variables = dict[str, Tensor]
FITTED_ON, FITTING_SEED = 1024, 31


@dataclass(frozen=True)
class Algorithm:
    """One step with its β, or two with their four constants."""

    constants: TwoStepConstants | float
    identified: bool = True
    """Whether the predictions that the constants were fitted to determine all of them."""

    @property
    def variables(self) -> tuple[str, ...]:
        return ONE_STEP if isinstance(self.constants, float) else TWO_STEP

    def run(self, evidence: Evidence, given: Variables | None = None) -> Variables:
        """All variables on the evidence; those given are taken as they are, and what follows
        follows from them."""
        values: Variables = {}
        for name in self.variables:
            values[name] = (
                given[name] if given and name in given else self._compute(name, evidence, values)
            )
        return values

    def predict(
        self, evidence: Evidence, given: Variables | None = None
    ) -> Float64[Tensor, "batch vocab"]:
        return evidence.predict(self.run(evidence, given)["weights"])

    def _compute(self, name: str, evidence: Evidence, values: Variables) -> Tensor:
        if name == "responsibilities":
            return evidence.responsibilities
        if name == "mean_responsibilities":
            return values["responsibilities"].mean(1)
        mean = values["mean_responsibilities"]
        if isinstance(self.constants, float):
            return (self.constants * mean).softmax(-1)
        if name == "first_weights":
            return (self.constants.beta_first * mean).softmax(-1)
        if name == "reweighted":
            gamma = values["responsibilities"]
            explained = torch.einsum("btg,bg->bt", gamma, values["first_weights"])
            return torch.einsum(
                "bt,btg->bg", (-self.constants.sharpness * explained).softmax(-1), gamma
            )
        return (
            self.constants.beta_mean * mean + self.constants.beta_reweighted * values["reweighted"]
        ).softmax(-1)


def algorithm_of(model: LensTransformer, task: MTDTask, length: int, seed: int = 0) -> Algorithm:
    """The algorithm that the model's depth allows, with the constants that explain its predictions
    best.

    They are fitted to sequences of their own. A swap may depend on a combination of the four
    constants that predictions without swaps do not determine: then `identified` is False.
    """
    evidence = Evidence(task, task.sample(FITTED_ON, length, [FITTING_SEED, seed]).tokens)
    given = predictions(model, evidence.tokens)
    if len(model.blocks) < 5:
        return Algorithm(float(fit_beta(evidence, given)))
    constants = fit_two_step(evidence, given)
    _, combinations = identify_combinations(evidence, given, constants)
    return Algorithm(constants, all(combination.identified for combination in combinations))
