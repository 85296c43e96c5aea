"""The queue of Slurm: which jobs are in it, and how they are asked to stop.

Slurm is asked with squeue, once for all jobs of the user. submitit asks with sacct instead, which
needs an accounting database: on a cluster without one, it takes a job that was killed for one that
still runs, forever.
"""

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

log = logging.getLogger("mtdinterp")
PATIENCE = 120.0
"""Seconds in which a command of Slurm must answer."""
COMPLETING = "COMPLETING"

Jobs = Mapping[str, Any]
"""submitit's jobs, by the names of the cells."""


@runtime_checkable
class Queue(Protocol):
    """Where jobs wait and run."""

    pause: float
    """Seconds between two looks at the queue."""

    def submitting(self) -> AbstractContextManager[None]:
        """A context in which jobs are submitted."""
        ...

    def unfinished(self, jobs: Jobs) -> set[str] | None:
        """The names of the jobs that wait or run; None if the queue does not answer."""
        ...

    def cancel_waiting(self, jobs: Jobs) -> None:
        """Cancel the jobs that have not started."""
        ...

    def ask_to_stop(self, jobs: Jobs) -> None:
        """Ask running jobs to save and end; may be repeated."""
        ...

    def cancel(self, jobs: Jobs) -> None:
        """End jobs at once."""
        ...


class SlurmQueue:
    """The real queue."""

    pause = 5.0

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """A context in which Ctrl-C waits: sbatch, once begun, must say what it has submitted."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def unfinished(self, jobs: Jobs) -> set[str] | None:
        """The names of the jobs that are in the queue."""
        # All jobs of the user: for the ids of old jobs, squeue fails.
        words = ["squeue", "--noheader", "--array", f"--user={os.getuid()}", "--format=%i|%T"]
        answer = _answer(words)
        if answer is None:
            return None
        states = dict(line.strip().split("|", 1) for line in answer.splitlines() if "|" in line)
        return {name for name, job in jobs.items() if _is_unfinished(job, states.get(job.job_id))}

    def cancel_waiting(self, jobs: Jobs) -> None:
        """Cancel the jobs that have not started."""
        self._scancel(jobs, "--state=PENDING")

    def ask_to_stop(self, jobs: Jobs) -> None:
        """Send SIGTERM to running jobs.

        scancel without a signal would kill them after a time that the cluster sets, 30 seconds by
        default. Sent to jobs that wait, scancel would retry for a while.
        """
        self._scancel(jobs, "--state=RUNNING", "--signal=TERM")

    def cancel(self, jobs: Jobs) -> None:
        """Kill the processes of running jobs, and take all jobs out of the queue."""
        self._scancel(jobs, "--state=RUNNING", "--signal=KILL")
        self._scancel(jobs)

    def _scancel(self, jobs: Jobs, *flags: str) -> None:
        if jobs:
            _answer(["scancel", "--quiet", *flags, *(job.job_id for job in jobs.values())])


class LocalQueue:
    """Processes on this machine, each below a process of submitit's that looks after it."""

    pause = 0.0

    def submitting(self) -> AbstractContextManager[None]:
        """A context without meaning here."""
        return contextlib.nullcontext()

    def unfinished(self, jobs: Jobs) -> set[str] | None:
        """The names of the jobs whose process runs."""
        return {name for name, job in jobs.items() if not job.done()}

    def cancel_waiting(self, jobs: Jobs) -> None:
        """No job waits here."""

    def ask_to_stop(self, jobs: Jobs) -> None:
        """Send SIGTERM, which submitit's processes hand on; their method `cancel` would kill."""
        for job in jobs.values():
            if not job.done():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(job.job_id), signal.SIGTERM)

    def cancel(self, jobs: Jobs) -> None:
        """Kill the processes."""
        for job in jobs.values():
            if not job.done():
                job.cancel()


def _is_unfinished(job: Any, state: str | None) -> bool:
    """Whether a job may still run its cell.

    A job may be completing for long after its cell has ended, if its node does not answer.
    """
    if state == COMPLETING:
        return not job.paths.result_pickle.exists()
    return state is not None


def _answer(words: list[str]) -> str | None:
    """What a command of Slurm prints; None if it fails, which is reported and may pass."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env=_environment(),
            # Ctrl-C in the terminal must not end the command.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("%s: %s", words[0], error)
        return None
    if done.returncode != 0:
        log.warning("%s failed: %s", words[0], " ".join(done.stderr.split()))
        return None
    return done.stdout


def _environment() -> dict[str, str]:
    """The environment without the user's defaults for these commands, which may hide jobs."""
    hidden = ("SQUEUE_", "SCANCEL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
