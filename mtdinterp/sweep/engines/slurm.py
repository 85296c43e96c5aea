"""Cells as jobs of a Slurm cluster, submitted in arrays through the package submitit.

The directory of the sweep and the Python environment must be on a file system that all nodes share.
Scripts, pickles and logs of the jobs are in the folder slurm of the sweep's directory.
"""

import importlib.util
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtdinterp.sweep.engines.base import EngineError, Resources, tail
from mtdinterp.sweep.engines.local import environment, processors
from mtdinterp.sweep.engines.slurm_job import CellJob
from mtdinterp.sweep.engines.slurm_options import MOST_TIMEOUTS, read_options
from mtdinterp.sweep.engines.slurm_queue import LocalQueue, Queue, SlurmQueue

log = logging.getLogger("mtdinterp")
FOLDER = "slurm"
PROGRAMS = ("sbatch", "srun", "squeue", "scancel")
MOST_QUEUED = 1000
"""Jobs in the queue at once; Slurm's default for the largest array is 1001."""
RETRY = 30.0
"""Seconds before jobs that Slurm has refused are submitted again."""
PATIENCE = 120.0
"""Seconds in which cells that are asked to stop have to save."""
ASK_AGAIN = 10.0
"""Seconds between two requests to stop: a job that is just starting misses the first one."""
KILL_TIME = 15.0
"""Seconds in which jobs that are killed leave the queue."""
LOOK = 0.5


