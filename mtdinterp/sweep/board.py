"""What `mtdinterp sweep run` shows while cells run: a live table, or plain lines."""

import shutil
import sys
import time
from typing import Any

from mtdinterp.formatting import printable
from mtdinterp.sweep.status import (
    BLOCKED,
    BROKEN,
    FINISHED,
    RUNNING,
    WAITING,
    Status,
    counts,
)

INTERVAL = 0.5
"""Seconds between two pictures of the live table."""
MOST_ROWS = 12
"""Running cells that the live table shows."""
BAR_WIDTH = 20
CLEAR_BELOW = "\x1b[J"


class Board:
    """The state of a sweep on standard error."""

    def __init__(self, stream: Any = None) -> None:
        """
        Args:
            stream: where to write; standard error if None.
        """
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.started_at = time.monotonic()
        self.shown_at = 0.0
        self.rows = 0
        self.states: dict[str, str] = {}
        self.first_share: float | None = None
        self.lost = False

    def show(self, found: dict[str, Status]) -> None:
        """Show the states: those that changed as lines, and all of them in the live table."""
        changed = [
            status for name, status in found.items() if self.states.get(name) != status.state
        ]
        first = not self.states
        self.states = {name: status.state for name, status in found.items()}
        if self.first_share is None:
            self.first_share = share_done(found)
        events = [_event(status, first) for status in changed]
        lines = [line for line in events if line]
        if lines:
            self.erase()
            for line in lines:
                number = counts(found)[FINISHED]
                self.write(f"[{number}/{len(found)}] {line}\n")
        now = time.monotonic()
        if self.terminal and (lines or now - self.shown_at >= INTERVAL):
            self.shown_at = now
            self.draw(found)

    def draw(self, found: dict[str, Status]) -> None:
        """Draw the live table."""
        columns = shutil.get_terminal_size().columns - 1
        number = counts(found)
        head = ", ".join(
            f"{number[state]} {state}"
            for state in (FINISHED, RUNNING, BROKEN, WAITING, BLOCKED)
            if number[state] or state in (FINISHED, RUNNING)
        )
        rows = [f"{head}; {self.time_left(found)}"]
        running = [status for status in found.values() if status.state == RUNNING]
        width = max([len(status.entry.name) for status in running[:MOST_ROWS]], default=0)
        for status in running[:MOST_ROWS]:
            rows.append(f"  {status.entry.name:<{width}} {_bar(status)} {status.phase}")
        if len(running) > MOST_ROWS:
            rows.append(f"  and {len(running) - MOST_ROWS} more")
        self.erase()
        self.write("\n".join(printable(row)[:columns] for row in rows) + "\n")
        self.rows = len(rows)

    def time_left(self, found: dict[str, Status]) -> str:
        """The time that the rest takes if it goes on as before."""
        share = share_done(found)
        gained = share - (self.first_share or 0.0)
        if gained <= 0:
            return "time left unknown"
        seconds = (1 - share) / gained * (time.monotonic() - self.started_at)
        return f"about {clock(seconds)} left"

    def erase(self) -> None:
        """Remove the live table."""
        if self.rows:
            self.write(f"\x1b[{self.rows}A\r{CLEAR_BELOW}")
            self.rows = 0

    def close(self) -> None:
        """Remove the live table for good."""
        self.erase()

    def write(self, text: str) -> None:
        """Write, unless the terminal is gone; losing it must not stop the sweep."""
        if self.lost:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            self.lost = True


def share_done(found: dict[str, Status]) -> float:
    """The share of all training that is done."""
    total = sum(status.entry.cost for status in found.values())
    done = sum(status.entry.cost * status.share for status in found.values())
    return done / total if total else 1.0


def clock(seconds: float) -> str:
    """A duration in the units that matter."""
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {left} s" if minutes else f"{left} s"


def _bar(status: Status) -> str:
    filled = round(BAR_WIDTH * status.share)
    return "█" * filled + "·" * (BAR_WIDTH - filled) + f" {status.share:4.0%}"


def _event(status: Status, first: bool) -> str:
    """A line about a cell whose state has changed; empty for changes that go without saying."""
    name = printable(status.entry.name)
    if status.state == FINISHED:
        return "" if first else f"{name} finished"
    if status.state == RUNNING:
        return f"{name} started" if not first else f"{name} is run by {status.reason}"
    if status.state in (BROKEN, BLOCKED):
        return f"{name} {status.state}: {printable(status.reason)}"
    return ""
