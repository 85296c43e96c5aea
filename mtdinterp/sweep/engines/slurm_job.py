"""What a Slurm job runs: one cell, in a way that survives preemption and time limits.

Slurm asks a job to end with a signal: SIGTERM when it is cancelled or preempted, and the signal
that submitit asks for (SIGUSR2) shortly before the time limit. Left to submitit, the first is
ignored, and the second ends the process in the middle of a step. Here, both make the cell save and
stop; then submitit's handler, called with the second, puts the job back into the queue.
"""

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp.commands.interrupts import recording


@dataclass(frozen=True)
class CellJob:
    """A function of a cell's directory that can be pickled."""

    most_crashes: int
    plugins: tuple[Path, ...] = ()

    def __call__(self, directory: str) -> dict[str, str]:
        """Run the cell, or what is left of it.

        Args:
            directory: the cell's directory.

        Returns:
            How it ended.
        """
        requeue = requeue_signal()
        asked: list[int] = []
        # Cancelling a job sends SIGTERM several times, directly and through srun.
        with recording((signal.SIGTERM, signal.SIGINT, requeue), asked):
            ended = self.run(Path(directory), asked)
        if ended["how"] == "stopped" and requeue in asked:
            # submitit's handler, which is in place again, requeues the job and ends the process.
            signal.raise_signal(requeue)
        return ended

    def run(self, directory: Path, asked: list[int]) -> dict[str, str]:
        """Run the cell until it is finished, or until a signal asks to stop."""
        from mtdinterp.providers import load_plugin

        for path in self.plugins:
            load_plugin(path)
        from mtdinterp.sweep.running import run_cell

        def progress(line: str) -> None:
            print(line, flush=True)

        ended = run_cell(
            directory, "slurm", lambda: bool(asked), self.most_crashes, progress, capture=True
        )
        print(f"{ended.name}: {ended.how} {ended.reason}".rstrip(), flush=True)
        return ended.to_dict()

    def checkpoint(self, directory: str) -> Any:
        """What submitit runs when the job is requeued: the same again, which resumes the cell."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, directory)

    # submitit 1.5.4 calls the method of this name, as its documentation says, but only if there is
    # one called `checkpoint`, its older name, too.
    __submitit_checkpoint__ = checkpoint


def requeue_signal() -> signal.Signals:
    """The signal with which submitit is told to requeue a job."""
    from submitit.core.job_environment import JobEnvironment

    return signal.Signals[f"SIG{JobEnvironment.USR_SIG}"]
