"""How well the model and every estimator predict: KL to the truth on held-out sequences."""

import math
from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import NEAR_BAYES, NO_GAP
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.base import accuracy_notes, fit_constants
from mtdinterp.formatting import counted, share_text
from mtdinterp.metrics import Estimate, Score, divergences, paired_ratio, score
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Bar, Bars, Block, Text
from mtdinterp.readings import predictions_of
from mtdinterp.registry import ESTIMATORS
from mtdinterp.results import Result
from mtdinterp.tasks import Task
from mtdinterp.training.evaluation import HELD_OUT_SEED, held_out_data

TUNING_SEED = (11, 0)
"""Seed of the sequences on which the estimators' constants are tuned to the truth."""
N_TUNING = 1000
UNKNOWN = Estimate(math.nan, math.nan)


@dataclass(frozen=True, kw_only=True)
class HeldOutScores(Result):
    """KL(truth ‖ prediction) on held-out sequences of the task and length."""

    model: Score
    estimators: dict[str, Score]
    """Every registered estimator, its constants tuned to the truth on other sequences."""
    at_bound: dict[str, tuple[str, ...]]
    """Tuned constants that ended on a bound of their range, by estimator."""
    left_out: dict[str, str]
    """Estimators that could not be computed, and why."""
    notes: dict[str, str]
    """How accurate the weights are of estimators that are not computed exactly here."""
    kl_ratio: Estimate
    """KL of the model over that of tuned one-step mirror descent, on the same sequences; NaN if
    the latter is zero."""
    bayes_ratio: Estimate
    """KL of the model over that of the exact posterior mean, if that was computed."""

    def summary(self) -> str:
        """The model's KL and its ratios."""
        text = f"Its KL to the truth is {self.model.kl:.5f} ± {self.model.stderr:.5f}"
        if math.isfinite(self.kl_ratio.value):
            text += (
                f", {self.kl_ratio.value:.3f} ± {self.kl_ratio.stderr:.3f} times that of tuned "
                "one-step mirror descent"
            )
        if math.isfinite(self.bayes_ratio.value):
            ratio = self.bayes_ratio
            text += f" and {ratio.value:.3f} ± {ratio.stderr:.3f} times the Bayes optimum"
        return text + f" ({counted(self.n_sequences, 'sequence')})."

    def claims(self) -> tuple[Claim, ...]:
        best = "exact_bayes" if "exact_bayes" in self.estimators else "one_step"
        uniform = self.estimators["uniform"].kl
        reference = self.estimators[best].kl if best in self.estimators else math.nan
        gap = uniform - reference
        share = (uniform - self.model.kl) / gap if gap > NO_GAP else math.nan
        label = ESTIMATORS[best].label
        has_gap = math.isfinite(share)
        return (
            Claim(
                claim=f"The model closes {NEAR_BAYES:.0%} of the KL gap between uniform weights "
                f"and {label}",
                status=decide(share >= NEAR_BAYES) if has_gap else Status.UNDECIDABLE,
                evidence="Share of that gap that it closes",
                number=share_text(share),
                threshold=f"≥ {NEAR_BAYES:.0%}",
                control=f"uniform weights {uniform:.5f}, {label} {reference:.5f}",
                n_sequences=self.n_sequences,
                seed=self.seed,
                reason="" if has_gap else "uniform weights predict as well as the best estimator",
            ),
        )

    def blocks(self) -> list[Block]:
        bars = [Bar("model", "this model", self.model.kl, self.model.stderr)]
        for name, found in self.estimators.items():
            bound = " (constant at its bound)" if self.at_bound.get(name) else ""
            bars.append(Bar(name, ESTIMATORS[name].label + bound, found.kl, found.stderr))
        bars.sort(key=lambda bar: bar.value)
        notes = [
            "Clipping moved the model's outputs by a total variation of "
            f"{self.model.clipped:.1e} on average."
        ]
        for name, note in self.notes.items():
            notes.append(f"{ESTIMATORS[name].label.capitalize()}: {note}.")
        for name, why in self.left_out.items():
            notes.append(f"Not computed: {ESTIMATORS[name].label} ({why}).")
        return [
            Bars(
                "KL to the truth, with the constants of the estimators tuned to the truth",
                tuple(bars),
                f"KL(truth ‖ prediction), {self.n_sequences} held-out sequences",
            ),
            Text(tuple(notes), "soft"),
        ]


def held_out_scores(model: LensTransformer, task: Task, n_sequences: int) -> HeldOutScores:
    """Score the model and every registered estimator.

    Args:
        model: any hooked model.
        task: the model's task.
        n_sequences: held-out sequences to use.

    Returns:
        The scores.
    """
    length = model.config.length
    data = held_out_data(task, length, n_sequences)
    outputs = predictions_of(model, data.tokens)
    if not outputs.isfinite().all():
        raise ValueError("the predictions of the model are not finite numbers")
    tuning = task.sample(N_TUNING, length, TUNING_SEED)
    fitting = task.evidence(tuning.tokens)
    held = task.evidence(data.tokens)
    predicted: dict[str, Float64[Tensor, "batch vocab"]] = {}
    at_bound: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, str] = {}
    for name, estimator in ESTIMATORS.items():
        try:
            fit = fit_constants(estimator, fitting, tuning.next_probs)
            predicted[name] = estimator.predict(held, **fit.constants)
        except CannotCompute as error:
            left_out[name] = str(error)
            continue
        at_bound[name] = fit.at_bound
    own = divergences(data.next_probs, outputs)
    ratios = {}
    for name in ("one_step", "exact_bayes"):
        ratios[name] = UNKNOWN
        if name in predicted:
            ratios[name] = paired_ratio(own, divergences(data.next_probs, predicted[name]))
    return HeldOutScores(
        model=score(data.next_probs, outputs),
        estimators={name: score(data.next_probs, found) for name, found in predicted.items()},
        at_bound=at_bound,
        left_out=left_out,
        notes=accuracy_notes(predicted, held),
        kl_ratio=ratios["one_step"],
        bayes_ratio=ratios["exact_bayes"],
        n_sequences=len(outputs),
        seed=HELD_OUT_SEED[0],
    )
