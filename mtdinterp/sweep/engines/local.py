"""Cells as processes on this machine, one fresh process per cell."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from mtdinterp.sweep.engines.base import Resources, tail

ERRORS = "stderr.txt"
"""What a cell's process printed before its attempt, in the cell's directory."""
PATIENCE = 60.0
"""Seconds in which a cell that is asked to stop has to save."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Running:
    """A cell's process."""

    process: subprocess.Popen
    threads: int


class LocalEngine:
    """Runs as many cells at once as there are processors for them."""

    name = "local"

    def __init__(self, resources: Resources) -> None:
        """
        Args:
            resources: what each cell may use.
        """
        self.resources = resources
        self.running: dict[str, Running] = {}

    def has_room(self, threads: int) -> bool:
        """Whether one more cell with so many threads can be started now."""
        if self.resources.most_at_once is not None:
            return len(self.running) < self.resources.most_at_once
        taken = sum(running.threads for running in self.running.values())
        return not self.running or taken + threads <= processors()

    def start(self, directory: Path, threads: int) -> None:
        """Start a process that runs the cell.

        Its standard input is a pipe from this process: when this process ends, however that
        happens, the pipe closes, and the cell saves and stops.
        """
        with open(directory / ERRORS, "wb") as errors:
            process = subprocess.Popen(
                cell_command(directory, self.resources, self.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment(threads),
                # Ctrl-C in the terminal is for this process, which stops its cells itself.
                start_new_session=True,
            )
        self.running[directory.name] = Running(process, threads)

    def ended(self) -> list[str]:
        """The names of the cells whose process has ended."""
        names = []
        for name, running in list(self.running.items()):
            if running.process.poll() is not None:
                _close(self.running.pop(name).process)
                names.append(name)
        return names

    def last_words(self, directory: Path) -> str:
        """The end of what the cell's process printed before its attempt."""
        return tail(directory / ERRORS)

    def stop(self) -> int:
        """Ask all processes to save and end, and kill those that do not within a minute.

        Returns:
            How many were killed.
        """
        for running in self.running.values():
            running.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        killed = 0
        for running in self.running.values():
            try:
                running.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                killed += 1
        self.kill()
        return killed

    def kill(self) -> None:
        """End all processes at once."""
        for running in self.running.values():
            running.process.kill()
        for running in self.running.values():
            running.process.wait()
        self.ended()

    def close(self) -> None:
        """End what still runs."""
        self.kill()


def cell_command(directory: Path, resources: Resources, engine: str) -> list[str]:
    """The command line that runs one cell for an engine.

    Args:
        directory: the cell's directory.
        resources: what the cell may use.
        engine: the engine's name, for the records.

    Returns:
        The words, beginning with the Python interpreter.
    """
    words = [sys.executable, "-m", "mtdinterp", "sweep", "cell", str(directory)]
    words += ["--engine", engine, "--attempts", str(resources.most_crashes), "--until-eof"]
    for path in resources.plugins:
        words += ["--plugin", str(path)]
    return words


def environment(threads: int) -> dict[str, str]:
    """The environment of a cell's process, with the number of threads that it computes on."""
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}


def processors() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _close(process: subprocess.Popen) -> None:
    """Close the pipe to a process that has ended."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
