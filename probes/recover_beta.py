"""Which learning rate did the model learn? β = η·m·(T-m), read at three levels that know nothing of
each other.

Weights: what the last layer reads times what layer 1 writes, a multiple β_w of the identity in the
construction; layer 1 need not attend to the lags alone, so its gain turns β_w into an effective β.
Attention: how fast the last layer's log-attention grows with the mean responsibilities. Outputs:
the one-step mirror descent nearest to the predictions. A five-layer model has four constants
instead, of which only some combinations can be told from its predictions.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.estimators import TwoStepConstants
from mtdinterp.fitting import (
    EXPLAINED,
    FAMILIES,
    Combination,
    Constants,
    Evidence,
    beta_of_theory,
    explained,
    fit_beta,
    fit_two_step,
    identify_combinations,
    one_step_weights,
    optimal_beta,
)
from mtdinterp.metrics import clip_to_distribution
from mtdinterp.models import LensTransformer
from mtdinterp.readout import CLEAR_R2, predictions, read, sequences, some_to_read, weight_beta
from mtdinterp.task import MTDTask

FLAT = 1e-8
"""Mean squared distance from the uniform-weights prediction below which there is nothing to
explain."""


@dataclass(frozen=True)
class TwoStepFit:
    """Constants of the two-step construction that explain the model's predictions best."""

    constants: TwoStepConstants
    stderr: Constants
    combinations: tuple[Combination, ...]
    """Combinations of the constants (each over its natural size), from best to worst known."""
    explained: float
    """Share of the predictions' divergence from the token marginal that the construction explains.
    """

    def summary(self) -> str:
        if self.explained < EXPLAINED:
            return (
                f"No constants of the two-step construction explain the predictions (at best "
                f"{max(0.0, self.explained):.0%})."
            )
        sizes = ", ".join(
            f"{name} = {value:.3g} ± {self.stderr[name]:.2g}"
            for name, value in self.constants._asdict().items()
        )
        known = sum(combination.identified for combination in self.combinations)
        lines = [
            f"Two-step construction nearest to the predictions ({self.explained:.1%} explained): "
            f"{sizes}.",
            f"  {known} of {len(self.combinations)} combinations of these, each over its size, are "
            "identified:",
        ]
        for combination in self.combinations:
            terms = " ".join(
                f"{value:+.2f}·{name}"
                for name, value in combination.coefficients.items()
                if abs(value) >= 0.1
            )
            verdict = "identified" if combination.identified else "not identified"
            lines.append(
                f"    {terms} = {combination.value:.3g} ± {combination.stderr:.2g}  ({verdict})"
            )
        return "\n".join(lines)


@dataclass(frozen=True)
class BetaRecovery:
    """β at three levels, each with how much it explains; not a number where a level does not
    apply."""

    weights: float
    """weights_raw · gain: the effective β."""
    weights_raw: float
    weights_r2: float
    gain: float
    gain_r2: float
    branch: str
    attention: float
    attention_stderr: float
    attention_r2: float
    output: float
    output_stderr: float
    output_r2: float
    """Share of the predictions' squared distance from the uniform-weights prediction that one step
    at β explains."""
    optimal: float
    """β of one-step mirror descent tuned to the truth for this task and length."""
    theory: float
    """m(T-m)/(αm+1), where one step agrees with the posterior mean to first order."""
    two_step: TwoStepFit | None
    """Only for models of five layers or more."""

    @property
    def unclear(self) -> list[str]:
        """Levels at which R² is too low to speak of a β."""
        levels = {
            "weights": self.weights_r2,
            "attention": self.attention_r2,
            "output": self.output_r2,
        }
        return [name for name, r2 in levels.items() if r2 < CLEAR_R2]

    def summary(self) -> str:
        lines = ["β = η·m·(T-m), by level:"]
        if math.isnan(self.weights):
            lines.append(
                "  weights     does not apply: it is for three layers with a block of averaged lags"
            )
        else:
            lines.append(
                f"  weights     {self.weights:.2f} = {self.weights_raw:.2f} × gain {self.gain:.3f} "
                f"(R² {self.weights_r2:.3f})"
            )
        lines += [
            f"  attention   {self.attention:.2f} ± {self.attention_stderr:.2f} (R² "
            f"{self.attention_r2:.3f})",
            f"  output      {self.output:.2f} ± {self.output_stderr:.2f} (R² {self.output_r2:.3f})",
            f"  optimum for this task and length {self.optimal:.2f}; first-order theory "
            f"{self.theory:.2f}",
        ]
        if self.unclear:
            lines.append(
                f"  By {' and '.join(self.unclear)} the evidence is weak: this model may not do "
                "one step of "
                "mirror descent at all."
            )
        if self.branch == "undecided":
            lines.append(
                "  The gain explains too little to multiply with: the weights level means nothing "
                "here."
            )
        if self.two_step is not None:
            lines.append(self.two_step.summary())
        return "\n".join(lines)


def recover_beta(
    model: LensTransformer,
    task: MTDTask,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 1024,
    seed: int = 0,
) -> BetaRecovery:
    """β at three levels, on given sequences or on `n_sequences` drawn from the task.

    With several heads a layer, attention is the mean over them.
    """
    sequence = sequences(model, task, tokens, n_sequences, seed)
    reading = read(model, task, some_to_read(sequence))
    raw = weight_beta(model, task.order)
    evidence, given = Evidence(task, sequence), predictions(model, sequence)
    beta = fit_beta(evidence, given)
    return BetaRecovery(
        weights=raw.value * reading.gain.value,
        weights_raw=raw.value,
        weights_r2=raw.r2,
        gain=reading.gain.value,
        gain_r2=reading.gain.r2,
        branch=reading.branch,
        attention=reading.beta.value,
        attention_stderr=reading.beta.stderr,
        attention_r2=reading.beta.r2,
        output=beta,
        output_stderr=_stderr(evidence, given, beta),
        output_r2=_explained(evidence, given, beta),
        optimal=optimal_beta(task, evidence.length),
        theory=beta_of_theory(task, evidence.length),
        two_step=_fit_two_step(evidence, given) if len(model.blocks) >= 5 else None,
    )


def _stderr(evidence: Evidence, given: Float64[Tensor, "batch vocab"], beta: float) -> float:
    """Spread of the divergence's slope over sequences, through its mean curvature."""
    step = 1e-2 * max(abs(beta), 0.1)
    low, here, high = (
        evidence.divergence(given, one_step_weights(evidence, beta + shift))
        for shift in (-step, 0.0, step)
    )
    slope, curvature = (high - low) / (2 * step), ((high - 2 * here + low) / step**2).mean().item()
    if curvature <= 0:
        return math.nan
    return slope.std().item() / len(slope) ** 0.5 / curvature


def _explained(evidence: Evidence, given: Float64[Tensor, "batch vocab"], beta: float) -> float:
    """Of the squared distance from the uniform-weights prediction, the share that one step at β
    removes."""
    prediction = clip_to_distribution(given)[0]
    uniform, fitted = (evidence.predict(one_step_weights(evidence, value)) for value in (0.0, beta))
    total, left = (
        (prediction - formula).square().sum(-1).mean().item() for formula in (uniform, fitted)
    )
    return (total - left) / (total + FLAT)


def _fit_two_step(evidence: Evidence, given: Float64[Tensor, "batch vocab"]) -> TwoStepFit:
    constants = fit_two_step(evidence, given)
    stderr, combinations = identify_combinations(evidence, given, constants)
    weights = FAMILIES["two_step_construction"].weights(evidence, constants._asdict())
    return TwoStepFit(constants, stderr, combinations, explained(evidence, given, weights))
