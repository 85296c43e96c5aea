"""How good a model is: KL to the truth on fixed held-out sequences, compared with estimators.

The estimators are tuned and scored once, before training; the model is scored at every evaluation.
"""

from dataclasses import dataclass, field

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.base import Constants, Estimator, accuracy_notes
from mtdinterp.estimators.mirror_descent import TunedRate, descend, tune_learning_rate
from mtdinterp.evidence import Evidence
from mtdinterp.metrics import Score, kl_divergence, score
from mtdinterp.models import LensTransformer
from mtdinterp.readings import predictions_of
from mtdinterp.registry import ESTIMATORS
from mtdinterp.tasks import Sample, Task

HELD_OUT_SEED = (20_231, 2)
"""Every model of a task and length is scored on the same sequences."""
N_SEQUENCES = 4096
LEAST_SEQUENCES = 256
"""The smallest number of held-out sequences, however long they are."""
CELLS = 2**28
"""Long sequences are fewer, so that attention has at most this many entries per head in total."""
N_BAYES, N_BAYES_OF_MANY = 1024, 128
"""Sequences for the posterior mean: fewer from `MANY_COMPONENTS` on, where each takes tens of
milliseconds."""
MANY_COMPONENTS = 6
MIRROR_DESCENT_STEPS = {"one_step": 1, "two_step": 2}
"""The tuned estimators, by their key in `HeldOut.kl`."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out sequences of a task, and the KL to the truth that estimators reach on them."""

    task: Task
    data: Sample
    kl: dict[str, float]
    """By estimator: uniform, one_step, two_step (mirror descent, both tuned), exact_bayes, and
    the estimators of plugins, tuned."""
    tuned: TunedRate | None
    """Tuned one-step mirror descent, with the interval of its β; None if it could not be tuned."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Estimators that have no entry in `kl`, with the reason in one sentence."""
    notes: dict[str, str] = field(default_factory=dict)
    """How accurate entries of `kl` are, for estimators that are not computed exactly here."""

    @classmethod
    def prepare(
        cls, task: Task, length: int, n_sequences: int | None = None, bayes: bool = True
    ) -> "HeldOut":
        """Draw the sequences, and tune and score the estimators.

        Args:
            task: the task to draw sequences from.
            length: tokens per sequence.
            n_sequences: number of sequences; if None, as many as `held_out_data` draws.
            bayes: whether to compute the posterior mean, which is the slowest part.

        Returns:
            The sequences and the scores.
        """
        data = held_out_data(task, length, n_sequences)
        evidence = task.evidence(data.tokens)
        divergence = {"uniform": _divergence(data, evidence, evidence.uniform)}
        left_out: dict[str, str] = {}
        notes: dict[str, str] = {}
        rates: dict[str, TunedRate] = {}
        for name, steps in MIRROR_DESCENT_STEPS.items():
            try:
                tuned = tune_learning_rate(task, length, steps=steps)
            except CannotCompute as error:
                left_out[name] = str(error)
                continue
            rates[name] = tuned
            weights = descend(evidence.likelihoods, tuned.learning_rate, steps)
            divergence[name] = _divergence(data, evidence, weights)
        kl = {name: values.mean().item() for name, values in divergence.items()}
        if bayes:
            control = "two_step" if "two_step" in divergence else "uniform"
            some = evidence[: n_bayes(evidence.n_components)]
            kl["exact_bayes"] = _bayes_kl(data, some, divergence[control])
            notes = accuracy_notes(["exact_bayes"], some)
        for name, estimator in ESTIMATORS.items():
            if ESTIMATORS.provider(name) is None or name in kl:
                continue
            try:
                kl[name] = _tuned_kl(estimator, task, length, data, evidence)
            except CannotCompute as error:
                left_out[name] = str(error)
                continue
            notes |= accuracy_notes([name], evidence)
        return cls(task, data, kl, rates.get("one_step"), left_out, notes)

    @property
    def beta(self) -> float | None:
        """β of tuned one-step mirror descent; None if it could not be tuned."""
        return None if self.tuned is None else self.tuned.beta

    def score(self, model: LensTransformer) -> Score:
        """The model's KL to the truth at the last position."""
        return score(self.data.next_probs, predictions_of(model, self.data.tokens))

    def ratio(self, kl: float) -> float | None:
        """A KL divided by that of tuned one-step mirror descent; None if that is 0 or unknown."""
        one_step = self.kl.get("one_step")
        return kl / one_step if one_step else None


def held_out_data(task: Task, length: int, n_sequences: int | None = None) -> Sample:
    """The sequences on which every model of a task and length is scored.

    Args:
        task: the task to draw sequences from.
        length: tokens per sequence.
        n_sequences: number of sequences; by default `N_SEQUENCES`, fewer if they are long.

    Returns:
        The sequences, the same at every call.
    """
    if n_sequences is None:
        n_sequences = min(N_SEQUENCES, max(LEAST_SEQUENCES, CELLS // length**2))
    return task.sample(n_sequences, length, seed=HELD_OUT_SEED)


def n_bayes(n_components: int) -> int:
    """How many of the held-out sequences the posterior mean is computed for, at the most."""
    return N_BAYES if n_components < MANY_COMPONENTS else N_BAYES_OF_MANY


def _bayes_kl(data: Sample, some: Evidence, control: Float64[Tensor, " batch"]) -> float:
    """Mean KL of the posterior mean, from the evidence of the first few sequences.

    The difference from the control on those sequences varies less than the KL itself, so the mean
    over all sequences is that of the control minus the mean difference.
    """
    weights = ESTIMATORS["exact_bayes"].weights(some)
    below_control = control[: len(some)] - _divergence(data, some, weights)
    return control.mean().item() - below_control.mean().item()


def _tuned_kl(
    estimator: Estimator, task: Task, length: int, data: Sample, evidence: Evidence
) -> float:
    """Mean KL of an estimator with its constants tuned to the truth on other sequences."""
    constants: Constants = {}
    if estimator.constants_for(evidence):
        constants = estimator.tune(task, length).constants
    weights = estimator.checked_weights(evidence, constants)
    return _divergence(data, evidence, weights).mean().item()


def _divergence(
    data: Sample, evidence: Evidence, weights: Float64[Tensor, "some component"]
) -> Float64[Tensor, " some"]:
    """KL(truth ‖ prediction) of the first sequences, those that have weights."""
    truth = data.next_probs[: len(weights)]
    return kl_divergence(truth, evidence.predict(weights))
