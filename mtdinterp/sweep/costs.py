"""What the parts of a cell cost: measured in processes of their own, or derived from other lengths.

`step_time` measures; this module decides what to measure, and fills in the rest.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mtdinterp.formatting import printable
from mtdinterp.sweep.cells import Cell
from mtdinterp.sweep.engines.local import environment
from mtdinterp.sweep.sizes import Size, families, interpolate

LONGEST_PROBED = 128
"""Probes and report take minutes for longer sequences, so their time is extrapolated from here."""
PROBING_GROWTH = 1.5
"""The power of the length with which their time grows from there: between 1, of the estimators, and
2, of the attention."""


class EstimateError(ValueError):
    """A cell that could not be measured, with the reason in one sentence."""


@dataclass
class Parts:
    """What the parts of a cell cost on this machine: times in seconds, and memory."""

    startup: float = 0.0
    """Starting Python, importing the package, and ending."""
    preparation: float = 0.0
    """Scoring the estimators on the held-out sequences, once per attempt."""
    step: float = 0.0
    """One training step, and drawing its sequences."""
    evaluation: float = 0.0
    """One evaluation of the model."""
    megabytes: float = 0.0
    """The most memory that a part needs, with that of the process; without `probing`, unless it was
    measured at the cell's own length."""
    probing: dict[int, float] = field(default_factory=dict)
    """Probes and report, by length."""
    scaled: list[str] = field(default_factory=list)
    """What was measured on fewer sequences."""
    load: float = 1.0
    """Time that passed, as a multiple of the processor time: about 1 on an idle machine."""
    worked: float = 0.0
    """Processor time of the measuring process before it ended."""

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Parts":
        """The inverse of `to_dict`, also through JSON."""
        probing = {int(length): seconds for length, seconds in values["probing"].items()}
        return cls(**{**values, "probing": probing})


@dataclass(frozen=True)
class Costs:
    """What a cell of some size costs."""

    step: float
    """Seconds per training step."""
    evaluation: float
    """Seconds per evaluation."""
    fixed: float
    """Seconds for everything that happens once: start, preparation, probes and report."""
    megabytes: float

    def seconds(self, steps: int, evaluate_every: int) -> float:
        """The time of a whole cell.

        Args:
            steps: training steps.
            evaluate_every: steps between evaluations.

        Returns:
            Seconds.
        """
        # One evaluation comes before the first step, and one after the last.
        evaluations = 1 + -(-steps // evaluate_every)
        return self.fixed + steps * self.step + evaluations * self.evaluation


def lengths_to_probe(sizes: Sequence[Size]) -> dict[str, list[int]]:
    """At which lengths to time probes and report, and with which size.

    Args:
        sizes: the sizes that are measured.

    Returns:
        Lengths by the key of a size.
    """
    groups: dict[str, list[Size]] = {}
    for size in sorted(sizes, key=lambda size: size.length):
        groups.setdefault(size.probed_like, []).append(size)
    found: dict[str, list[int]] = {}
    for group in groups.values():
        lengths = [size.length for size in group]
        short = [length for length in lengths if length <= LONGEST_PROBED]
        wanted = {short[0], short[-1]} if short else set()
        if lengths[-1] > LONGEST_PROBED:
            wanted.add(LONGEST_PROBED)
        for length in sorted(wanted):
            # Memory counts where a size has the length itself.
            size = next((size for size in group if size.length == length), group[0])
            found.setdefault(size.key, []).append(length)
    return found


def measure_parts(cell: Cell, probed_lengths: Sequence[int], plugins: Sequence[Path]) -> Parts:
    """Measure a cell in a process of its own, with the cell's number of threads.

    Args:
        cell: the cell.
        probed_lengths: lengths at which probes and report are timed.
        plugins: plugin files that the cell needs.

    Returns:
        The parts.

    Raises:
        EstimateError: if the process fails.
    """
    request = {
        "cell": cell.to_dict(),
        "probed_lengths": list(probed_lengths),
        "plugins": [str(path) for path in plugins],
    }
    before = _seconds_of_children()
    answer = subprocess.run(
        [sys.executable, "-m", "mtdinterp.sweep.step_time"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=environment(cell.threads),
        check=False,
    )
    lines = answer.stdout.splitlines()
    if answer.returncode or not lines:
        said = answer.stderr.strip().splitlines()
        reason = said[-1] if said else f"it ended with code {answer.returncode}"
        raise EstimateError(f"{cell.name} could not be measured: {printable(reason)}")
    parts = Parts.from_dict(json.loads(lines[-1]))
    # Ending takes a second, too: Python frees everything that was imported.
    parts.startup += max(0.0, _seconds_of_children() - before - parts.worked)
    return parts


def _seconds_of_children() -> float:
    """Processor time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def costs_of(sizes: Sequence[Size], measured: Mapping[str, Parts]) -> dict[str, Costs]:
    """The costs of all sizes, from those that were measured.

    Args:
        sizes: all sizes; of each family at least one was measured.
        measured: the parts by the key of the size.

    Returns:
        The costs by the key of the size.
    """
    probing: dict[str, dict[int, float]] = {}
    for size in sizes:
        if size.key in measured:
            probing.setdefault(size.probed_like, {}).update(measured[size.key].probing)
    found: dict[str, Costs] = {}
    for family in families(sizes):
        known = {size.length: measured[size.key] for size in family if size.key in measured}
        for size in family:
            parts = _at_length(known, size.length)
            probed = probing_seconds(probing[size.probed_like], size.length)
            fixed = parts["startup"] + parts["preparation"] + probed
            found[size.key] = Costs(parts["step"], parts["evaluation"], fixed, parts["megabytes"])
    return found


def _at_length(known: Mapping[int, Parts], length: int) -> dict[str, float]:
    """The parts of a family at a length, each interpolated by itself."""
    found = {}
    for name in ("startup", "preparation", "step", "evaluation", "megabytes"):
        values = {entry: getattr(parts, name) for entry, parts in known.items()}
        found[name] = interpolate(values, length)
    return found


def probing_seconds(known: Mapping[int, float], length: int) -> float:
    """The time of probes and report at a length, extrapolated beyond the longest one known."""
    longest = max(known)
    if length > longest:
        return known[longest] * (length / longest) ** PROBING_GROWTH
    return interpolate(known, length)
