"""Attempts: who runs a cell, whether that process still lives, and how it ended.

An attempt is a directory, attempts/0001, attempts/0002, …, made in one step and only once, so two
processes never make the same attempt. The newest attempt owns the cell as long as its process
lives:

- on the machine where it runs, a released lock on its directory shows at once that it died;
- everywhere, a process whose heartbeat is older than `STALE` counts as dead: progress.json is
  rewritten every few seconds. Times are compared by the clock of the file system, because the
  clocks of machines differ.

A process that was only paused, and finds a newer attempt when it continues, gives up: its files are
in its own attempt, so it has disturbed nothing.

owner.json      who runs the attempt, and from which step
progress.json   what it does now; the heartbeat
end.json        how it ended; missing if the process died
log.txt         what the process printed, if an engine runs it
run/            the training run
"""

import contextlib
import fcntl
import json
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mtdinterp.processor import processor_name
from mtdinterp.storage import AlreadyThere, publish_new, staged, write_file
from mtdinterp.sweep.cells import ATTEMPTS, CellError, read_json

OWNER = "owner.json"
PROGRESS = "progress.json"
END = "end.json"
LOG = "log.txt"
RUN = "run"
BEAT = 5.0
"""Seconds between two heartbeats."""
STALE = 120.0
"""Seconds after which a silent process on another machine counts as dead. Network file systems may
show changes a minute late."""
MOST_CRASHES = 5
"""A cell fails for good after this many consecutive attempts that died without saving a new
training step."""
NAME = re.compile(r"[0-9]{4,9}")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

DONE = "done"
FAILED = "failed"
STOPPED = "stopped"
LOST = "lost"
RETRIED = "retried"
"""How an attempt can end: finished, ended in an error, was asked to stop, another took over, or
died and was forgiven by `--retry-failed`."""


class Busy(Exception):
    """Another process runs the cell."""


class GivenUp(Exception):
    """The cell's processes died again and again without any progress."""


class Lost(Exception):
    """Another process has taken the cell over, because this one was silent for too long."""


@dataclass(frozen=True)
class Owner:
    """Who runs an attempt."""

    host: str
    boot: str
    """What tells two machines of one name apart, and a machine before and after a restart."""
    pid: int
    engine: str
    step: int
    """The training step at which the attempt began."""
    locked: bool
    """Whether the file system can lock the attempt's directory."""
    processor: str = ""
    """The processor's name; results are bit-identical on one type of processor."""


@dataclass(frozen=True)
class Record:
    """An attempt as its files show it."""

    number: int
    path: Path
    owner: Owner | None
    """None if the file cannot be read."""
    end: dict[str, Any] | None
    """How it ended; None if it runs or its process died."""

    def is_alive(self) -> bool:
        """Whether its process is still running."""
        if self.end is not None:
            return False
        owner = self.owner
        is_here = owner is not None and (owner.host, owner.boot) == this_machine()
        if owner is not None and is_here and owner.locked and _is_unlocked(self.path):
            return False
        return seconds_silent(self.path) < STALE


class Attempt:
    """The attempt of this process."""

    def __init__(self, number: int, path: Path, stopping: Callable[[], bool]) -> None:
        self.number = number
        self.path = path
        self.run = path / RUN
        self.lost = False
        self.stopping = stopping
        self._progress: dict[str, Any] = {}
        self._stop = threading.Event()

    def says(self, phase: str, **details: Any) -> None:
        """Record what the process does; written with the next heartbeat."""
        self._progress = {"phase": phase, **details}

    def check(self) -> None:
        """Raise `Lost` if another process has taken over."""
        if self.was_replaced():
            raise Lost

    def was_replaced(self) -> bool:
        """Whether there is a newer attempt."""
        self.lost = self.lost or _numbers(self.path.parent)[-1:] != [self.number]
        return self.lost

    def beat(self) -> None:
        """Write the heartbeat, and find out whether another process has taken over."""
        self.was_replaced()
        asked = {"stopping": True} if self.stopping() else {}
        write_json(self.path / PROGRESS, {**self._progress, **asked})

    def end(self, how: str, **details: Any) -> None:
        """Record how the attempt ended."""
        write_json(self.path / END, {"how": how, **details})

    @contextmanager
    def beating(self) -> Iterator[None]:
        """A context in which a thread writes the heartbeat."""

        def work() -> None:
            while not self._stop.wait(BEAT):
                # A heartbeat that cannot be written is late; the next one may succeed.
                with contextlib.suppress(OSError):
                    self.beat()

        thread = threading.Thread(target=work, name="heartbeat", daemon=True)
        self.beat()
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


