"""What a grid costs, before it runs: measured step times, and the schedule on many workers."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from mtdinterp.formatting import counted, printable
from mtdinterp.sweep.board import clock
from mtdinterp.sweep.cells import Cell
from mtdinterp.sweep.costs import (
    PROBING_GROWTH,
    Costs,
    Parts,
    costs_of,
    lengths_to_probe,
    measure_parts,
)
from mtdinterp.sweep.planning import Plan
from mtdinterp.sweep.schedule import Schedule, remaining_chains, simulate
from mtdinterp.sweep.sizes import Size, labels, size_of, to_measure

WORKERS = (1, 8, 64, 512)
BUSY = 1.3
"""A machine on which work takes so many times its processor time is called busy."""
MEASURED, INTERPOLATED = "measured", "interpolated"


@dataclass(frozen=True)
class Row:
    """Cells of one size and the same number of steps."""

    label: str
    cells: int
    steps: int
    """Steps per cell."""
    source: str
    """Whether the size was measured, or interpolated between other lengths."""
    costs: Costs
    seconds: float
    """Seconds of all cells together."""
    cpu_seconds: float
    """The same, times the threads of each cell."""


@dataclass(frozen=True)
class Estimate:
    """What a grid costs."""

    title: str
    rows: tuple[Row, ...]
    longest_cell: float
    """Seconds of the longest cell."""
    longest_chain: float
    """Seconds of the longest chain of cells that start from one another."""
    schedules: Mapping[int, Schedule]
    """By number of workers."""
    notes: tuple[str, ...]
    """How the numbers came about, in sentences."""

    @property
    def cells(self) -> int:
        """The number of cells."""
        return sum(row.cells for row in self.rows)

    @property
    def steps(self) -> int:
        """Training steps of all cells."""
        return sum(row.cells * row.steps for row in self.rows)

    @property
    def cpu_hours(self) -> float:
        """Hours of all cells, times the threads of each."""
        return sum(row.cpu_seconds for row in self.rows) / 3600

    @property
    def megabytes(self) -> float:
        """The most memory of a cell."""
        return max(row.costs.megabytes for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON can hold them."""
        return {
            "title": self.title,
            "cells": self.cells,
            "steps": self.steps,
            "cpu_hours": self.cpu_hours,
            "megabytes": self.megabytes,
            "longest_cell": self.longest_cell,
            "longest_chain": self.longest_chain,
            "sizes": [asdict(row) for row in self.rows],
            "schedules": [
                {"workers": number, "seconds": found.makespan, "busy": found.busy}
                for number, found in self.schedules.items()
            ],
            "notes": list(self.notes),
        }

    def text(self) -> str:
        """The numbers as tables."""
        lines = [printable(self.title)] if self.title else []
        lines += [
            f"{counted(self.cells, 'cell')}, {self.steps:,} steps, {self.cpu_hours:,.3g} CPU hours",
            f"most memory of a cell: {_memory(self.megabytes)}",
            f"longest cell: {clock(self.longest_cell)}, longest chain: {clock(self.longest_chain)}",
            "",
            *_aligned([_HEADER, *map(_row_words, self.rows)]),
            "",
            *_aligned([("workers", "time", "busy"), *map(_schedule_words, self.schedules.items())]),
            "",
            *self.notes,
        ]
        return "\n".join(lines)


_HEADER = ("size", "cells", "steps", "s/step", "", "time per cell", "memory")


def _row_words(row: Row) -> tuple[str, ...]:
    return (
        printable(row.label),
        f"{row.cells:,}",
        f"{row.steps:,}",
        f"{row.costs.step:.3g}",
        row.source,
        clock(row.seconds / row.cells),
        _memory(row.costs.megabytes),
    )


def _schedule_words(entry: tuple[int, Schedule]) -> tuple[str, ...]:
    number, found = entry
    return (f"{number:,}", clock(found.makespan), f"{found.busy:.0%}")


def _memory(megabytes: float) -> str:
    return f"{megabytes / 1024:.1f} GB"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines: the first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        words = [word.rjust(width) for word, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *words]))
    return lines


