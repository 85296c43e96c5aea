"""When did it learn what? Readings along a training history or of a series of checkpoints, and when
they appear.

A history holds what training read at every evaluation; a series of checkpoints can be probed for
anything.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mtdinterp.checkpoints import Checkpoint, load_checkpoint
from mtdinterp.fitting import Evidence, one_step_weights
from mtdinterp.metrics import kl_divergence, row_kl
from mtdinterp.readout import CLEAR_R2, RECOVERED, read, some_to_read
from mtdinterp.training.evaluation import held_out_data

READINGS = ("kl", "ratio", "beta", "beta_r2", "gain", "gain_r2", "branch", "transition_kl")
LEFT_PLATEAU = 0.5
"""The plateau is left when this share of the way from uniform weights to one-step mirror descent is
done, in KL."""

Probe = Callable[[Checkpoint], float]


@dataclass(frozen=True)
class Development:
    """Readings by step, and the steps at which things appeared; None for what never did."""

    steps: tuple[int, ...]
    series: dict[str, tuple[Any, ...]]
    """By reading; None where a step has no such reading."""
    events: dict[str, int | None]
    """left_plateau: first there and at the next evaluation; beta, transition, branch: from that
    step on to the end. What was never recorded is not listed."""
    final_branch: str

    def summary(self) -> str:
        words = {
            "left_plateau": "the plateau is left",
            "beta": "β appears",
            "transition": "π appears",
            "branch": f"the branch is chosen ({self.final_branch})",
        }
        lines = [f"Development over {len(self.steps)} evaluations, to step {self.steps[-1]}:"]
        for name, step in sorted(
            self.events.items(), key=lambda event: (event[1] is None, event[1])
        ):
            lines.append(
                f"  {words[name]:<38} " + (f"by step {step}" if step is not None else "never")
            )
        lines += [
            f"  {text:<38} not recorded" for name, text in words.items() if name not in self.events
        ]
        return "\n".join(lines)


def trace_development(
    source: Checkpoint | str | os.PathLike | Sequence[Checkpoint | str | os.PathLike],
    probes: Mapping[str, Probe] | None = None,
) -> Development:
    """Readings along the history of one checkpoint, or of every checkpoint of a series in order of
    their steps.

    `probes` are further readings of every checkpoint of a series, by name; a history has none to
    offer.
    """
    if isinstance(source, Checkpoint | str | os.PathLike):
        if probes:
            raise ValueError(
                "probes: a history holds numbers, not models; pass a series of checkpoints to "
                "probe them"
            )
        checkpoint = _loaded(source)
        if not checkpoint.history:
            raise ValueError(f"{checkpoint.path}: this checkpoint has no training history to trace")
        entries = checkpoint.history
    else:
        checkpoints = [_loaded(entry) for entry in source]
        if not checkpoints:
            raise ValueError("source: expected at least one checkpoint")
        checkpoint = checkpoints[0]
        for other in checkpoints:
            same = (
                torch.equal(other.task.transition, checkpoint.task.transition)
                and other.task.order == checkpoint.task.order
                and other.model.config.length == checkpoint.model.config.length
            )
            if not same:
                raise ValueError(
                    f"source: {other.path.name} and {checkpoint.path.name} belong to different "
                    "tasks or "
                    "lengths; a series is of one"
                )
        entries = sorted(
            (_read(entry, probes or {}) for entry in checkpoints), key=lambda entry: entry["step"]
        )
    return _trace(entries, checkpoint, [*READINGS, *(probes or {})])


def _loaded(source: Checkpoint | str | os.PathLike) -> Checkpoint:
    return source if isinstance(source, Checkpoint) else load_checkpoint(source)


def _read(checkpoint: Checkpoint, probes: Mapping[str, Probe]) -> dict[str, Any]:
    """What training would have written into its history, and the probes on top."""
    tokens = held_out_data(checkpoint.task, checkpoint.model.config.length).tokens
    reading = read(checkpoint.model, checkpoint.task, some_to_read(tokens))
    step = checkpoint.history[-1]["step"] if checkpoint.history else 0
    scored = (
        {key: checkpoint.history[-1].get(key) for key in ("kl", "ratio")}
        if checkpoint.history
        else {}
    )
    return {
        "step": step,
        **scored,
        "beta": reading.beta.value,
        "beta_r2": reading.beta.r2,
        "gain": reading.gain.value,
        "gain_r2": reading.gain.r2,
        "branch": reading.branch,
        "transition_kl": reading.transition_kl,
        **{name: probe(checkpoint) for name, probe in probes.items()},
    }


def _trace(
    entries: Sequence[Mapping[str, Any]], checkpoint: Checkpoint, names: Sequence[str]
) -> Development:
    task, length = checkpoint.task, checkpoint.model.config.length
    steps = tuple(int(entry["step"]) for entry in entries)
    series = {name: tuple(entry.get(name) for entry in entries) for name in names}
    branch = series["branch"][-1] or "undecided"
    control = row_kl(task.transition, task.stationary.expand_as(task.transition))
    data = held_out_data(task, length)
    evidence = Evidence(task, data.tokens)
    uniform = (
        kl_divergence(data.next_probs, evidence.predict(one_step_weights(evidence, 0.0)))
        .mean()
        .item()
    )
    conditions = {
        # Ratios are to one-step mirror descent, whose own KL is therefore kl / ratio.
        "left_plateau": [
            _number(kl)
            < uniform + LEFT_PLATEAU * (_number(kl) / (_number(ratio) or math.nan) - uniform)
            for kl, ratio in zip(series["kl"], series["ratio"], strict=True)
        ],
        "beta": [
            _number(r2) >= CLEAR_R2 and _number(beta) > 0
            for beta, r2 in zip(series["beta"], series["beta_r2"], strict=True)
        ],
        # Where the branch is undecided layer 1's scores are not about π, whatever they look like.
        "transition": [
            _number(kl) < RECOVERED * control and entry in ("direct", "mirrored")
            for kl, entry in zip(series["transition_kl"], series["branch"], strict=True)
        ],
        "branch": [entry == branch != "undecided" for entry in series["branch"]],
    }
    needs = {
        "left_plateau": "ratio",
        "beta": "beta",
        "transition": "transition_kl",
        "branch": "branch",
    }
    # A spike of the loss later on is no return to the plateau; everything else counts from where it
    # stays.
    since = {"left_plateau": _first_pair}
    events = {
        name: since.get(name, _since)(steps, held)
        for name, held in conditions.items()
        if any(value is not None for value in series[needs[name]])
    }
    return Development(steps, series, events, branch)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _first_pair(steps: Sequence[int], held: Sequence[bool]) -> int | None:
    """The first step at which the condition holds there and at the next evaluation, or at the last
    one."""
    following = [*held[1:], True]
    return next(
        (step for step, now, then in zip(steps, held, following, strict=True) if now and then), None
    )


def _since(steps: Sequence[int], held: Iterable[bool]) -> int | None:
    """The first step from which on the condition holds to the end."""
    first: int | None = None
    for step, holds in zip(steps, held, strict=True):
        if not holds:
            first = None
        elif first is None:
            first = step
    return first
