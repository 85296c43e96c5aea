"""Which learning rate did the model learn? β = η·m·(T-m), read at three levels that know nothing of each other.

Weights: what the last layer reads times what layer 1 writes, a multiple β_w of the identity in the construction; layer
1 need not attend to the lags alone, so its gain turns β_w into an effective β. Attention: how fast the last layer's
log-attention grows with the mean responsibilities. Outputs: the one-step mirror descent nearest to the predictions.
A five-layer model has four constants instead, of which only some combinations can be told from its predictions.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.estimators import TwoStepConstants, tune_learning_rate
from mtdinterp.fitting import (
    Combination,
    Constants,
    Evidence,
    beta_of_theory,
    fit_beta,
    fit_two_step,
    identify_combinations,
    one_step_weights,
)
from mtdinterp.metrics import clip_to_distribution
from mtdinterp.models import LensTransformer
from mtdinterp.readout import predictions, read, some_to_read, weight_beta
from mtdinterp.task import MTDTask

CLEAR = 0.5
"""A level says something where it explains at least this share of the variance."""


@dataclass(frozen=True)
class TwoStepFit:
    """Constants of the two-step construction that explain the model's predictions best."""

    constants: TwoStepConstants
    stderr: Constants
    combinations: tuple[Combination, ...]
    """Combinations of the constants (each over its natural size), from best to worst known."""

    def summary(self) -> str:
        sizes = ", ".join(f"{name} = {value:.3g} ± {self.stderr[name]:.2g}"
                          for name, value in self.constants._asdict().items())
        known = sum(combination.identified for combination in self.combinations)
        lines = [f"Two-step construction nearest to the predictions: {sizes}.",
                 f"  {known} of {len(self.combinations)} combinations of these, each over its size, are identified:"]
        for combination in self.combinations:
            terms = " ".join(f"{value:+.2f}·{name}" for name, value in combination.coefficients.items()
                             if abs(value) >= 0.1)
            verdict = "identified" if combination.identified else "not identified"
            lines.append(f"    {terms} = {combination.value:.3g} ± {combination.stderr:.2g}  ({verdict})")
        return "\n".join(lines)


@dataclass(frozen=True)
class BetaRecovery:
    """β at three levels, each with how much it explains; not a number where a level does not apply."""

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
    """Share of the predictions' distance from the uniform-weights prediction that one-step mirror descent explains."""
    optimal: float
    """β of one-step mirror descent tuned to the truth for this task and length."""
    theory: float
    """m(T-m)/(αm+1), where one step agrees with the posterior mean to first order."""
    two_step: TwoStepFit | None
    """Only for models of five layers or more."""

    def summary(self) -> str:
        lines = ["β = η·m·(T-m), by level:"]
        if math.isnan(self.weights):
            lines.append("  weights     does not apply: no block holds the averaged lags")
        else:
            lines.append(f"  weights     {self.weights:.2f} = {self.weights_raw:.2f} × gain {self.gain:.3f} "
                         f"(R² {self.weights_r2:.3f})")
        lines += [f"  attention   {self.attention:.2f} ± {self.attention_stderr:.2f} (R² {self.attention_r2:.3f})",
                  f"  output      {self.output:.2f} ± {self.output_stderr:.2f} (R² {self.output_r2:.3f})",
                  f"  optimum for this task and length {self.optimal:.2f}; first-order theory {self.theory:.2f}"]
        unclear = [name for name, r2 in (("attention", self.attention_r2), ("output", self.output_r2))
                   if not r2 >= CLEAR]
        if unclear:
            lines.append(f"  By {' and '.join(unclear)} the evidence is weak: this model may not do one step of "
                         "mirror descent at all.")
        if self.branch == "undecided":
            lines.append("  The gain explains too little to multiply with: the weights level means nothing here.")
        if self.two_step is not None:
            lines.append(self.two_step.summary())
        return "\n".join(lines)


def recover_beta(
    model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"] | None = None, *,
    n_sequences: int = 1024, seed: int = 0,
) -> BetaRecovery:
    """β at three levels, on given sequences or on `n_sequences` drawn from the task."""
    if tokens is None:
        tokens = task.sample(n_sequences, model.config.length, seed).tokens
    tokens = model.check_tokens(tokens)
    reading = read(model, task, some_to_read(tokens))
    raw = weight_beta(model, task.order)
    evidence, given = Evidence(task, tokens), predictions(model, tokens)
    beta = fit_beta(evidence, given)
    return BetaRecovery(
        weights=raw.value * reading.gain.value, weights_raw=raw.value, weights_r2=raw.r2,
        gain=reading.gain.value, gain_r2=reading.gain.r2, branch=reading.branch,
        attention=reading.beta.value, attention_stderr=reading.beta.stderr, attention_r2=reading.beta.r2,
        output=beta, output_stderr=_stderr(evidence, given, beta), output_r2=_explained(evidence, given, beta),
        optimal=tune_learning_rate(task, tokens.shape[1]).beta,
        theory=beta_of_theory(task, tokens.shape[1]),
        two_step=_fit_two_step(evidence, given) if len(model.blocks) >= 5 else None,
    )


def _stderr(evidence: Evidence, given: Float64[Tensor, "batch vocab"], beta: float) -> float:
    """Spread of the divergence's slope over sequences, through its mean curvature."""
    step = 1e-2 * max(beta, 0.1)
    low, here, high = (evidence.divergence(given, one_step_weights(evidence, beta + shift))
                       for shift in (-step, 0.0, step))
    slope, curvature = (high - low) / (2 * step), ((high - 2 * here + low) / step**2).mean().item()
    if curvature <= 0:
        return math.nan
    return slope.std().item() / len(slope) ** 0.5 / curvature


def _explained(evidence: Evidence, given: Float64[Tensor, "batch vocab"], beta: float) -> float:
    """Of the squared distance from the uniform-weights prediction, the share that one step at β removes."""
    prediction = clip_to_distribution(given)[0]
    uniform, fitted = (evidence.predict(one_step_weights(evidence, value)) for value in (0.0, beta))
    total = (prediction - uniform).square().sum().item()
    return 1 - (prediction - fitted).square().sum().item() / total if total > 0 else 0.0


def _fit_two_step(evidence: Evidence, given: Float64[Tensor, "batch vocab"]) -> TwoStepFit:
    constants = fit_two_step(evidence, given)
    stderr, combinations = identify_combinations(evidence, given, constants)
    return TwoStepFit(constants, stderr, combinations)