class SlurmEngine:
    """Submits the cells that can start together as one job array."""

    name = "slurm"

    def __init__(self, resources: Resources, out: Path, options: list[str]) -> None:
        """
        Args:
            resources: what each cell may use.
            out: the directory of the sweep.
            options: options of the jobs as NAME=VALUE; see `slurm_options`.

        Raises:
            EngineError: if an option is wrong, or there is no Slurm here.
        """
        self.options = read_options(options)
        self.resources = resources
        self.folder = out.absolute() / FOLDER
        is_local = self.options.cluster == "local"
        _check(self.folder, is_local)
        most = processors() if is_local else MOST_QUEUED
        self.most_at_once = min(resources.most_at_once or most, MOST_QUEUED)
        self.queue: Queue = LocalQueue() if is_local else SlurmQueue()
        self.function = CellJob(resources.most_crashes, tuple(resources.plugins))
        self.executor: Any = None
        self.burst: dict[int, list[Path]] = {}
        """Cells to submit, by their threads."""
        self.jobs: dict[str, Any] = {}
        """submitit's jobs that have not ended, by the names of their cells."""
        self.errors: dict[str, Path] = {}
        """What the last job of each cell printed."""
        self.submit_at = 0.0
        self.look_at = 0.0

    def has_room(self, threads: int) -> bool:
        """Whether one more cell can be handed out; those that wait in the queue count too."""
        waiting = sum(map(len, self.burst.values()))
        return len(self.jobs) + waiting < self.most_at_once

    def start(self, directory: Path, threads: int) -> None:
        """Submit the cell together with others that are handed out now."""
        self.burst.setdefault(threads, []).append(directory.absolute())

    def ended(self) -> list[str]:
        """The names of the cells whose job is no longer in the queue."""
        self._submit()
        if not self.jobs or time.monotonic() < self.look_at:
            return []
        return self._take_ended()

    def last_words(self, directory: Path) -> str:
        """The end of what the cell's job printed, without srun's report of its exit code."""
        path = self.errors.get(directory.name)
        if path is None:
            return ""
        lines = tail(path).splitlines()
        kept = [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]
        return "\n".join(kept or lines).strip()

    def stop(self) -> int:
        """Cancel waiting jobs, let running ones save, and kill those that do not in two minutes.

        Jobs do not go on without the driver: continuing is one command, and a cluster that is still
        busy after Ctrl-C would surprise.

        Returns:
            How many were killed.
        """
        self.burst.clear()
        if not self.jobs:
            return 0
        log.warning(
            "waiting up to %d s for %d jobs to save and end; Ctrl-C ends them at once",
            PATIENCE,
            len(self.jobs),
        )
        self.queue.cancel_waiting(self.jobs)
        self._wait(PATIENCE, ask=True)
        killed = len(self._unfinished())
        self.kill()
        return killed

    def kill(self) -> None:
        """End all jobs at once."""
        self.burst.clear()
        left = self._unfinished()
        if left:
            self.queue.cancel(left)
            self._wait(KILL_TIME)

    def close(self) -> None:
        """End what still runs."""
        if self.jobs:
            self.kill()

    def _submit(self) -> None:
        """Submit the cells that have been handed out, in one array per number of threads."""
        if time.monotonic() < self.submit_at:
            return
        for threads in list(self.burst):
            self._submit_array(threads)

    def _submit_array(self, threads: int) -> None:
        """Submit the cells with so many threads as one array."""
        burst = self.burst[threads]
        executor = self._executor(len(burst), threads)
        first = not self.errors
        try:
            with _submission_environment(threads), self.queue.submitting():
                jobs = executor.map_array(self.function, [str(path) for path in burst])
        except (RuntimeError, OSError) as error:
            reason = " ".join(str(error).split())
            if first:
                raise EngineError(
                    f"Slurm refused the jobs ({reason:.300}); check the options, and use "
                    "--max-concurrent if there are too many jobs"
                ) from error
            # Slurm may be restarting. A job that it has taken all the same does nothing.
            log.warning("Slurm refused jobs (%s); trying again in %d s", reason, RETRY)
            self.submit_at = time.monotonic() + RETRY
            return
        for directory, job in zip(burst, jobs, strict=True):
            self.jobs[directory.name] = job
            self.errors[directory.name] = job.paths.stderr
        del self.burst[threads]

    def _executor(self, count: int, threads: int) -> Any:
        """submitit's executor, with the parameters of an array of so many cells."""
        import submitit

        if self.executor is None:
            self.executor = submitit.AutoExecutor(
                self.folder,
                cluster=self.options.cluster,
                slurm_max_num_timeout=MOST_TIMEOUTS,
                local_max_num_timeout=MOST_TIMEOUTS,
            )
        self.executor.update_parameters(
            **self.options.parameters,
            tasks_per_node=1,
            cpus_per_task=threads,
            # Since Slurm 22.05, srun does not inherit the number from sbatch.
            slurm_srun_args=["--ntasks=1", f"--cpus-per-task={threads}", *self.options.srun_args],
            slurm_array_parallelism=count,
        )
        return self.executor

    def _take_ended(self) -> list[str]:
        """Forget the jobs that have ended; returns their names."""
        left = self._unfinished()
        self.look_at = time.monotonic() + self.queue.pause
        names = [name for name in self.jobs if name not in left]
        for name in names:
            del self.jobs[name]
        return names

    def _unfinished(self) -> dict[str, Any]:
        """The jobs that have not ended, as far as is known."""
        names = self.queue.unfinished(self.jobs)
        if names is None:
            return dict(self.jobs)
        return {name: job for name, job in self.jobs.items() if name in names}

    def _wait(self, seconds: float, ask: bool = False) -> None:
        """Wait until all jobs have ended; ask them again and again to stop, if wanted."""
        deadline = time.monotonic() + seconds
        ask_at = 0.0
        while (left := self._unfinished()) and time.monotonic() < deadline:
            if ask and time.monotonic() >= ask_at:
                self.queue.ask_to_stop(left)
                ask_at = time.monotonic() + ASK_AGAIN
            time.sleep(LOOK)
        self.look_at = 0.0


def _check(folder: Path, is_local: bool) -> None:
    """Refuse what cannot work."""
    if importlib.util.find_spec("submitit") is None:
        raise EngineError(
            "--engine slurm needs the submitit package: pip install 'mtdinterp[slurm]'"
        )
    if "%" in str(folder):
        raise EngineError(f"{folder.parent}: Slurm cannot write logs to a path with %; rename it")
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing and not is_local:
        raise EngineError(
            f"{missing[0]} is not on the path, so this is no machine of a Slurm cluster; start the "
            "sweep on its login node, or try things out here with --slurm cluster=local"
        )


@contextmanager
def _submission_environment(threads: int) -> Iterator[None]:
    """A context whose environment variables the submitted jobs inherit.

    If the driver itself runs in a job, the variables that describe that job are removed: sbatch
    would take some of them for options.
    """
    before = dict(os.environ)
    in_job = "SLURM_JOB_ID" in before
    try:
        for name in before:
            if in_job and name.startswith(("SLURM_", "SRUN_")) and name != "SLURM_CONF":
                del os.environ[name]
        os.environ.update(environment(threads))
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