@contextmanager
def attempting(
    cell: Path,
    step: int,
    engine: str,
    most_crashes: int = MOST_CRASHES,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[Attempt]:
    """Take a cell for this process.

    Args:
        cell: the cell's directory.
        step: the training step from which this attempt will continue.
        engine: what runs the cell, for the records.
        most_crashes: no attempt is made after this many consecutive ones that died without
            saving a new training step.
        stopping: whether the process was asked to stop. If it is then killed, that is not counted
            as a crash.

    Returns:
        A context manager whose value is the attempt; the cell belongs to this process as long as
        it lasts.

    Raises:
        Busy: if another process runs the cell.
        GivenUp: if the cell's processes died too often.
    """
    known = records(cell)
    if known and known[-1].is_alive():
        raise Busy(describe(known[-1]))
    if crashes_without_progress(known, step) >= most_crashes:
        raise GivenUp
    number = known[-1].number + 1 if known else 1
    target = cell / ATTEMPTS / f"{number:04d}"
    host, boot = this_machine()
    with staged(target) as staging:
        is_locked = not _is_unlocked(staging)
        owner = Owner(host, boot, os.getpid(), engine, step, is_locked, processor_name())
        write_json(staging / OWNER, asdict(owner))
        write_json(staging / PROGRESS, {"phase": "starting"})
        try:
            publish_new(staging, target)
        except AlreadyThere as error:
            raise Busy("another process has just begun to run it") from error
        attempt = Attempt(number, target, stopping)
        with attempt.beating():
            yield attempt


def records(cell: Path) -> list[Record]:
    """All attempts of a cell, the oldest first."""
    return [_record(cell / ATTEMPTS, number) for number in _numbers(cell / ATTEMPTS)]


def newest(cell: Path) -> Record | None:
    """The last attempt of a cell, or None."""
    numbers = _numbers(cell / ATTEMPTS)
    return _record(cell / ATTEMPTS, numbers[-1]) if numbers else None


def crashes_without_progress(known: list[Record], step: int) -> int:
    """How many of the last attempts died and brought training no further than it was.

    A process that was killed after it had been asked to stop has not crashed.

    Args:
        known: all attempts.
        step: the training step from which the next attempt would continue.
    """
    count = 0
    for record in reversed(known):
        if record.end is not None or record.owner is None or record.owner.step < step:
            break
        if not was_stopping(record):
            count += 1
    return count


def was_stopping(record: Record) -> bool:
    """Whether an attempt was last seen stopping, as it was asked to."""
    with contextlib.suppress(CellError):
        return bool((read_json(record.path / PROGRESS) or {}).get("stopping"))
    return False


def forgive(cell: Path) -> None:
    """Let the crashes of the last attempts no longer count against a cell."""
    last = newest(cell)
    if last is not None and last.end is None and not last.is_alive():
        write_json(last.path / END, {"how": RETRIED})


def describe(record: Record) -> str:
    """Who runs an attempt, in a few words."""
    if record.owner is None:
        return "an unknown process"
    return f"process {record.owner.pid} on {record.owner.host} ({record.owner.engine})"


def seconds_silent(path: Path) -> float:
    """How long ago an attempt wrote its heartbeat, by the clock of the file system."""
    try:
        last = (path / PROGRESS).stat().st_mtime
    except OSError:
        return float("inf")
    return file_system_now(path.parent.parent) - last


def file_system_now(directory: Path) -> float:
    """The time by the clock that dates the files of a directory."""
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()  # a directory that may only be read


@cache
def this_machine() -> tuple[str, str]:
    """The name of this machine, and what tells its present run from others."""
    try:
        boot = BOOT_ID.read_text().strip()
    except OSError:
        boot = ""
    return socket.gethostname(), boot


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file in one step."""
    write_file(path, as_json(values))


def as_json(values: dict[str, Any]) -> bytes:
    """The contents of a JSON file."""
    return (json.dumps(values, indent=1) + "\n").encode()


def _numbers(attempts: Path) -> list[int]:
    """The numbers of all attempts, in order."""
    try:
        names = os.listdir(attempts)
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if NAME.fullmatch(name))


def _record(attempts: Path, number: int) -> Record:
    path = attempts / f"{number:04d}"
    owner = None
    end = None
    with contextlib.suppress(CellError, TypeError):
        owner = Owner(**(read_json(path / OWNER) or {}))
    try:
        end = read_json(path / END)
    except CellError:
        end = {"how": FAILED, "error": f"{END} is damaged"}
    return Record(number, path, owner, end)


def _is_unlocked(path: Path) -> bool:
    """Whether no process holds the lock on a directory.

    The lock is asked for as a shared one, which many may hold: asking must not look like owning.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
