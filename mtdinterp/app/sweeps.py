"""Patch sweeps as background jobs that report their progress and can be cancelled.

A sweep works on a copy of the model, so that it neither sees the hooks of other runs nor waits for
them. Starting a sweep ends the previous one: the page shows one at a time.
"""

import copy
import itertools
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mtdinterp.app.errors import NotFound
from mtdinterp.app.scene import Scene
from mtdinterp.interventions import SweepResult, patch_sweep
from mtdinterp.results import to_plain

AIMS = {"away": "KL from the unpatched run", "towards": "remaining KL to the source run"}
"""KL(before ‖ patched), or KL(source ‖ patched)."""

Progress = Callable[[int, int], None]
Runnable = Callable[[Progress], dict[str, Any]]
"""A sweep ready to run. It calls its argument with the numbers of finished and of all patches, and
returns the result."""

log = logging.getLogger(__name__)


class Cancelled(Exception):
    """Raised inside a sweep that was asked to stop."""


@dataclass
class Job:
    """One sweep; `status` is running, done, cancelled or failed."""

    number: int
    status: str = "running"
    done: int = 0
    total: int = 0
    result: dict[str, Any] | None = None
    error: str | None = None
    """Why the sweep failed, in one sentence."""
    stop: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    def to_json(self) -> dict[str, Any]:
        """The job as the page sees it."""
        return {
            "id": self.number,
            "status": self.status,
            "done": self.done,
            "total": self.total,
            "result": self.result,
            "error": self.error,
        }

    def progress(self, done: int, total: int) -> None:
        """Note how far the sweep is; raises Cancelled if it was asked to stop."""
        self.done = done
        self.total = total
        if self.stop.is_set():
            raise Cancelled

    def work(self, run: Runnable) -> None:
        """Run the sweep to its end; however it ends, `status` says so."""
        try:
            self.result = run(self.progress)
            self.status = "done"
        except Cancelled:
            self.status = "cancelled"
        except BaseException as error:  # SystemExit ends the thread, and the job with it
            log.error("sweep %d failed", self.number, exc_info=error)
            self.error = f"The sweep failed with {type(error).__name__}: {error}"
            self.status = "failed"
        finally:
            self.finished.set()


class Sweeps:
    """Starts sweeps; only the last one is kept."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._job: Job | None = None
        self._lock = threading.Lock()

    def start(self, scene: Scene, kind: str, aim: str) -> Job:
        """Start a sweep in the background.

        Args:
            scene: the scene whose sequence is patched from its source sequence.
            kind: what is patched, one of `interventions.sweep.KINDS`.
            aim: what is measured, one of `AIMS`.

        Returns:
            The running job.
        """
        run = sweep_of(scene, kind, aim)
        with self._lock:
            if self._job is not None:
                self._job.stop.set()
            job = Job(next(self._numbers))
            self._job = job
        threading.Thread(target=job.work, args=(run,), daemon=True).start()
        return job

    def find(self, number: int) -> Job:
        """The job with this number."""
        job = self._job
        if job is None or job.number != number:
            raise NotFound(f"sweep: there is no sweep {number}; only the latest sweep is kept")
        return job


def sweep_of(scene: Scene, kind: str, aim: str) -> Runnable:
    """A sweep that patches activations of the source run into the run of the sequence.

    Args:
        scene: the scene with the sequence and its source sequence.
        kind: what is patched, one of `interventions.sweep.KINDS`.
        aim: what is measured, one of `AIMS`.

    Returns:
        A function that runs the sweep.
    """
    if scene.source is None:
        raise ValueError(
            "source: a sweep copies activations from a source sequence; sample or type one"
        )
    model = copy.deepcopy(scene.model)
    # `patch_sweep` measures KL(clean ‖ patched), so the clean run is the one to measure from.
    if aim == "away":
        clean, corrupted, direction = scene.tokens, scene.source, "noise"
    else:
        clean, corrupted, direction = scene.source, scene.tokens, "denoise"

    def run(progress: Progress) -> dict[str, Any]:
        result = patch_sweep(model, clean, corrupted, kind, direction, progress=progress)
        return sweep_numbers(result, aim)

    return run


def sweep_numbers(result: SweepResult, aim: str) -> dict[str, Any]:
    """A sweep as the page sees it, with KL as positive numbers [layer][position][part]."""
    return {
        "kind": result.kind,
        "aim": aim,
        "parts": list(result.parts),
        "values": to_plain(-result.values),
        "unpatched": -result.unpatched + 0.0,  # turns -0.0 into 0.0
    }
