"""When did the model learn what? Readings along a training history or a series of checkpoints.

A history holds the readings of every evaluation. Snapshots of the weights, which
`mtdinterp train --snapshots N` keeps, add readings at their steps, and one that no history has. A
series of checkpoints can be given to any probe.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.checkpoints import Checkpoint, load_checkpoint
from mtdinterp.criteria import APPEARED_KL, CLEAR_R2, LEFT_PLATEAU
from mtdinterp.formatting import counted
from mtdinterp.metrics import kl_divergence, row_kl, score
from mtdinterp.models import LensTransformer
from mtdinterp.pages.blocks import Block, Level, Line, Lines, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import (
    attention_of,
    lag_attention,
    predictions_of,
    read,
    readable_sequences,
)
from mtdinterp.registry import ESTIMATORS
from mtdinterp.results import Result
from mtdinterp.tasks import HasTransition, Sample, Task
from mtdinterp.training.evaluation import HELD_OUT_SEED, held_out_data

READINGS = ("kl", "ratio", "beta", "beta_r2", "gain", "gain_r2", "branch", "transition_kl")
LAGS = "lag_attention"
"""The reading that only weights give: layer 1's attention on the lags, of the head with most."""
EVENTS = {
    "left_plateau": "plateau left",
    "beta": "β appears",
    "transition": "π appears",
    "branch": "branch chosen",
}
"""What can appear in training, in words."""
EVENT_RULES = (
    f"The plateau is left when {LEFT_PLATEAU:.0%} of the KL gap between uniform weights and one "
    f"step is closed; β and the branch appear when their R² is at least {CLEAR_R2:g}; π appears "
    f"when its row KL is below {APPEARED_KL:.0%} of the token marginal's."
)
"""When an event counts, as the pages state it."""
NEEDED = {
    "left_plateau": "ratio",
    "beta": "beta",
    "transition": "transition_kl",
    "branch": "branch",
}
"""The reading that each event needs."""

Probe = Callable[[Checkpoint], float]


@dataclass(frozen=True, kw_only=True)
class Development(Result):
    """Readings by step, and the step of each event; None if it never happened."""

    steps: tuple[int, ...]
    series: dict[str, tuple[Any, ...]]
    """Values at every step, by reading; None if a step has no such reading."""
    events: dict[str, int | None]
    """The step of each event. left_plateau: the first step at which it holds, also at the next
    evaluation. beta, transition, branch: the step from which it holds until the end. Events without
    recorded readings are not listed."""
    final_branch: str
    levels: dict[str, float]
    """KL to the truth of uniform weights and of tuned one-step mirror descent, if it is known."""
    snapshots: tuple[int, ...] = ()
    """Steps that were read from snapshots of the weights, in part or in full."""
    unreadable: tuple[str, ...] = ()
    """Why other snapshots could not be read, one sentence each."""

    def summary(self) -> str:
        words = {
            "left_plateau": "the plateau is left",
            "beta": "β appears",
            "transition": "π appears",
            "branch": f"the branch is chosen ({self.final_branch})",
        }
        lines = [f"Development over {self._sources()}, to step {self.steps[-1]}:"]
        in_order = sorted(self.events.items(), key=lambda event: (event[1] is None, event[1]))
        for name, step in in_order:
            when = f"by step {step}" if step is not None else "never"
            lines.append(f"  {words[name]:<38} {when}")
        missing = [name for name in words if name not in self.events]
        lines += [f"  {words[name]:<38} not recorded" for name in missing]
        lines += [f"  not read: {reason}" for reason in self.unreadable]
        return "\n".join([*lines, f"  {EVENT_RULES}"])

    def _sources(self) -> str:
        """What was read, in words."""
        if not self.snapshots:
            return f"{len(self.steps)} evaluations"
        return f"{len(self.steps)} steps, {len(self.snapshots)} of them with a snapshot"

    def blocks(self) -> list[Block]:
        by_step: dict[int, list[str]] = {}
        for name, step in self.events.items():
            if step is not None:
                by_step.setdefault(step, []).append(EVENTS[name])
        moments = tuple((float(step), ", ".join(words)) for step, words in sorted(by_step.items()))
        levels = tuple(
            Level(name, ESTIMATORS[name].label, value) for name, value in self.levels.items()
        )
        kl = Line("model", "this model", self.points("kl"))
        beta = Line("model", "this model", self.points("beta"))
        blocks: list[Block] = [
            Lines(
                "KL to the truth over training",
                (kl,),
                "step",
                "KL to the truth",
                True,
                levels,
                moments,
            ),
            Lines("β over training, by attention", (beta,), "step", "β", moments=moments),
        ]
        if self.snapshots:
            blocks += self._snapshot_blocks(moments)
        if self.unreadable:
            blocks.append(Text(self.unreadable, "soft"))
        never = [EVENTS[name] for name, step in self.events.items() if step is None]
        if never:
            blocks.append(Text((f"Never seen: {', '.join(never)}.",), "soft"))
        return [*blocks, Text((EVENT_RULES,), "soft")]

    def _snapshot_blocks(self, moments: tuple[tuple[float, str], ...]) -> list[Block]:
        """What the snapshots add, on a logarithmic axis because most of them are early."""
        note = (
            f"Read from {counted(len(self.snapshots), 'snapshot')} of the weights besides the "
            "training history."
        )
        lines = (
            Line("series_1", "attention of layer 1 on the lags", self.points(LAGS)),
            Line("series_2", "gain of layers 1 and 2", self.points("gain")),
        )
        shown = tuple(line for line in lines if line.points)
        if not shown:
            # Neither applies if a component is read at no offset.
            return [Text((note,), "soft")]
        chart = Lines(
            "The mechanism over training",
            shown,
            "step",
            "attention, gain (1 in the construction)",
            moments=moments,
            logarithmic_x=True,
        )
        return [chart, Text((note,), "soft")]

    def points(self, name: str) -> tuple[tuple[float, float], ...]:
        """The finite values of one reading, with their steps."""
        values = zip(self.steps, self.series[name], strict=True)
        return tuple((float(step), value) for step, value in values if _is_finite(value))


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


