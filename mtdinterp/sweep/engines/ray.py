"""Cells as tasks of a Ray cluster, or of a Ray that is started on this machine for the sweep.

Ray decides where a task runs, and repeats it as often as its worker or its machine dies. That is
safe, because a cell resumes from its last checkpoint, and ends, because a cell counts its crashes
itself and then returns instead of running.
"""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mtdinterp.sweep.engines.base import Resources, tail
from mtdinterp.sweep.engines.local import ERRORS, PATIENCE, THREAD_VARIABLES, processors
from mtdinterp.sweep.engines.ray_sessions import connected, silenced, started

MOST_QUEUED = 5000
"""Tasks that a cluster is given at once, if the user sets no limit."""
WAITING_PER_CELL = 2
"""Tasks that a Ray of our own is given for each cell that fits: the one that runs and its
successor, which then starts without waiting for the driver."""
FORCED = 20.0
"""Seconds in which Ray ends tasks by force."""
STARTS = "starts"
"""A file in the cell's directory with one byte for each process that has not loaded yet."""
MOST_STARTS = 3
"""Maximum number of processes per task that may die while importing mtdinterp and the plugins."""
PAUSE = 1.0
"""Seconds between two questions to a cluster, which may have thousands of tasks."""


class RayEngine:
    """Runs cells as Ray tasks."""

    name = "ray"

    def __init__(self, resources: Resources, address: str | None, threads: int = 1) -> None:
        """
        Args:
            resources: what the cells may use.
            address: the address of a Ray cluster; starts Ray on this machine if None.
            threads: the most threads of a cell, for a Ray that is started on this machine.

        Raises:
            EngineError: if Ray is not installed, cannot be reached, or does not start.
        """
        self.resources = resources
        self.tasks: dict[str, Any] = {}
        self.errors: dict[str, str] = {}
        self.folder: Path | None = None
        self.pause = 0.0
        self.look_at = 0.0
        """When to ask Ray again which tasks have ended."""
        if address is None:
            most_at_once = resources.most_at_once or max(1, processors() // threads)
            self.most_queued = most_at_once * WAITING_PER_CELL
            self.ray, self.folder = started(most_at_once * threads, threads)
        else:
            self.most_queued = resources.most_at_once or MOST_QUEUED
            self.ray = connected(address)
            self.pause = PAUSE
        self.undo_silence = silenced(self.ray)
        # A fresh process for every cell, as on the other engines. Ray repeats a task whose process
        # died; an error of the task itself would come again.
        options = {
            "max_calls": 1,
            "max_retries": -1,
            "retry_exceptions": False,
        }
        self.task = self.ray.remote(**options)(run_in_worker)

    def has_room(self, threads: int) -> bool:
        """Whether Ray may be given one more cell; it queues those that do not fit yet."""
        return len(self.tasks) < self.most_queued

    def start(self, directory: Path, threads: int) -> None:
        """Submit a task that runs the cell."""
        plugins = [str(path) for path in self.resources.plugins]
        task = self.task.options(name=directory.name, num_cpus=threads)
        self.tasks[directory.name] = task.remote(
            str(directory.absolute()), plugins, threads, self.resources.most_crashes
        )

    def ended(self) -> list[str]:
        """The names of the cells whose task has ended, was cancelled, or could not run."""
        if time.monotonic() < self.look_at:
            return []
        self.look_at = time.monotonic() + self.pause
        finished = self._finished(timeout=0)
        names = [name for name, task in self.tasks.items() if task in finished]
        for name in names:
            try:
                self.ray.get(self.tasks.pop(name))
            except self.ray.exceptions.RayError as error:
                self.errors[name] = str(error)
        return names

    def last_words(self, directory: Path) -> str:
        """The error of the cell's task, or else the end of what it printed."""
        error = self.errors.get(directory.name, "")
        return error.strip() or tail(directory / ERRORS)

    def stop(self) -> int:
        """Ask all tasks to save and end, and kill those that do not within a minute.

        Returns:
            How many were killed.
        """
        self._cancel(force=False)
        killed = len(self.tasks) - len(self._finished(timeout=PATIENCE))
        self.look_at = 0.0
        self.ended()
        self.kill()
        return killed

    def kill(self) -> None:
        """End all tasks at once."""
        self._cancel(force=True)
        self._finished(timeout=FORCED)
        self.look_at = 0.0
        self.ended()

    def close(self) -> None:
        """End what still runs; stop Ray if it was started here, leave the cluster otherwise."""
        try:
            if self.ray.is_initialized():
                self.kill()
        finally:
            self.ray.shutdown()
            self.undo_silence()
            if self.folder is not None:
                shutil.rmtree(self.folder, ignore_errors=True)

    def _finished(self, timeout: float) -> set[Any]:
        """The tasks that have ended, after waiting for all of them for some seconds."""
        tasks = list(self.tasks.values())
        if not tasks:
            return set()
        finished, _ = self.ray.wait(tasks, num_returns=len(tasks), timeout=timeout)
        return set(finished)

    def _cancel(self, force: bool) -> None:
        for task in self.tasks.values():
            self.ray.cancel(task, force=force)


def run_in_worker(
    directory: str, plugins: Sequence[str], threads: int, most_crashes: int
) -> dict[str, str]:
    """Run a cell in a process of Ray's, which ends afterwards.

    Args:
        directory: the cell's directory, on storage that all machines share.
        plugins: plugin files to load.
        threads: how many threads the numerical libraries may use.
        most_crashes: the cell fails for good after this many consecutive attempts that died
            without saving a new training step.

    Returns:
        How it ended, small enough to travel with Ray's own messages.
    """
    from mtdinterp.commands.interrupts import STOP_SIGNALS, recording

    stop: list[int] = []
    # Ray cancels a task by SIGINT, and sends SIGTERM when it ends a worker; both may come.
    with recording(STOP_SIGNALS, stop):
        cell = Path(directory)
        _print_to(cell / ERRORS)
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
        _count_start(cell / STARTS)
        from mtdinterp.providers import load_plugin

        for path in plugins:
            load_plugin(path)
        from mtdinterp.sweep.running import run_cell

        (cell / STARTS).unlink(missing_ok=True)
        stopping = partial(bool, stop)
        ended = run_cell(cell, RayEngine.name, stopping, most_crashes, _print, capture=True)
    return ended.to_dict()


def _count_start(path: Path) -> None:
    """Refuse to load once more if that has killed several processes.

    The cell counts only the crashes of its attempts, and Ray would start processes forever.
    """
    with open(path, "ab") as file:
        file.write(b".")
    if path.stat().st_size > MOST_STARTS:
        path.unlink(missing_ok=True)
        raise RuntimeError(f"{MOST_STARTS} processes died while they loaded mtdinterp and plugins")


def _print_to(path: Path) -> None:
    """Redirect what this process prints, so that its last words are with the cell."""
    with contextlib.suppress(OSError), open(path, "wb") as file:
        os.dup2(file.fileno(), 2)


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
