"""Run one cell: train it, or continue where an earlier attempt ended, then measure it.

`run_cell` may be called any number of times, by any number of processes, at any moment: a cell is
trained once, its numbers are written once, and a call for a finished cell does nothing.
"""

import faulthandler
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mtdinterp.checkpoints import load_checkpoint, save_checkpoint
from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.checkpoints.save import parent_of, versions
from mtdinterp.formatting import printable
from mtdinterp.models import LensTransformer
from mtdinterp.providers import loaded_files
from mtdinterp.registry import ARCHITECTURES
from mtdinterp.storage import AlreadyThere, write_new_file
from mtdinterp.sweep import attempts
from mtdinterp.sweep.attempts import Attempt, Busy, GivenUp, Lost, attempting
from mtdinterp.sweep.cells import (
    CHECKPOINT,
    DONE,
    FAILED,
    Cell,
    CellError,
    failure_of,
    is_done,
    read_cell,
)
from mtdinterp.sweep.measuring import measured
from mtdinterp.sweep.runs import copy_run, newest_run, remove_runs
from mtdinterp.sweep.sources import sources_digest
from mtdinterp.tasks import task_from_dict
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.growth import grow
from mtdinterp.training.loop import Trainer
from mtdinterp.training.run import Run, new_run, resumed_run

log = logging.getLogger("mtdinterp")

DONE_NOW = "done"
FAILED_NOW = "failed"
STOPPED_NOW = "stopped"
BUSY_NOW = "busy"
WAITING_NOW = "waiting"
"""How a call of `run_cell` can end: the cell is finished, has failed for good, was asked to stop,
is run by another process, or waits for the cell that it starts from."""


REPLACED = "replaced-done.json"
"""Earlier numbers of other probes, in the attempt that has replaced them."""


class Stopped(Exception):
    """The process was asked to stop."""


@dataclass(frozen=True)
class Ended:
    """How a call of `run_cell` ended; small, because engines send it over the network."""

    name: str
    how: str
    reason: str = ""

    def to_dict(self) -> dict[str, str]:
        """All fields."""
        return {"name": self.name, "how": self.how, "reason": self.reason}


def run_cell(
    directory: Path,
    engine: str = "by hand",
    stopping: Callable[[], bool] = lambda: False,
    most_crashes: int = attempts.MOST_CRASHES,
    progress: Callable[[str], None] = lambda line: None,
    capture: bool = False,
) -> Ended:
    """Finish a cell, unless it is finished or another process runs it.

    Args:
        directory: the cell's directory.
        engine: what runs the cell, for the records.
        stopping: whether the process was asked to stop; asked after every step and every probe.
        most_crashes: the cell fails for good after this many consecutive attempts that died
            without saving a new training step.
        progress: called with a line for every evaluation and every probe.
        capture: whether what this process prints goes to the attempt's log.

    Returns:
        How it ended. An error of the cell itself is recorded in failed.json and returned.

    Raises:
        CellError: if the cell cannot be read, or was planned with other code.
    """
    cell = read_cell(directory)
    if is_done(directory, cell):
        return Ended(cell.name, DONE_NOW)
    check_code(cell)
    failure = failure_of(directory, cell)
    if failure is not None:
        return Ended(cell.name, FAILED_NOW, failure)
    if cell.parent is not None and not _parent_is_done(directory, cell.parent):
        return Ended(cell.name, WAITING_NOW, f"{cell.parent} is not finished")
    source = newest_run(directory)
    step = source[1] if source else 0
    if (directory / CHECKPOINT).is_dir():
        step = cell.recipe["steps"]
    try:
        with attempting(directory, step, engine, most_crashes, stopping) as attempt:
            if is_done(directory, cell):  # since it was looked at above
                attempt.end(attempts.LOST)
                return Ended(cell.name, DONE_NOW)
            with captured_output(attempt.path / attempts.LOG) if capture else nullcontext():
                return _run_attempt(directory, cell, attempt, source, stopping, progress)
    except Busy as busy:
        return Ended(cell.name, BUSY_NOW, str(busy))
    except GivenUp:
        number = f"{most_crashes} attempts in a row" if most_crashes > 1 else "an attempt"
        return _fail(directory, cell, f"{number} died without saving a new training step")


