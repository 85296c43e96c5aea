"""Patch sweeps as jobs: they run beside the page, tell how far they are, and stop when asked.

A sweep works on a copy of the model: hooks of the page's own runs must not be seen by it, nor it
wait for them. A new job ends the one before: there is one page to look at.
"""

import copy
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mtdinterp.app.scene import Scene
from mtdinterp.interventions import SweepResult, patch_sweep
from mtdinterp.results import to_plain

AIMS = {"away": "moved from before", "towards": "left to the source's"}
"""KL(before ‖ patched), or KL(source ‖ patched)."""


class Cancelled(Exception):
    """A job was asked to stop."""


@dataclass
class Job:
    """One sweep; `status` is running, done, cancelled or failed."""

    number: int
    status: str = "running"
    done: int = 0
    total: int = 0
    result: dict[str, Any] | None = None
    error: str | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.number,
            "status": self.status,
            "done": self.done,
            "total": self.total,
            "result": self.result,
            "error": self.error,
        }


class Sweeps:
    """The jobs; only the last one is kept."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._job: Job | None = None
        self._lock = threading.Lock()

    def start(self, scene: Scene, kind: str, aim: str) -> Job:
        run = sweep_of(scene, kind, aim)
        with self._lock:
            if self._job is not None:
                self._job.stop.set()
            job = self._job = Job(next(self._numbers))
        threading.Thread(target=self._work, args=(job, run), daemon=True).start()
        return job

    def find(self, number: int) -> Job:
        job = self._job
        if job is None or job.number != number:
            raise KeyError(
                f"sweep: there is none with the number {number}; only the last one is kept"
            )
        return job

    @staticmethod
    def _work(job: Job, run: Callable[[Callable[[int, int], None]], dict[str, Any]]) -> None:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total
            if job.stop.is_set():
                raise Cancelled

        try:
            job.result = run(progress)
            job.status = "done"
        except Cancelled:
            job.status = "cancelled"
        except ValueError as error:
            job.status, job.error = "failed", str(error)
        finally:
            job.finished.set()


def sweep_of(
    scene: Scene, kind: str, aim: str
) -> Callable[[Callable[[int, int], None]], dict[str, Any]]:
    """The sweep of the current pair, ready to run: the source's activations into the sequence's
    run, place by place."""
    if scene.source is None:
        raise ValueError(
            "source: a sweep needs a source sequence to take activations from; sample or type one"
        )
    model, tokens, source = copy.deepcopy(scene.model), scene.tokens, scene.source
    clean, corrupted, direction = (
        (tokens, source, "noise") if aim == "away" else (source, tokens, "denoise")
    )

    def run(progress: Callable[[int, int], None]) -> dict[str, Any]:
        return sweep_numbers(
            patch_sweep(model, clean, corrupted, kind, direction, progress=progress), aim
        )

    return run


def sweep_numbers(result: SweepResult, aim: str) -> dict[str, Any]:
    """Divergences, positive, for every place: [layer][position][part]."""
    return {
        "kind": result.kind,
        "aim": aim,
        "parts": list(result.parts),
        "values": to_plain(-result.values),
        "unpatched": -result.unpatched + 0.0,
    }
