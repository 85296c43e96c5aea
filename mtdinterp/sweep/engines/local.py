"""Cells as processes on this machine, one fresh process per cell."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from mtdinterp.sweep.engines.base import Resources

ERRORS = "stderr.txt"
"""What a cell's process printed, in the cell's directory."""
LAST_BYTES = 2000
PATIENCE = 60.0
"""Seconds in which a cell that is asked to stop has to save."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalEngine:
    """Runs as many cells at once as there are processors for them."""

    name = "local"

    def __init__(self, resources: Resources) -> None:
        """
        Args:
            resources: what each cell may use.
        """
        self.resources = resources
        most = max(1, processors() // resources.threads)
        self.most_at_once = resources.most_at_once or most
        self.running: dict[str, subprocess.Popen] = {}

    def room(self) -> int:
        """How many more cells can be started now."""
        return self.most_at_once - len(self.running)

    def start(self, directory: Path) -> None:
        """Start a process that runs the cell.

        Its standard input is a pipe from this process: when this process ends, however that
        happens, the pipe closes, and the cell saves and stops.
        """
        with open(directory / ERRORS, "ab") as errors:
            self.running[directory.name] = subprocess.Popen(
                cell_command(directory, self.resources, self.name),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=environment(self.resources.threads),
                # Ctrl-C in the terminal is for this process, which stops its cells itself.
                start_new_session=True,
            )

    def ended(self) -> list[str]:
        """The names of the cells whose process has ended."""
        names = [name for name, process in self.running.items() if process.poll() is not None]
        for name in names:
            _close(self.running.pop(name))
        return names

    def last_words(self, directory: Path) -> str:
        """The end of what the cell's process printed."""
        with contextlib.suppress(OSError), open(directory / ERRORS, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LAST_BYTES))
            return file.read().decode(errors="replace").strip()
        return ""

    def stop(self) -> None:
        """Ask all processes to save and end, and end those that do not within a minute."""
        for process in self.running.values():
            process.send_signal(signal.SIGTERM)
        for process in self.running.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
        self.kill()

    def kill(self) -> None:
        """End all processes at once."""
        for process in self.running.values():
            process.kill()
            process.wait()
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