def _announce(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def estimate(
    plan: Plan,
    plugins: Sequence[Path] = (),
    announce: Callable[[str], None] = _announce,
) -> Estimate:
    """What the cells of a grid cost on machines like this one.

    Args:
        plan: the cells.
        plugins: plugin files that the cells need.
        announce: called with a line before each measurement.

    Returns:
        The estimate.

    Raises:
        EstimateError: if a cell cannot be measured.
    """
    examples: dict[str, Cell] = {}
    sizes: dict[str, Size] = {}
    for cell in plan.cells:
        size = size_of(cell)
        sizes.setdefault(size.key, size)
        examples.setdefault(size.key, cell)
    distinct = list(sizes.values())
    names = labels(distinct)
    chosen = to_measure(distinct)
    probed = lengths_to_probe(chosen)
    measured: dict[str, Parts] = {}
    for number, size in enumerate(chosen, 1):
        announce(f"[{number}/{len(chosen)}] measuring {names[size.key]} …")
        lengths = probed.get(size.key, [])
        measured[size.key] = measure_parts(examples[size.key], lengths, plugins)
    return estimate_from(plan, distinct, measured)


def estimate_from(plan: Plan, sizes: Sequence[Size], measured: Mapping[str, Parts]) -> Estimate:
    """What the cells of a grid cost, from what was measured.

    Args:
        plan: the cells.
        sizes: their sizes, each once.
        measured: the parts of the sizes that were measured, by key.

    Returns:
        The estimate.
    """
    names = labels(sizes)
    costs = costs_of(sizes, measured)
    rows: dict[tuple[str, int], Row] = {}
    durations: dict[str, float] = {}
    for cell in plan.cells:
        key = size_of(cell).key
        steps = cell.recipe["steps"]
        seconds = costs[key].seconds(steps, cell.recipe["evaluate_every"])
        durations[cell.name] = seconds
        source = MEASURED if key in measured else INTERPOLATED
        before = rows.get((key, steps))
        rows[key, steps] = Row(
            label=names[key],
            cells=before.cells + 1 if before else 1,
            steps=steps,
            source=source,
            costs=costs[key],
            seconds=before.seconds + seconds if before else seconds,
            cpu_seconds=(before.cpu_seconds if before else 0.0) + seconds * cell.threads,
        )
    parents = {cell.name: cell.parent for cell in plan.cells}
    return Estimate(
        title=plan.title,
        rows=tuple(rows.values()),
        longest_cell=max(durations.values()),
        longest_chain=max(remaining_chains(durations, parents).values()),
        schedules={number: simulate(durations, parents, number) for number in WORKERS},
        notes=tuple(notes_on(sizes, measured)),
    )


def notes_on(sizes: Sequence[Size], measured: Mapping[str, Parts]) -> list[str]:
    """How the numbers came about, in sentences."""
    names = labels(sizes)
    notes = [
        "Times are for workers like this machine, one cell per worker, measured on untrained "
        "models; a step includes drawing its sequences."
    ]
    if len(measured) < len(sizes):
        notes.append(
            f"{len(measured)} of {len(sizes)} sizes were measured; the others are interpolated "
            "between lengths, as powers of the length."
        )
    longest = max(length for parts in measured.values() for length in parts.probing)
    if any(size.length > longest for size in sizes):
        notes.append(
            f"Probes and report were measured up to T = {longest} and are assumed to grow as "
            f"T^{PROBING_GROWTH} beyond; their memory there is not known."
        )
    notes += _notes_on_scaling(measured, names)
    load = median(parts.load for parts in measured.values())
    if load > BUSY:
        notes.append(
            f"This machine was busy: work took {load:.1f} times as long as it should. Times are "
            "processor times, which other programs lengthen less."
        )
    return notes


def _notes_on_scaling(measured: Mapping[str, Parts], names: Mapping[str, str]) -> list[str]:
    """What was measured on fewer sequences, each with the sizes for which it was."""
    found: dict[str, list[str]] = {}
    for key, parts in measured.items():
        for what in parts.scaled:
            found.setdefault(what, []).append(names[key])
    notes = []
    for what, sizes in found.items():
        which = sizes[0] if len(sizes) == 1 else f"{sizes[0]} and {len(sizes) - 1} more"
        notes.append(f"Scaled from fewer sequences: {what}; {which}.")
    return notes
