"""Which learning rate did the model learn? β = η·m·N, read at three independent levels.

N is the number of positions with evidence: T-m on an MTD task.

- Weights: the last layer's reads times layer 1's writes are a multiple β_w of the identity in the
  construction. A trained layer 1 may also attend to positions other than the lags, so β_w times its
  gain is the effective β.
- Attention: the slope of the last layer's log-attention on the mean responsibilities Γ.
- Output: β of the one-step mirror descent nearest to the predictions.

A model that is deep enough for two steps has four constants instead. Its predictions determine only
some combinations of them.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.algorithms.precision import Combination, precision_of
from mtdinterp.algorithms.two_step import TwoStep, TwoStepConstants
from mtdinterp.checks import ArrayLike
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import CLEAR_R2, EXPLAINED, IDENTIFIED_TO, NEAR_OPTIMUM, NOTHING_MOVES
from mtdinterp.errors import CannotCompute, NotApplicable, NothingToTune
from mtdinterp.estimators import Constants, tune_learning_rate
from mtdinterp.estimators.mirror_descent import TunedRate, first_order_beta
from mtdinterp.estimators.optimum import Interval
from mtdinterp.evidence import Evidence
from mtdinterp.explanation import Explanation, explain
from mtdinterp.formatting import listed, r2_text, with_error
from mtdinterp.metrics import to_distribution
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Intervals, Level, Reading, Table, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import (
    Slope,
    attention_of,
    branch_of,
    probe_sequences,
    readable_sequences,
)
from mtdinterp.readings.mechanism import head_betas, head_paths, lag_offsets, strongest
from mtdinterp.readings.regression import NO_SLOPE
from mtdinterp.registry import ESTIMATORS
from mtdinterp.results import Result
from mtdinterp.tasks import Task

LEVEL_EVIDENCE = {
    "attention": "Slope of the last layer's log-attention on Γ",
    "output": "One-step mirror descent nearest to the predictions",
}
"""How β is measured, by level."""
NO_OFFSETS = (
    "this task has components that no single position shows, so attention to the lags cannot be "
    "read"
)
"""Why attention does not show β, nor the gain that the weights level needs."""
OTHER_ARCHITECTURE = "needs a disentangled transformer with three layers and one head per layer"
"""Why the weights do not show β on any other model."""
FLAT_OPTIMUM = "The optimum is flat, so no β can be called near to it or far from it"
"""What is said of a β next to a flat optimum."""


@dataclass(frozen=True)
class TwoStepFit:
    """Constants of the two-step construction that explain the model's predictions best."""

    constants: TwoStepConstants
    stderr: Constants
    combinations: tuple[Combination, ...]
    """Combinations of the constants (each over its natural size), from best to worst known."""
    explained: float
    """Share of how the predictions differ from those of uniform weights that the construction
    explains.
    """
    at_bound: tuple[str, ...]
    """Constants that ended on a bound of their range: the predictions do not determine them."""

    @property
    def n_identified(self) -> int:
        """How many combinations of the constants the predictions determine."""
        return sum(combination.identified for combination in self.combinations)

    def summary(self) -> str:
        """The constants, and which combinations of them are identified."""
        if self.explained < EXPLAINED:
            share = max(0.0, self.explained)
            return (
                "No constants of the two-step construction explain the predictions "
                f"(at best {share:.0%}; needed: {EXPLAINED:.0%})."
            )
        sizes = []
        for name, value in self.constants._asdict().items():
            bound = " (at the bound of its range)" if name in self.at_bound else ""
            sizes.append(f"{name} = {value:.3g} ± {self.stderr[name]:.2g}{bound}")
        lines = [
            f"Two-step construction nearest to the predictions ({self.explained:.1%} explained): "
            f"{', '.join(sizes)}.",
            f"  {self.n_identified} of {len(self.combinations)} combinations of the constants "
            "(each in units of its natural size) are identified, which means a standard error "
            f"below {IDENTIFIED_TO:g}:",
        ]
        for combination in self.combinations:
            terms = [
                f"{value:+.2f}·{name}"
                for name, value in combination.coefficients.items()
                if abs(value) >= 0.1
            ]
            verdict = "identified" if combination.identified else "not identified"
            lines.append(
                f"    {' '.join(terms)} = {combination.value:.3g} ± {combination.stderr:.2g} "
                f"({verdict})"
            )
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class BetaRecovery(Result):
    """β at three levels, each with how much it explains; NaN if a level does not apply."""

    weights: float
    """The effective β read from the weights: weights_raw · gain."""
    weights_raw: float
    """β_w, the slope of the product of layer 3's reads and layer 1's writes."""
    weights_r2: float
    gain: float
    """The slope on Γ of what layers 1 and 2 average together; 1 in the construction."""
    gain_r2: float
    branch: str
    """"direct", "mirrored" or "undecided", by the sign and the R² of the gain."""
    attention: float
    """The slope of the last layer's log-attention on Γ, for the carrying head."""
    attention_stderr: float
    attention_r2: float
    output: float
    """β of the one-step mirror descent nearest to the predictions."""
    output_stderr: float
    output_r2: float
    """Share of the predictions' squared distance from the uniform-weights prediction that one step
    at β explains."""
    output_at_bound: bool
    """Whether the search for the nearest β ended on a bound: the outputs do not determine it."""
    optimal: float
    """β of one-step mirror descent tuned to the truth for this task and length; at a flat optimum
    the geometric middle of the interval."""
    optimal_interval: Interval | None
    """β within one standard error of the optimum, with None for an open end; None if there is no
    optimum."""
    flat: bool
    """Whether the optimum is flat: every β of the interval predicts as well, so that no β can be
    compared with it."""
    no_optimum: str
    """Why there is no optimum, in one sentence; empty if there is one."""
    nothing_to_infer: bool
    """Whether predictions on this task do not depend on β at all."""
    no_weights: str
    """Why β cannot be read from the weights, in one clause; empty if it can."""
    no_attention: str
    """Why β cannot be read from attention, in one clause; empty if it can."""
    theory: float
    """m·N/(α·m+1), where one step agrees with the posterior mean to first order."""
    heads: tuple[Slope, ...]
    """β by attention for every head of the last layer."""
    carrier: int
    """The head of the last layer whose attention follows Γ best, from 1."""
    two_step: TwoStepFit | None
    """Only for models whose reference construction takes two steps."""
    n_read: int
    """Sequences whose attention was read, for the attention level and the gain."""
    n_fitted: int
    """Sequences that the output level was fitted on: those of the explanation."""

    @property
    def unclear(self) -> list[str]:
        """Levels whose R² is too low for a meaningful β."""
        levels = {
            "weights": self.weights_r2,
            "attention": self.attention_r2,
            "output": self.output_r2,
        }
        return [name for name, r2 in levels.items() if r2 < CLEAR_R2]

    def level_text(self, level: str) -> str:
        """β by attention or by output, with its standard error if it has one."""
        levels = {
            "attention": (self.attention, self.attention_stderr),
            "output": (self.output, self.output_stderr),
        }
        return with_error(*levels[level])

    def optimum_text(self) -> str:
        """The optimum with its interval, or that it is flat; "none" if there is no optimum."""
        if self.optimal_interval is None:
            return "none"
        return self.optimal_interval.text("β", self.optimal, self.flat)

    def optimum_sentence(self) -> str:
        """The optimum with its interval, or why there is none to compare with."""
        if self.no_optimum:
            return self.no_optimum
        if self.flat:
            return f"{FLAT_OPTIMUM} ({self.optimum_text()})."
        return (
            f"The optimum for this task and length is {self.optimum_text()}, with the "
            "range within one standard error in parentheses."
        )

    def unclear_sentence(self) -> str:
        """A warning about levels with a low R²; empty if there are none."""
        if not self.unclear:
            return ""
        return (
            f"R² by {listed(self.unclear)} is below {CLEAR_R2:g}: this model may not "
            "perform one step of mirror descent at all."
        )

    def head_sentence(self) -> str:
        """Which head of the last layer carries the weights; empty if there is only one."""
        if len(self.heads) == 1 or self.no_attention:
            return ""
        found = [
            f"head {number} {with_error(slope.value, slope.stderr)} (R² {r2_text(slope.r2)})"
            for number, slope in enumerate(self.heads, start=1)
        ]
        by_head = f"β by attention in the last layer: {', '.join(found)}."
        if not self.attention_r2 >= CLEAR_R2:
            return (
                f"{by_head} No head follows Γ with an R² of at least {CLEAR_R2:g}; head "
                f"{self.carrier}, the best one, is shown."
            )
        return (
            f"{by_head} Head {self.carrier} follows Γ best, so the attention level is read from "
            "that head."
        )

    def summary(self) -> str:
        lines = ["β = η·m·N (N: the number of positions with evidence), by level:"]
        if self.no_weights:
            lines.append(f"  weights     does not apply: {self.no_weights}")
        else:
            lines.append(
                f"  weights     {self.weights:.2f} = {self.weights_raw:.2f} × gain {self.gain:.3f} "
                f"(R² {self.weights_r2:.3f})"
            )
        bound = ", at the bound of its range" if self.output_at_bound else ""
        if self.no_attention:
            lines.append(f"  attention   does not apply: {self.no_attention}")
        else:
            lines.append(
                f"  attention   {self.level_text('attention')} (R² {r2_text(self.attention_r2, 3)}"
                f"{self._head_note('attention')})"
            )
        lines.append(
            f"  output      {self.level_text('output')} (R² {r2_text(self.output_r2, 3)}{bound}"
            f"{self._head_note('output')})"
        )
        if self.no_optimum:
            lines.append(f"  optimum     none: {self.no_optimum}")
        else:
            lines.append(f"  optimum for this task and length {self.optimum_text()}")
        if math.isfinite(self.theory):
            lines.append(f"  first-order theory {self.theory:.2f}")
        lines += [f"  {text}" for text in (self.head_sentence(), self.unclear_sentence()) if text]
        if self.branch == "undecided" and math.isfinite(self.gain):
            lines.append(
                "  The branch is undecided, so the gain and the weights level are not meaningful."
            )
        if self.two_step is not None:
            lines.append(self.two_step.summary())
        return "\n".join(lines)

    def origin_note(self) -> str:
        if self.n_read == self.n_sequences:
            return ""
        return f"β by attention on {self.n_read} of them"

    def claims(self) -> tuple[Claim, ...]:
        return (
            self._claim("attention", self.attention, self.attention_stderr, self.attention_r2),
            self._claim("output", self.output, self.output_stderr, self.output_r2),
        )

    def _claim(self, level: str, value: float, stderr: float, r2: float) -> Claim:
        distance = abs(value - self.optimal)
        reason = self._undecidable_reason(level, value)
        status = decide(distance <= NEAR_OPTIMUM * abs(self.optimal) and r2 >= CLEAR_R2)
        if reason:
            status = Status.UNDECIDABLE
        number = "—"
        if math.isfinite(value):
            away = "" if self.flat else _standard_errors_away(distance, stderr)
            number = f"{with_error(value, stderr)} (R² {r2_text(r2)}{away})"
        return Claim(
            claim=f"β read from the {level} is within {NEAR_OPTIMUM:.0%} of the optimum",
            status=status,
            evidence=LEVEL_EVIDENCE[level] + self._head_note(level),
            number=number,
            threshold=f"within {NEAR_OPTIMUM:.0%}, R² ≥ {CLEAR_R2:g}",
            control="—" if self.no_optimum else f"optimum {self.optimum_text()}",
            n_sequences=self.n_read if level == "attention" else self.n_fitted,
            seed=self.seed,
            reason=reason,
        )

    def _head_note(self, level: str) -> str:
        """Which heads a level is read from, appended to its description; empty for one head."""
        if len(self.heads) == 1:
            return ""
        return f", head {self.carrier}" if level == "attention" else ", all heads together"

    def _undecidable_reason(self, level: str, value: float) -> str:
        """Why β at a level cannot be compared with the optimum; empty if it can."""
        if self.two_step is not None:
            return "the optimum is for one step, and this model is deep enough for two"
        if self.no_optimum:
            return self.no_optimum
        if self.flat:
            return f"the optimum is {self.optimum_text()}, so no β can be compared with it"
        if level == "attention" and self.no_attention:
            return self.no_attention
        if level == "output" and self.output_at_bound:
            return "the fit ended at the bound of its range, so the outputs do not determine β"
        return ""

    def blocks(self) -> list[Block]:
        bound = ", at the bound" if self.output_at_bound else ""
        attention_note = f"R² {r2_text(self.attention_r2, 3)}{self._head_note('attention')}"
        output_note = f"R² {r2_text(self.output_r2, 3)}{bound}{self._head_note('output')}"
        readings = [
            Reading("attention", self.attention, self.attention_stderr, attention_note),
            Reading("output", self.output, self.output_stderr, output_note),
        ]
        if math.isfinite(self.weights):
            note = f"{self.weights_raw:.1f} × gain {self.gain:.3f}, R² {self.weights_r2:.3f}"
            readings.insert(0, Reading("weights", self.weights, math.nan, note))
        # The value at a flat optimum is not a level that readings should have.
        levels = [] if self.flat else [Level("one_step", "optimum", self.optimal)]
        levels.append(Level("one_step_theory", "first-order theory", self.theory))
        known = tuple(level for level in levels if math.isfinite(level.value))
        title = "β at each level (± standard error, bars 95%)"
        shown = tuple(reading for reading in readings if math.isfinite(reading.value))
        blocks: list[Block] = [Intervals(title, shown, known, "β")] if shown else []
        if len(self.heads) > 1 and not self.no_attention:
            blocks.append(self._head_table())
        sentences = [self.head_sentence(), self.unclear_sentence(), self.optimum_sentence()]
        sentences += [
            f"β by {level} does not apply: {reason}."
            for level, reason in (("weights", self.no_weights), ("attention", self.no_attention))
            if reason
        ]
        blocks.append(Text(tuple(text for text in sentences if text), "soft"))
        if self.two_step is not None:
            blocks += self._two_step_blocks(self.two_step)
        return blocks

    def _head_table(self) -> Table:
        """β by attention of every head of the last layer."""
        rows = []
        for number, slope in enumerate(self.heads, start=1):
            shown = "yes" if number == self.carrier else "no"
            beta = with_error(slope.value, slope.stderr)
            rows.append((f"head {number}", beta, r2_text(slope.r2), shown))
        return Table(("last layer", "β by attention", "R²", "shown above"), tuple(rows))

    def _two_step_blocks(self, fit: TwoStepFit) -> list[Block]:
        symbols = {constant.name: constant.symbol for constant in TwoStep.constants}
        rows = []
        for name, value in fit.constants._asdict().items():
            bound = " (at the bound)" if name in fit.at_bound else ""
            rows.append((symbols[name], f"{value:.3g}{bound}", f"{fit.stderr[name]:.2g}"))
        header = ("constant of the two-step construction", "nearest to the predictions", "± s.e.")
        text = (
            f"With these constants, the construction explains {fit.explained:.1%} of how the "
            f"predictions differ from those of uniform weights; {fit.n_identified} of "
            f"{len(fit.combinations)} combinations of the constants are identified (standard "
            f"error below {IDENTIFIED_TO:.0%} of the constants' natural size)."
        )
        return [Table(header, tuple(rows)), Text((text,), "soft")]


