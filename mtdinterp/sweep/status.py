"""What every cell of a sweep is doing, read from its files."""

import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp.sweep import attempts
from mtdinterp.sweep.cells import DONE, FAILED, CellError, is_done, read_cell, read_json
from mtdinterp.sweep.directory import Entry, Sweep

FINISHED = "done"
RUNNING = "running"
BROKEN = "failed"
WAITING = "waiting"
BLOCKED = "blocked"
STATES = (FINISHED, RUNNING, BROKEN, WAITING, BLOCKED)
"""Blocked: it starts from the model of a cell that has failed."""


@dataclass(frozen=True)
class Status:
    """One cell's state."""

    entry: Entry
    state: str
    reason: str = ""
    """Why it failed or is blocked, or who runs it."""
    phase: str = ""
    """What a running cell does."""
    step: int = 0
    steps: int = 0
    """The training step that a running cell has reached, of how many."""

    @property
    def share(self) -> float:
        """How much of the training is done."""
        if self.state == FINISHED:
            return 1.0
        return self.step / self.steps if self.steps else 0.0


def statuses(sweep: Sweep, known: dict[str, Status] | None = None) -> dict[str, Status]:
    """The state of every cell, by name.

    Args:
        sweep: the sweep.
        known: an earlier answer; cells that were finished then are not read again.

    Returns:
        The states, in the order of the grid.
    """
    found: dict[str, Status] = {}
    for entry in sweep.entries:
        before = known.get(entry.name) if known else None
        if before is not None and before.state == FINISHED:
            found[entry.name] = before
            continue
        status = status_of(sweep.directory(entry.name), entry)
        parent = found.get(entry.parent) if entry.parent else None
        if status.state == WAITING and parent and parent.state in (BROKEN, BLOCKED):
            status = Status(entry, BLOCKED, f"it starts from {entry.parent}, which failed")
        found[entry.name] = status
    return found


def status_of(directory: Path, entry: Entry) -> Status:
    """The state of one cell, without regard to other cells."""
    try:
        if (directory / DONE).exists() and is_done(directory, read_cell(directory)):
            return Status(entry, FINISHED)
        failure = read_json(directory / FAILED)
    except CellError as error:
        return Status(entry, BROKEN, str(error))
    if failure is not None:
        return Status(entry, BROKEN, str(failure.get("error", "")))
    newest = attempts.newest(directory)
    if newest is None or not newest.is_alive():
        return Status(entry, WAITING)
    progress: dict[str, Any] = {}
    with contextlib.suppress(CellError):
        progress = read_json(newest.path / attempts.PROGRESS) or {}
    return Status(
        entry,
        RUNNING,
        attempts.describe(newest),
        phase=str(progress.get("phase", "")),
        step=_count(progress.get("step")),
        steps=_count(progress.get("steps")),
    )


def counts(found: dict[str, Status]) -> Counter[str]:
    """How many cells are in each state."""
    return Counter(status.state for status in found.values())


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