def _run_attempt(
    directory: Path,
    cell: Cell,
    attempt: Attempt,
    source: tuple[Path, int] | None,
    stopping: Callable[[], bool],
    progress: Callable[[str], None],
) -> Ended:
    """Run a cell that belongs to this process, and record how the attempt ended."""
    started = time.time()
    try:
        with _threads(cell.threads):
            _work(directory, cell, attempt, source, stopping, progress, started)
    except Stopped:
        attempt.end(attempts.STOPPED)
        return Ended(cell.name, STOPPED_NOW)
    except KeyboardInterrupt:  # a second signal, which does not wait for the process to save
        attempt.end(attempts.STOPPED)
        raise
    except Lost:
        attempt.end(attempts.LOST)
        return Ended(cell.name, BUSY_NOW, "another process has taken it over")
    except AlreadyThere:
        attempt.end(attempts.LOST)
        return Ended(cell.name, DONE_NOW)
    # Whatever goes wrong in a cell, in a plugin's code too, must not end the sweep.
    except Exception as error:
        if attempt.was_replaced():
            # Whoever has taken the cell over may have removed this attempt's run.
            attempt.end(attempts.LOST)
            return Ended(cell.name, BUSY_NOW, "another process has taken it over")
        sentence = _sentence(error)
        attempt.end(attempts.FAILED, error=sentence, traceback=traceback.format_exc())
        return _fail(directory, cell, sentence)
    attempt.end(attempts.DONE)
    return Ended(cell.name, DONE_NOW)


def _sentence(error: Exception) -> str:
    """An error in one line; of an unexpected one, the type too."""
    text = printable(" ".join(str(error).split()))
    if text and isinstance(error, ValueError | OSError):
        return text
    return f"{type(error).__name__}: {text or 'no message'}"


def _work(
    directory: Path,
    cell: Cell,
    attempt: Attempt,
    source: tuple[Path, int] | None,
    stopping: Callable[[], bool],
    progress: Callable[[str], None],
    started: float,
) -> None:
    """Train, measure, and write the numbers."""

    def stage(name: str) -> None:
        if stopping():
            raise Stopped
        attempt.check()
        attempt.says(name)
        progress(f"{name} …")

    stage("preparing")
    task = task_from_dict(cell.task)
    held_out = HeldOut.prepare(task, cell.model["length"])
    if not (directory / CHECKPOINT).is_dir():
        _train(directory, cell, attempt, source, held_out, stopping, progress)
    checkpoint = load_checkpoint(directory / CHECKPOINT)
    numbers = measured(checkpoint, cell, held_out, directory, stage)
    done = {
        "name": cell.name,
        "measure": cell.measure.to_dict(),
        "weights_sha256": tensors_digest(checkpoint.model.state_dict()),
        **numbers,
        "run": {
            "attempts": attempt.number,
            "host": attempts.this_machine()[0],
            "processors": _processors(directory),
            "seconds": checkpoint.history[-1]["seconds"],
            "seconds_of_last_attempt": time.time() - started,
            "finished": time.time(),
            **versions(),
        },
    }
    attempt.check()
    remove_runs(directory)
    _publish(directory, cell, attempt, done)


def check_code(cell: Cell) -> None:
    """Refuse to run a cell with other code than it was planned with.

    Raises:
        CellError: with what differs, and what to do.
    """
    if cell.sources != sources_digest():
        raise CellError(
            f"{cell.name}: was planned with another version of mtdinterp, whose numbers may "
            "differ; plan it again with mtdinterp sweep run"
        )
    loaded = {provider.name: provider.sha256 for provider in loaded_files()}
    for name, version in cell.plugins.items():
        if not name.endswith(".py"):
            continue  # an installed package; its task and architecture are looked up by name
        if name not in loaded:
            raise CellError(f"{cell.name}: needs the plugin file {name}; name it with --plugin")
        if loaded[name] != version:
            raise CellError(
                f"{cell.name}: the plugin file {name} has changed since the cell was planned; plan "
                "it again with mtdinterp sweep run"
            )


