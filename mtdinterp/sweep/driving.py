"""The driver: hands cells to an engine until all are finished, and shows how far they are."""

import logging
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
    status_of,
    statuses,
)

log = logging.getLogger("mtdinterp")

PAUSE = 0.1
"""Seconds between two looks at the engine."""
LOOK = 2.0
"""Least seconds between two looks at all cells' files, which other machines may change."""
LOOK_SHARE = 0.1
"""The largest share of the time that is spent on such looks."""
MOST_FAILED_STARTS = 3
"""A cell fails after this many consecutive processes that died before training started."""


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
    failed_starts: dict[str, int] = field(default_factory=dict)
    """How often in a row a cell's process died before it began an attempt."""
    n_killed: int = 0
    """How many cells did not save in time when they were asked to stop."""
    found: dict[str, Status] = field(default_factory=dict)
    look_at: float = 0.0
    """When to look at all cells again."""

    def run(self) -> dict[str, Status]:
        """Run until no cell can be run any more, or until asked to stop.

        Returns:
            The state of every cell.
        """
        order = longest_first(self.sweep.entries)
        self.look()
        while not self.stopping():
            self.collect()
            if time.monotonic() >= self.look_at:
                self.look()
            self.hand_out(order)
            self.show(self.found)
            if not self.started and not any(map(self.is_open, self.found.values())):
                return self.found
            time.sleep(PAUSE)
        self.n_killed = self.engine.stop()
        self.collect()
        self.look()
        return self.found

    def look(self) -> None:
        """Read the state of every cell."""
        begun = time.monotonic()
        try:
            self.found = statuses(self.sweep, self.found)
        except OSError as error:
            if not self.found:
                raise
            # A network file system may fail for a moment, and the cells go on without the driver.
            log.warning("cannot read %s (%s); trying again", self.sweep.path, error)
        now = time.monotonic()
        self.look_at = now + max(LOOK, (now - begun) / LOOK_SHARE)

    def is_open(self, status: Status) -> bool:
        """Whether a cell may still be finished by this sweep or by another one."""
        return status.state in (WAITING, RUNNING)

    def hand_out(self, order: list[Entry]) -> None:
        """Start the cells that can run now."""
        for entry in order:
            if not self.can_start(entry):
                continue
            if not self.engine.has_room(entry.threads):
                break  # a smaller cell must not take the place that a larger one waits for
            directory = self.sweep.directory(entry.name)
            newest = attempts.newest(directory)
            if newest is not None and newest.is_alive():
                continue  # another engine has begun to run it since the last look
            self.started[entry.name] = newest.number if newest else 0
            self.engine.start(directory, entry.threads)

    def can_start(self, entry: Entry) -> bool:
        """Whether a cell waits for nothing but a place to run."""
        if entry.name in self.started or self.found[entry.name].state != WAITING:
            return False
        return entry.parent is None or self.found[entry.parent].state == FINISHED

    def collect(self) -> None:
        """Take note of the cells that have ended."""
        for name in self.engine.ended():
            before = self.started.pop(name)
            directory = self.sweep.directory(name)
            newest = attempts.newest(directory)
            self.found[name] = status_of(directory, self.found[name].entry)
            if newest is not None and newest.number != before:
                self.failed_starts.pop(name, None)
            elif self.found[name].state == WAITING and not self.stopping():
                self.count_failed_start(name)
            if self.found[name].state == BROKEN:
                self.look_at = 0.0  # cells that start from its model are blocked now

    def count_failed_start(self, name: str) -> None:
        """Count a process that did not begin an attempt; too many of them are a failure."""
        directory = self.sweep.directory(name)
        self.failed_starts[name] = self.failed_starts.get(name, 0) + 1
        if self.failed_starts[name] >= MOST_FAILED_STARTS:
            words = self.engine.last_words(directory)
            reason = words.splitlines()[-1] if words else "it printed nothing"
            error = f"its process ended before training started: {reason}"
            attempts.write_json(directory / FAILED, {"error": error})
            self.found[name] = status_of(directory, self.found[name].entry)


def retry_failed(sweep: Sweep) -> int:
    """Forget the failures of all cells, so that they are run again; returns how many there were."""
    count = 0
    for directory in sweep.directories:
        path = directory / FAILED
        if path.exists():
            path.unlink()
            attempts.forgive(directory)
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