@register_probe(
    "trace_development",
    label="When did each part of the mechanism appear in training?",
    needs="checkpoint",
    rank=90,
)
def trace_development(
    source: Checkpoint | str | os.PathLike | Sequence[Checkpoint | str | os.PathLike],
    probes: Mapping[str, Probe] | None = None,
) -> Development:
    """Readings along the history of one checkpoint, or of a series of checkpoints by their steps.

    If the checkpoint has snapshots, their readings are added to those of the history.

    Args:
        source: a checkpoint, its path, or a series of either.
        probes: further readings of every checkpoint of a series, by name.

    Returns:
        The readings, and the step at which each part of the mechanism appeared.
    """
    if isinstance(source, Checkpoint | str | os.PathLike):
        if probes:
            raise ValueError(
                "probes: a history contains numbers, not models; pass a series of checkpoints "
                "instead"
            )
        checkpoint = _loaded(source)
        if checkpoint.snapshots:
            return _trace_with_snapshots(checkpoint)
        if not checkpoint.history:
            raise ValueError(f"{checkpoint.path}: this checkpoint has no training history to trace")
        return _trace(checkpoint.history, checkpoint, READINGS)
    checkpoints = [_loaded(entry) for entry in source]
    if not checkpoints:
        raise ValueError("source: expected at least one checkpoint")
    first = checkpoints[0]
    for other in checkpoints:
        same_length = other.model.config.length == first.model.config.length
        if other.task != first.task or not same_length:
            raise ValueError(
                f"source: {other.path.name} and {first.path.name} belong to different tasks or "
                "lengths; a series needs the same task and length"
            )
    entries = [_read(entry, probes or {}) for entry in checkpoints]
    entries.sort(key=lambda entry: entry["step"])
    return _trace(entries, first, (*READINGS, *(probes or {})))


def _loaded(source: Checkpoint | str | os.PathLike) -> Checkpoint:
    return source if isinstance(source, Checkpoint) else load_checkpoint(source)


def _trace_with_snapshots(checkpoint: Checkpoint) -> Development:
    """Readings at every step that has an evaluation, a snapshot or both."""
    data = held_out_data(checkpoint.task, checkpoint.model.config.length)
    one_step = _one_step_kl(checkpoint.history)
    entries = {entry["step"]: entry for entry in checkpoint.history}
    taken = []
    unreadable = []
    for step, snapshot in checkpoint.snapshots.items():
        try:
            model = snapshot.load()
        except CheckpointError as error:
            unreadable.append(str(error))
            continue
        found = _read_snapshot(model, checkpoint.task, data, one_step)
        entries[step] = {**found, **entries.get(step, {}), "step": step}
        taken.append(step)
    if not entries:
        raise CheckpointError(unreadable[0])
    in_order = [entries[step] for step in sorted(entries)]
    traced = _trace(in_order, checkpoint, (*READINGS, LAGS))
    return replace(traced, snapshots=tuple(taken), unreadable=tuple(unreadable))


def _one_step_kl(history: Sequence[Mapping[str, Any]]) -> float:
    """The KL of tuned one-step mirror descent, to which ratios refer; NaN if it is unknown."""
    known = [
        _number(entry.get("kl")) / (_number(entry.get("ratio")) or math.nan) for entry in history
    ]
    return next((value for value in known if math.isfinite(value)), math.nan)


def _read_snapshot(
    model: LensTransformer, task: Task, data: Sample, one_step: float
) -> dict[str, Any]:
    """The readings of an evaluation, and the attention on the lags."""
    tokens = readable_sequences(data.tokens)
    pattern = attention_of(model, tokens, patterns=[0], last_only=False).patterns[0]
    kl = score(data.next_probs, predictions_of(model, data.tokens)).kl
    entry = {
        "kl": kl,
        "ratio": kl / one_step,
        **_mechanism(model, task, tokens),
        LAGS: lag_attention(pattern, task).max().item(),
    }
    # A history has None for what does not apply.
    return {name: value if _is_known(value) else None for name, value in entry.items()}