def _train(
    directory: Path,
    cell: Cell,
    attempt: Attempt,
    source: tuple[Path, int] | None,
    held_out: HeldOut,
    stopping: Callable[[], bool],
    progress: Callable[[str], None],
) -> None:
    """Train to the last step and write the checkpoint."""

    def after_step(trainer: Trainer) -> bool:
        attempt.says("training", step=trainer.step, steps=trainer.recipe.steps)
        return not stopping() and not attempt.lost

    def after_evaluation(trainer: Trainer) -> None:
        last = trainer.history[-1]
        progress(f"step {trainer.step} of {trainer.recipe.steps}, KL {last['kl']:.5f}")

    with _begun(directory, cell, attempt, source, held_out) as run:
        run.train(after_step, after_evaluation)
        attempt.check()
        trainer = run.trainer
        if not trainer.finished:
            raise Stopped
        save_checkpoint(
            directory / CHECKPOINT,
            trainer.model,
            trainer.task,
            recipe=trainer.recipe.to_dict(),
            seeds=cell.seeds,
            history=trainer.history,
            parent=run.config.get("parent"),
            snapshots=run.snapshots,
        )


def _begun(
    directory: Path,
    cell: Cell,
    attempt: Attempt,
    source: tuple[Path, int] | None,
    held_out: HeldOut,
) -> AbstractContextManager[Run]:
    """The run of this attempt: a copy of the newest one that can be resumed, or a new one."""
    if source is not None:
        copy_run(source[0], attempt.run)
        remove_runs(directory, but=attempt.path)
        return resumed_run(attempt.run, held_out)
    model = new_model(cell)
    parent = None
    if cell.parent is not None:
        before = load_checkpoint(directory.parent / cell.parent / CHECKPOINT)
        model = grow(before.model, model.config.length, held_out.task.n_components)
        parent = parent_of(cell.parent, before.model)
    recipe = Recipe.from_dict(cell.recipe)
    seeds = dict(cell.seeds)
    return new_run(attempt.run, model, held_out.task, recipe, seeds, held_out, parent)


def new_model(cell: Cell) -> LensTransformer:
    """The cell's model before training."""
    return ARCHITECTURES[cell.model["architecture"]].from_dict(cell.model)


def _parent_is_done(directory: Path, parent: str) -> bool:
    path = directory.parent / parent
    return (path / DONE).exists() and (path / CHECKPOINT).is_dir()


def _publish(directory: Path, cell: Cell, attempt: Attempt, values: dict[str, Any]) -> None:
    """Write the numbers, in place of those of other probes.

    Raises:
        AlreadyThere: if another process has written them first.
    """
    path = directory / DONE
    (directory / FAILED).unlink(missing_ok=True)  # of other probes
    if path.exists() and not is_done(directory, cell):
        path.replace(attempt.path / REPLACED)
    write_new_file(path, attempts.as_json(values))


def _processors(directory: Path) -> str:
    """The types of processors on which the cell has run."""
    owners = [record.owner for record in attempts.records(directory)]
    return ", ".join(sorted({owner.processor for owner in owners if owner is not None}))


def _fail(directory: Path, cell: Cell, error: str) -> Ended:
    """Record that the cell has failed for good."""
    failure = {"error": error, "measure": cell.measure.to_dict()}
    attempts.write_json(directory / FAILED, failure)
    return Ended(cell.name, FAILED_NOW, error)


@contextmanager
def captured_output(path: Path) -> Iterator[None]:
    """A context in which everything that this process prints goes to a file.

    That includes what libraries print past Python, and the traceback of a crash in C++ code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with open(path, "ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        faulthandler.enable(file)
        try:
            yield
        finally:
            faulthandler.disable()
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, handle in zip((1, 2), before, strict=True):
                os.dup2(handle, stream)
                os.close(handle)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """A context in which torch and the kernels compute on so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
