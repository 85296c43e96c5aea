"""A run in a directory: a checkpoint that can be loaded at any instant, and a state from which it goes on.

Every file is replaced in one step, and everything that decides how training goes on is in one of them,
`training.pt`, so a run that is killed anywhere leaves a directory that loads and resumes. The directory itself is
locked while a run writes to it; the lock ends with the process, however that ends.
"""

import fcntl
import os
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mtdinterp.checkpoint_files import SCHEMA, TRAINING, UNFINISHED, CheckpointError, read_config
from mtdinterp.checkpoints import (
    build,
    describe,
    read_history,
    replacing,
    staged,
    write_config,
    write_history,
    write_weights,
)
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask
from mtdinterp.training.evaluation import HeldOut
from mtdinterp.training.initialise import initialise
from mtdinterp.training.loop import Trainer
from mtdinterp.training.recipes import Recipe

UNREADABLE = (OSError, RuntimeError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, pickle.UnpicklingError)
"""What reading a damaged or foreign file may raise."""


@contextmanager
def new_run(
    path: str | os.PathLike, model: LensTransformer, task: MTDTask, recipe: Recipe, seeds: dict[str, int],
    held_out: HeldOut | None = None,
) -> Iterator["Run"]:
    """Initialise the model and begin a run in a new or empty directory. `seeds` has "model", and "task" if known."""
    target = Path(path).expanduser().resolve()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target}: expected a new or empty directory for a new run; to go on with a run that is "
                              "there, resume it")
    initialise(model, recipe.initialisation, seeds["model"])
    held_out = held_out or HeldOut.prepare(task, model.config.length)
    trainer = Trainer(model, task, recipe, seeds["model"], held_out)
    with staged(target) as staging, _locked(staging):
        config = describe(model, task, recipe.to_dict(), seeds)
        write_config(staging, config)
        run = Run(staging, trainer, config)
        run.save()
        staging.chmod(0o755)
        try:
            staging.rename(target)
        except OSError as error:
            raise CheckpointError(f"{target}: another run began there first") from error
        run.path = target
        yield run


@contextmanager
def resumed_run(path: str | os.PathLike, held_out: HeldOut | None = None) -> Iterator["Run"]:
    """Go on with the run in a directory, from where it was last saved."""
    source = Path(path).expanduser().resolve()
    if not source.is_dir():
        raise CheckpointError(f"{source}: no such directory to resume")
    config = read_config(source)
    with _locked(source):
        state = read_state(source)
        model, task = build(source, config)
        try:
            recipe, seed = Recipe.from_dict(config["recipe"]), int(config["seeds"]["model"])
            trainer = Trainer(model, task, recipe, seed, held_out or HeldOut.prepare(task, model.config.length))
            trainer.restore(state, read_history(source))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"{source}: {TRAINING} does not fit its config.json ({error})") from error
        for left_behind in source.glob(UNFINISHED + "*"):
            left_behind.unlink(missing_ok=True)
        yield Run(source, trainer, config)


class Run:
    """A trainer and the directory that follows it."""

    def __init__(self, path: Path, trainer: Trainer, config: dict[str, Any]) -> None:
        self.path, self.trainer, self.config = path, trainer, config

    def save(self) -> None:
        """The state first: whatever else is newer or older than it, resuming goes by the state."""
        with replacing(self.path / TRAINING) as path, path.open("wb") as file:
            torch.save({"schema": SCHEMA, **self.trainer.state()}, file)
        write_weights(self.path, self.trainer.model, self.config)
        write_history(self.path, self.trainer.history)


def read_state(source: Path) -> dict[str, Any]:
    """The contents of training.pt: tensors and plain values; anything else in it is refused, not executed."""
    path = source / TRAINING
    try:
        with zipfile.ZipFile(path) as archive:  # what torch writes; torch itself does not look at the checksums
            broken = archive.testzip()
        if broken is not None:
            raise ValueError(f"{broken} does not have its checksum")
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so this checkpoint cannot be resumed") from error
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: damaged, or not written by mtdinterp "
                              f"({str(error).splitlines()[0] if str(error) else type(error).__name__})") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA:
        raise CheckpointError(f"{path}: expected checkpoint schema {SCHEMA}")
    return state


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{directory}: another run is writing there") from None
        yield
    finally:
        os.close(handle)
