"""How good a model is: KL to the truth on fixed held-out sequences, next to estimators that are
scored once."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.estimators import (
    exact_posterior_mean,
    mirror_descent,
    predict_next,
    tune_learning_rate,
    uniform_weights,
)
from mtdinterp.fitting.families import BAYES_NODES, BAYES_TOLERANCE
from mtdinterp.metrics import Score, kl_divergence, score
from mtdinterp.models import LensTransformer
from mtdinterp.readout import predictions
from mtdinterp.task import MTDTask, Sample

HELD_OUT_SEED = (20_231, 2)
"""Held-out sequences are the same for every model of a task and length."""
N_SEQUENCES, LEAST_SEQUENCES, CELLS = 4096, 256, 2**28
"""How many there are: fewer where sequences are so long that their attention would have more
entries than `CELLS`."""
N_BAYES = 1024
"""Sequences for the exact posterior mean, which may take tens of milliseconds for each."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Sequences, and what the estimators reach on them: KL to the truth by name."""

    task: MTDTask
    data: Sample
    kl: dict[str, float]
    """uniform, one_step, two_step (both tuned), exact_bayes (where it can be computed)."""
    beta: float
    """β of tuned one-step mirror descent."""

    @classmethod
    def prepare(
        cls, task: MTDTask, length: int, n_sequences: int | None = None, bayes: bool = True
    ) -> "HeldOut":
        data = held_out_data(task, length, n_sequences)
        rates = {steps: tune_learning_rate(task, length, steps=steps) for steps in (1, 2)}
        problem = (task.transition, data.tokens, task.order)
        estimates: dict[str, Callable[[], Tensor]] = {
            "uniform": lambda: uniform_weights(*problem),
            "one_step": lambda: mirror_descent(*problem, rates[1].learning_rate),
            "two_step": lambda: mirror_descent(*problem, rates[2].learning_rate, steps=2),
        }
        divergence = {
            name: _divergence(task, data, estimate()) for name, estimate in estimates.items()
        }
        kl = {name: values.mean().item() for name, values in divergence.items()}
        weights = _bayes(task, data) if bayes else None
        if weights is not None:
            # On some of the sequences, and the rest by how much it is below two-step mirror descent
            # there.
            below = divergence["two_step"][: len(weights)] - _divergence(task, data, weights)
            kl["exact_bayes"] = kl["two_step"] - below.mean().item()
        return cls(task, data, kl, rates[1].beta)

    def score(self, model: LensTransformer) -> Score:
        """The model's KL to the truth at the last position."""
        return score(self.data.next_probs, predictions(model, self.data.tokens))


def held_out_data(task: MTDTask, length: int, n_sequences: int | None = None) -> Sample:
    """The sequences that every model of a task and length is scored on."""
    if n_sequences is None:
        n_sequences = min(N_SEQUENCES, max(LEAST_SEQUENCES, CELLS // length**2))
    return task.sample(n_sequences, length, seed=HELD_OUT_SEED)


def _bayes(task: MTDTask, data: Sample) -> Float64[Tensor, "some lag"] | None:
    """The exact posterior mean of the first sequences; None where many lags on long sequences need
    too large a rule."""
    weights = None
    for n_sequences in (2, N_BAYES):  # two of them often tell at once
        try:
            weights = exact_posterior_mean(
                task.transition,
                data.tokens[:n_sequences],
                task.order,
                task.concentration,
                BAYES_TOLERANCE,
                BAYES_NODES,
            )
        except ValueError:
            return None
    return weights


def _divergence(
    task: MTDTask, data: Sample, weights: Float64[Tensor, "some lag"]
) -> Float64[Tensor, " some"]:
    """KL(truth ‖ prediction) of the first sequences, as many as there are weights."""
    some = len(weights)
    return kl_divergence(
        data.next_probs[:some], predict_next(task.transition, data.tokens[:some], weights)
    )