def _is_known(value: float | str) -> bool:
    return isinstance(value, str) or math.isfinite(value)


def _mechanism(model: LensTransformer, task: Task, tokens: Tensor) -> dict[str, Any]:
    """The readings of attention and weights, as a history names them."""
    reading = read(model, task, tokens)
    return {
        "beta": reading.beta.value,
        "beta_r2": reading.beta.r2,
        "gain": reading.gain.value,
        "gain_r2": reading.gain.r2,
        "branch": reading.branch,
        "transition_kl": reading.transition_kl,
    }


def _read(checkpoint: Checkpoint, probes: Mapping[str, Probe]) -> dict[str, Any]:
    """The entry that training would have written into its history, with the probes added."""
    tokens = held_out_data(checkpoint.task, checkpoint.model.config.length).tokens
    last = checkpoint.history[-1] if checkpoint.history else {"step": 0}
    entry = {
        "step": last["step"],
        "kl": last.get("kl"),
        "ratio": last.get("ratio"),
        **_mechanism(checkpoint.model, checkpoint.task, readable_sequences(tokens)),
    }
    return entry | {name: probe(checkpoint) for name, probe in probes.items()}


def _trace(
    entries: Sequence[Mapping[str, Any]], checkpoint: Checkpoint, names: Sequence[str]
) -> Development:
    steps = tuple(int(entry["step"]) for entry in entries)
    series = {}
    for name in names:
        series[name] = tuple(entry.get(name) for entry in entries)
    branch = series["branch"][-1] or "undecided"
    data = held_out_data(checkpoint.task, checkpoint.model.config.length)
    evidence = checkpoint.task.evidence(data.tokens)
    uniform = kl_divergence(data.next_probs, evidence.predict(evidence.uniform)).mean().item()
    conditions = {
        "left_plateau": _left_plateau(series, uniform),
        "beta": _beta_appears(series),
        "transition": _transition_appears(series, checkpoint.task),
        "branch": [entry == branch != "undecided" for entry in series["branch"]],
    }
    events = {}
    for name, held in conditions.items():
        recorded = any(value is not None for value in series[NEEDED[name]])
        if recorded:
            # A later spike of the loss is not a return to the plateau. The other events count from
            # the step after which they hold until the end.
            since = _first_pair if name == "left_plateau" else _since
            events[name] = since(steps, held)
    return Development(
        steps=steps,
        series=series,
        events=events,
        final_branch=branch,
        levels=_levels(series, uniform),
        n_sequences=len(data.tokens),
        seed=HELD_OUT_SEED[0],
    )


def _levels(series: Mapping[str, Sequence[Any]], uniform: float) -> dict[str, float]:
    kl = _number(series["kl"][-1])
    ratio = _number(series["ratio"][-1])
    levels = {"uniform": uniform}
    if ratio > 0 and math.isfinite(kl):
        levels["one_step"] = kl / ratio
    return levels


def _left_plateau(series: Mapping[str, Sequence[Any]], uniform: float) -> list[bool]:
    """Whether the model has closed part of the gap between uniform weights and one-step mirror
    descent.
    """
    held = []
    for kl, ratio in zip(series["kl"], series["ratio"], strict=True):
        # Ratios are to one-step mirror descent, whose own KL is therefore kl / ratio.
        one_step = _number(kl) / (_number(ratio) or math.nan)
        held.append(_number(kl) < uniform + LEFT_PLATEAU * (one_step - uniform))
    return held


def _beta_appears(series: Mapping[str, Sequence[Any]]) -> list[bool]:
    pairs = zip(series["beta"], series["beta_r2"], strict=True)
    return [_number(r2) >= CLEAR_R2 and _number(beta) > 0 for beta, r2 in pairs]


def _transition_appears(series: Mapping[str, Sequence[Any]], task: Task) -> list[bool]:
    """Whether π can be read from layer 1; if the branch is undecided, it cannot."""
    if not isinstance(task, HasTransition):
        return [False] * len(series["branch"])
    control = row_kl(task.transition, task.stationary.expand_as(task.transition))
    pairs = zip(series["transition_kl"], series["branch"], strict=True)
    decided = ("direct", "mirrored")
    return [_number(kl) < APPEARED_KL * control and branch in decided for kl, branch in pairs]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _first_pair(steps: Sequence[int], held: Sequence[bool]) -> int | None:
    """The first step at which the condition holds there and at the next evaluation."""
    following = [*held[1:], True]
    both = zip(steps, held, following, strict=True)
    return next((step for step, now, then in both if now and then), None)


def _since(steps: Sequence[int], held: Iterable[bool]) -> int | None:
    """The first step from which the condition holds until the end."""
    first: int | None = None
    for step, holds in zip(steps, held, strict=True):
        if not holds:
            first = None
        elif first is None:
            first = step
    return first
