"""What every cell of a sweep is doing, read from its files."""

import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp.sweep import attempts
from mtdinterp.sweep.cells import (
    DONE,
    FAILED,
    CellError,
    failure_of,
    is_done,
    read_cell,
    read_json,
)
from mtdinterp.sweep.directory import Entry, Sweep
from mtdinterp.sweep.engines.local import ERRORS

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
        failure = None
        if (directory / DONE).exists() or (directory / FAILED).exists():
            cell = read_cell(directory)
            if is_done(directory, cell):
                return Status(entry, FINISHED)
            failure = failure_of(directory, cell)
    except CellError as error:
        return Status(entry, BROKEN, str(error))
    if failure is not None:
        return Status(entry, BROKEN, failure)
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


def log_of(directory: Path) -> Path:
    """The file with what a cell's last process printed, or the directory of its attempts.

    A process that was started by hand prints to its terminal.
    """
    newest = attempts.newest(directory)
    if newest is None:
        return directory / ERRORS
    log = newest.path / attempts.LOG
    return log if log.exists() else newest.path


def counts(found: dict[str, Status]) -> Counter[str]:
    """How many cells are in each state."""
    return Counter(status.state for status in found.values())


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
