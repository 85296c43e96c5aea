"""Which estimator explains the model's predictions best?

Every family's constants are fitted to the model on half of the sequences, KL(model ‖ estimator) is
taken on the other half, and constants have a price. Families that agree on the prior are told apart
on sequences that the model never saw the like of: weights at the corners, weights near uniform,
tokens with other statistics. Of families that cannot be told apart, the one with the fewest
constants is named.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_option
from mtdinterp.fitting import EXPLAINED, FAMILIES, RESOLUTION, WORDS, Constants, Evidence, explained
from mtdinterp.metrics import bootstrap_interval
from mtdinterp.models import LensTransformer
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.readout import predictions, sequences
from mtdinterp.task import MTDTask

PRICE = 1.15
"""What constants cost: a family must be nearer by this factor for each one beyond the first.
Without it four constants always win on a trained model, since they find some quirk of it that one
constant does not."""
CLOSE, TELLABLE = 1.05, 1.5
"""Families within the first factor of the best, constants paid for, are not told apart, however
many sequences there are; beyond the second they are, however few: divergences have heavy tails, and
their standard errors little to say."""


@dataclass(frozen=True)
class AlgorithmIdentification:
    """The family that explains the model best, and how far every family is from it."""

    best: str
    divergences: dict[str, float]
    """Mean KL(model ‖ estimator) on held-out sequences of the prior."""
    intervals: dict[str, tuple[float, float]]
    """95% bootstrap intervals of the same."""
    parameters: dict[str, Constants]
    """Constants fitted to the model on the other half."""
    shifted: dict[str, dict[str, float]]
    """The same divergences on shifted sequences, by condition, with the constants of the prior."""
    best_shifted: dict[str, str]
    tied: tuple[str, ...]
    """Families that the sequences cannot tell from the best."""
    explained: float
    """1 - KL(model ‖ best) / KL(model ‖ the token marginal)."""
    left_out: dict[str, str]
    """Families that could not be computed, and why."""

    def summary(self) -> str:
        lines = ["KL(model ‖ estimator), constants fitted to the model (95% interval)"]
        for name in sorted(self.divergences, key=self.divergences.__getitem__):
            low, high = self.intervals[name]
            constants = ", ".join(
                f"{key} = {value:.3g}" for key, value in self.parameters[name].items()
            )
            interval = f"{self.divergences[name]:.2e} [{low:.1e}, {high:.1e}]"
            lines.append(f"  {WORDS[name]:<52} {interval}  {constants}".rstrip())
        lines += [f"  {WORDS[name]:<52} not computed: {why}" for name, why in self.left_out.items()]
        if self.explained < EXPLAINED:
            lines.append(
                f"None of these explains the model: the nearest is {WORDS[self.best]}, and that "
                "explains "
                f"{max(0.0, self.explained):.0%} of how it differs from the token marginal."
            )
            return "\n".join(lines)
        lines.append(
            f"The model predicts like {WORDS[self.best]}, which explains {self.explained:.1%} of "
            "how it "
            "differs from the token marginal."
        )
        if self.best == "uniform":
            lines.append("It infers nothing in context: this is where training stalls.")
        if self.tied:
            lines.append(f"Not told apart from it: {', '.join(WORDS[name] for name in self.tied)}.")
        for condition, name in self.best_shifted.items():
            agrees = "the same" if name == self.best else WORDS[name]
            against = self.shifted[condition].get(self.best)
            lines.append(
                f"  {condition}: {agrees} ({self.shifted[condition][name]:.2e}"
                + ("" if name == self.best or against is None else f", against {against:.2e}")
                + ")"
            )
        return "\n".join(lines)


@torch_on_one_thread()
def identify_algorithm(
    model: LensTransformer,
    task: MTDTask,
    tokens: ArrayLike | None = None,
    *,
    names: Sequence[str] | None = None,
    n_sequences: int = 1024,
    seed: int = 0,
) -> AlgorithmIdentification:
    """Fit every family (or those named) to the model's predictions and say which explains them
    best.

    On given sequences or on `n_sequences` drawn from the task; shifted sequences, a quarter as
    many, are always drawn.
    """
    for name in names if names is not None else ():
        check_option("estimator", name, FAMILIES)
    chosen = [name for name in FAMILIES if names is None or name in names]
    if not chosen:
        raise ValueError(f"names: expected at least one of {', '.join(FAMILIES)}")
    sequence = sequences(model, task, tokens, n_sequences, seed, least=32)
    length, half = sequence.shape[1], len(sequence) // 2
    fitting, held = Evidence(task, sequence[:half]), Evidence(task, sequence[half:])
    given = predictions(model, sequence)
    parameters: dict[str, Constants] = {}
    left_out: dict[str, str] = {}
    scores: dict[str, Tensor] = {}
    for name in chosen:
        try:
            parameters[name] = FAMILIES[name].fit(fitting, given[:half])
            scores[name] = held.divergence(
                given[half:], FAMILIES[name].weights(held, parameters[name])
            )
            if not scores[name].isfinite().all():
                raise ValueError("it has no prediction for this prior")
        except (
            ValueError,
            RuntimeError,
        ) as error:  # many lags on a long sequence, or a prior that has no such rate
            left_out[name] = str(error)
            scores.pop(name, None)
            parameters.pop(name, None)
    if not scores:
        raise ValueError(f"names: none of these can be computed here: {left_out}")
    shifts = {
        condition: Evidence(task, drawn)
        for condition, drawn in _shifted(task, length, max(64, len(sequence) // 4), seed).items()
    }
    shifted = {
        condition: _score(evidence, predictions(model, evidence.tokens), parameters)
        for condition, evidence in shifts.items()
    }
    ties = _ties(scores)
    best = _simplest(ties, shifted.values())
    return AlgorithmIdentification(
        best=best,
        divergences={name: value.mean().item() for name, value in scores.items()},
        intervals={name: bootstrap_interval(value, seed=seed) for name, value in scores.items()},
        parameters=parameters,
        shifted={
            condition: {name: value.mean().item() for name, value in found.items()}
            for condition, found in shifted.items()
        },
        best_shifted={condition: _simplest(_ties(found)) for condition, found in shifted.items()},
        tied=tuple(name for name in ties if name != best),
        explained=explained(held, given[half:], FAMILIES[best].weights(held, parameters[best])),
        left_out=left_out,
    )


def _shifted(
    task: MTDTask, length: int, n_sequences: int, seed: int
) -> dict[str, Int[Tensor, "batch pos"]]:
    """Sequences unlike the prior's, all of them possible under the task's own matrix."""
    corners = torch.eye(task.order, dtype=torch.float64)[torch.arange(n_sequences) % task.order]
    even = MTDTask(task.transition, task.order, concentration=50.0)
    flat = task.transition.sqrt()
    flatter = MTDTask(flat / flat.sum(-1, keepdim=True), task.order, task.concentration)
    return {
        "weights at the corners": task.sample(
            n_sequences, length, [seed, 1], weights=corners
        ).tokens,
        "weights near uniform": even.sample(n_sequences, length, [seed, 2]).tokens,
        "flatter token statistics": flatter.sample(n_sequences, length, [seed, 3]).tokens,
    }


def _score(
    evidence: Evidence, given: Float64[Tensor, "batch vocab"], parameters: dict[str, Constants]
) -> dict[str, Float64[Tensor, " batch"]]:
    scores = {}
    for name, constants in parameters.items():
        with contextlib.suppress(
            ValueError, RuntimeError
        ):  # a sequence that needs too large a rule
            scores[name] = evidence.divergence(given, FAMILIES[name].weights(evidence, constants))
    return scores


def _ties(scores: dict[str, Float64[Tensor, " batch"]]) -> list[str]:
    """The nearest family once constants are paid for, and those that are not clearly farther on the
    same sequences."""
    paid = {
        name: (values + RESOLUTION) * PRICE ** max(0, FAMILIES[name].n_constants - 1)
        for name, values in scores.items()
    }
    nearest = min(paid.values(), key=lambda values: values.mean().item())
    tied = []
    for name, values in paid.items():
        difference = values - nearest
        stderr = difference.std().item() / len(difference) ** 0.5
        least, most = ((factor - 1) * nearest.mean().item() for factor in (CLOSE, TELLABLE))
        if difference.mean().item() <= max(least, min(1.96 * stderr, most)):
            tied.append(name)
    return tied


def _simplest(ties: list[str], shifted: Iterable[dict[str, Tensor]] = ()) -> str:
    """Of tied families those with the fewest constants, without those that a shift tells apart, and
    the first of them.

    `FAMILIES` is in order of simplicity: of mirror descents with one constant each, the one with
    fewer steps.
    """
    fewest = min(FAMILIES[name].n_constants for name in ties)
    simple = [name for name in ties if FAMILIES[name].n_constants == fewest]
    for found in shifted:
        together = _ties({name: found[name] for name in simple if name in found})
        simple = [name for name in simple if name in together or name not in found]
    return simple[0]