@register_probe(
    "recover_beta", label="Which learning rate did the model learn, at three levels?", rank=20
)
def recover_beta(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 1024,
    seed: int = 0,
    explanation: Explanation | None = None,
) -> BetaRecovery:
    """β at three levels.

    Args:
        model: any hooked model.
        task: the model's task.
        tokens: sequences [batch, pos] to probe on; drawn from the task if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.
        explanation: the model's explanation at this length, if already known. The output level
            is its fit, on its own sequences, so that no page shows two fits of one constant.

    Returns:
        β by weights, attention and outputs, next to the optimum and first-order theory.
    """
    sequence = probe_sequences(model, task, tokens, n_sequences, seed)
    if explanation is None or explanation.length != sequence.shape[1]:
        explanation = explain(model, task, tokens, n_sequences=n_sequences, seed=seed)
    evidence = task.evidence(explanation.tokens)
    given = explanation.predictions
    # The same sequences as in `recover_transition`, so that both show one gain.
    watched = readable_sequences(sequence)
    heads, gain = _attention_levels(model, task, watched)
    attention = strongest(heads)
    raw = NO_SLOPE
    if explanation.implementation is not None:
        raw = explanation.implementation.read(model, task).get("weights", NO_SLOPE)
    no_attention = NO_OFFSETS if lag_offsets(task) is None else ""
    beta, stderr, at_bound = _output_level(explanation, evidence)
    tuned, no_optimum, nothing_to_infer = _optimum(task, explanation.length)
    return BetaRecovery(
        weights=raw.value * gain.value,
        weights_raw=raw.value,
        weights_r2=raw.r2,
        gain=gain.value,
        gain_r2=gain.r2,
        branch=branch_of(gain),
        attention=attention.value,
        attention_stderr=attention.stderr,
        attention_r2=attention.r2,
        output=beta,
        output_stderr=stderr,
        output_r2=_share_of_movement(evidence, given, beta),
        output_at_bound=at_bound,
        optimal=math.nan if tuned is None else tuned.beta,
        optimal_interval=None if tuned is None else tuned.interval,
        flat=tuned is not None and tuned.flat,
        no_optimum=no_optimum,
        nothing_to_infer=nothing_to_infer,
        no_weights=_no_weights(explanation, raw, no_attention),
        no_attention=no_attention,
        theory=_theory(evidence),
        heads=tuple(heads),
        carrier=heads.index(attention) + 1,
        two_step=_two_step_fit(explanation),
        n_read=len(watched),
        n_fitted=explanation.n_sequences,
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


def _no_weights(explanation: Explanation, raw: Slope, no_attention: str) -> str:
    """Why β cannot be read from the weights; empty if it can.

    Args:
        explanation: the model's explanation.
        raw: β_w.
        no_attention: why attention cannot be read. The effective β is β_w times the gain, which
            is read from attention.

    Returns:
        The reason, as a clause.
    """
    if no_attention:
        return no_attention
    if explanation.no_implementation:
        sentence = explanation.no_implementation.rstrip(".")
        return sentence[0].lower() + sentence[1:]
    return OTHER_ARCHITECTURE if math.isnan(raw.value) else ""


def _standard_errors_away(distance: float, stderr: float) -> str:
    """A distance in standard errors, to be appended to a number; empty if it is unknown."""
    if not (stderr > 0 and math.isfinite(distance)):
        return ""
    n_errors = distance / stderr
    size = f"{n_errors:.1f}" if n_errors < 100 else "over 100"
    return f", {size} standard errors away"


def _attention_levels(
    model: LensTransformer, task: Task, tokens: Tensor
) -> tuple[list[Slope], Slope]:
    """β of every head of the last layer, and the gain of the strongest path to it."""
    evidence = task.evidence(tokens)
    last = len(model.blocks) - 1
    watched = attention_of(model, tokens, range(2) if last else (), [last])
    heads = head_betas(watched.log_at_last[last], task, evidence)
    if not last:
        return heads, NO_SLOPE
    paths = head_paths(watched.patterns[0], watched.patterns[1], task, evidence)
    return heads, strongest([path.gain for path in paths])


def _output_level(explanation: Explanation, evidence: Evidence) -> tuple[float, float, bool]:
    """β of the one-step mirror descent nearest to the outputs, its standard error, and whether it
    is at a bound.
    """
    one_step = ESTIMATORS["one_step"]
    if explanation.algorithm.name == one_step.name:
        fit = explanation.nearest
        stderr = explanation.stderrs["beta"]
    else:
        fit = one_step.fit(evidence, explanation.predictions)
        precision = precision_of(one_step, evidence, explanation.predictions, fit.constants)
        stderr = precision.stderrs["beta"]
    return fit.constants["beta"], stderr, bool(fit.at_bound)


def _optimum(task: Task, length: int) -> tuple[TunedRate | None, str, bool]:
    """β tuned to the truth, or None with the reason; and whether there is nothing to infer."""
    try:
        return tune_learning_rate(task, length), "", False
    except NothingToTune:
        reason = "every β gives the same predictions on this task, so there is nothing to infer"
        return None, reason, True
    except CannotCompute as error:
        return None, str(error), False


def _theory(evidence: Evidence) -> float:
    try:
        return first_order_beta(evidence)
    except NotApplicable:
        return math.nan


def _share_of_movement(
    evidence: Evidence, predictions: Float64[Tensor, "batch vocab"], beta: float
) -> float:
    """The share of the squared distance from the uniform-weights prediction that β removes."""
    given = to_distribution(predictions)
    fitted = ESTIMATORS["one_step"].predict(evidence, beta=beta)
    total = (given - evidence.predict(evidence.uniform)).square().sum(-1).mean().item()
    left = (given - fitted).square().sum(-1).mean().item()
    return (total - left) / (total + NOTHING_MOVES)


def _two_step_fit(explanation: Explanation) -> TwoStepFit | None:
    if explanation.algorithm.name != TwoStep.name:
        return None
    return TwoStepFit(
        TwoStepConstants(**explanation.nearest.constants),
        explanation.stderrs,
        explanation.combinations,
        explanation.explained,
        explanation.nearest.at_bound,
    )
