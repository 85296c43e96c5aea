"""The driver: hands cells to an engine until all are finished, and shows how far they are."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mtdinterp.sweep import attempts
from mtdinterp.sweep.cells import FAILED
from mtdinterp.sweep.directory import Entry, Sweep, longest_first
from mtdinterp.sweep.engines import Engine
from mtdinterp.sweep.status import (
    BLOCKED,
    BROKEN,
    FINISHED,
    RUNNING,
    WAITING,
    Status,
    statuses,
)

PAUSE = 0.1
"""Seconds between two looks at the engine."""
LOOK = 2.0
"""Seconds between two looks at all cells' files, which other machines may change."""
MOST_VAIN_STARTS = 3
"""A cell whose process died so often before its first attempt fails."""


@dataclass
class Driver:
    """One sweep on one engine."""

    sweep: Sweep
    engine: Engine
    show: Callable[[dict[str, Status]], None]
    """Called with all states again and again."""
    stopping: Callable[[], bool] = lambda: False
    started: dict[str, int] = field(default_factory=dict)
    """The cells that the engine has, each with the number of its last attempt before."""
    vain: dict[str, int] = field(default_factory=dict)
    """How often a cell's process died before it began an attempt."""
    found: dict[str, Status] = field(default_factory=dict)
    looked_at: float = 0.0

    def run(self) -> dict[str, Status]:
        """Run until no cell can be run any more, or until asked to stop.

        Returns:
            The state of every cell.
        """
        order = longest_first(self.sweep.entries)
        self.look()
        while not self.stopping():
            if self.collect() or time.monotonic() - self.looked_at > LOOK:
                self.look()
            if self.hand_out(order):
                self.look()
            self.show(self.found)
            if not self.started and not any(map(self.is_open, self.found.values())):
                return self.found
            time.sleep(PAUSE)
        self.engine.stop()
        self.collect()
        self.look()
        return self.found

    def look(self) -> None:
        """Read the state of every cell."""
        self.found = statuses(self.sweep, self.found)
        self.looked_at = time.monotonic()

    def is_open(self, status: Status) -> bool:
        """Whether a cell may still be finished by this sweep or by another one."""
        return status.state in (WAITING, RUNNING)

    def hand_out(self, order: list[Entry]) -> bool:
        """Start the cells that can run now; returns whether there were any."""
        room = self.engine.room()
        some = False
        for entry in order:
            if room <= 0:
                break
            if self.can_start(entry):
                directory = self.sweep.directory(entry.name)
                newest = attempts.newest(directory)
                self.started[entry.name] = newest.number if newest else 0
                self.engine.start(directory)
                room -= 1
                some = True
        return some

    def can_start(self, entry: Entry) -> bool:
        """Whether a cell waits for nothing but a place to run."""
        if entry.name in self.started or self.found[entry.name].state != WAITING:
            return False
        return entry.parent is None or self.found[entry.parent].state == FINISHED

    def collect(self) -> bool:
        """Take note of the cells that have ended; returns whether there were any."""
        names = self.engine.ended()
        for name in names:
            before = self.started.pop(name)
            newest = attempts.newest(self.sweep.directory(name))
            if newest is None or newest.number == before:
                self.note_vain_start(name)
        return bool(names)

    def note_vain_start(self, name: str) -> None:
        """Count a process that did not begin an attempt; too many of them are a failure."""
        directory = self.sweep.directory(name)
        status = statuses(self.sweep, self.found)[name]
        if status.state in (FINISHED, BROKEN, RUNNING) or self.stopping():
            return
        self.vain[name] = self.vain.get(name, 0) + 1
        if self.vain[name] >= MOST_VAIN_STARTS:
            words = self.engine.last_words(directory)
            reason = words.splitlines()[-1] if words else "it printed nothing"
            error = f"its process died before it began: {reason}"
            attempts.write_json(directory / FAILED, {"error": error})


def retry_failed(sweep: Sweep) -> int:
    """Forget the failures of all cells, so that they are run again; returns how many there were."""
    count = 0
    for directory in sweep.directories:
        path = directory / FAILED
        if path.exists():
            path.unlink()
            count += 1
    return count


def summary(found: dict[str, Status]) -> str:
    """How many cells are finished, in one sentence."""
    states = [status.state for status in found.values()]
    finished = states.count(FINISHED)
    parts = [f"{finished} of {len(states)} cells finished"]
    for state in (BROKEN, BLOCKED, RUNNING, WAITING):
        if states.count(state):
            parts.append(f"{states.count(state)} {state}")
    return ", ".join(parts)
