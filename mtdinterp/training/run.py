"""A run in a directory: a checkpoint that always loads, and a state from which the run resumes.

Every file is replaced atomically, and everything that decides how training continues is in one of
them, `training.pt`. A run that is killed at any moment leaves a directory that loads and resumes.
The checkpoint is the model at its last evaluation, which is the last line of its history as loaded;
the state may be older or newer. The directory is locked while a run writes to it, and the lock ends
with the process, however that ends.
"""

import errno
import io
import logging
import os
import pickle
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mtdinterp.architectures import initialise
from mtdinterp.checkpoint_files import (
    SCHEMA,
    TRAINING,
    UNFINISHED,
    CheckpointError,
    check_new,
    read_config,
)
from mtdinterp.checkpoints.digests import config_digest
from mtdinterp.checkpoints.load import build
from mtdinterp.checkpoints.replace import locked, open_to_umask, replacing, staged
from mtdinterp.checkpoints.save import describe, write_config, write_history, write_weights
from mtdinterp.checkpoints.weight_files import UNREADABLE
from mtdinterp.models import LensTransformer
from mtdinterp.tasks import Task
from mtdinterp.training.evaluation import HeldOut
from mtdinterp.training.loop import Trainer
from mtdinterp.training.recipes import Recipe

RUN_PARTS = ("model", "task", "recipe", "seeds")
"""The parts of a configuration that decide how a run continues."""
SAVE_SECONDS = 300.0
"""The state is saved at least this often, however slow the steps are."""

log = logging.getLogger("mtdinterp")


@contextmanager
def new_run(
    path: str | os.PathLike,
    model: LensTransformer,
    task: Task,
    recipe: Recipe,
    seeds: dict[str, int],
    held_out: HeldOut | None = None,
) -> Iterator["Run"]:
    """Initialise the model and start a run in a new or empty directory.

    Args:
        path: the directory.
        model: the model to train; its parameters are overwritten by the recipe's initialisation.
        task: the task to train it on.
        recipe: the training settings.
        seeds: "model" decides the initialisation and the data; "task" is recorded if known.
        held_out: what the model is evaluated on; prepared from the task if None.

    Returns:
        A context manager whose value is the run; the directory is locked while it lasts.
    """
    target = Path(path).expanduser().resolve()
    check_new(target)
    _check_device(recipe.device)
    initialise(model, recipe.initialisation, seeds["model"])
    held_out = held_out or HeldOut.prepare(task, model.config.length)
    trainer = Trainer(model, task, recipe, seeds["model"], held_out)
    with staged(target) as staging, locked(staging):
        config = describe(model, task, recipe.to_dict(), seeds)
        write_config(staging, config)
        run = Run(staging, trainer, config)
        run.save_state()
        run.save_evaluation()
        open_to_umask(staging)
        try:
            staging.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise CheckpointError(
                    f"{target}: another run has started in this directory"
                ) from error
            raise
        run.path = target
        yield run


@contextmanager
def resumed_run(path: str | os.PathLike, held_out: HeldOut | None = None) -> Iterator["Run"]:
    """Resume the run in a directory from where it was last saved.

    Args:
        path: the directory.
        held_out: what the model is evaluated on; prepared from the task if None.

    Returns:
        A context manager whose value is the run; the directory is locked while it lasts.
    """
    source = Path(path).expanduser().resolve()
    if not source.is_dir():
        raise CheckpointError(f"{source}: no such directory to resume")
    config = read_config(source)
    with locked(source):
        state = read_state(source)
        if state["config_sha256"] != config_digest(config, RUN_PARTS):
            raise CheckpointError(
                f"{source}: {TRAINING} belongs to another config.json, or config.json was changed"
            )
        model, task = build(source, config)
        recipe = Recipe.from_dict(config["recipe"])
        _check_device(recipe.device)
        held_out = held_out or HeldOut.prepare(task, model.config.length)
        seed = int(config["seeds"]["model"])
        with _refusing_foreign_state(source):
            # The dtype comes first: it decides which optimizer and which kernels are used.
            model.to(next(iter(state["model"].values())).dtype)
            trainer = Trainer(model, task, recipe, seed, held_out)
            trainer.restore(state)
        _warn_of_changes(trainer, state)
        for left_behind in source.glob(UNFINISHED + "*"):
            left_behind.unlink(missing_ok=True)
        yield Run(source, trainer, config)


@contextmanager
def _refusing_foreign_state(source: Path) -> Iterator[None]:
    """One error for whatever torch raises when training.pt has unexpected contents."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(
            f"{source}: {TRAINING} does not match its config.json ({reason})"
        ) from error


def _warn_of_changes(trainer: Trainer, state: dict[str, Any]) -> None:
    """Log each property of the machine that differs from the one the state was saved on."""
    for name, now in trainer.circumstances().items():
        before = state.get(name, now)
        if before != now:
            log.warning(
                "mtdinterp: this run had %s = %s and resumes with %s: its last bits will differ "
                "from those of an uninterrupted run",
                name,
                before,
                now,
            )


class Run:
    """A trainer and the directory in which its progress is saved."""

    def __init__(self, path: Path, trainer: Trainer, config: dict[str, Any]) -> None:
        """
        Args:
            path: the directory.
            trainer: the training run.
            config: the contents of the directory's config.json.
        """
        self.path = path
        self.trainer = trainer
        self.config = config
        self.saved_at = time.monotonic()

    def train(
        self,
        after_step: Callable[[Trainer], bool] = lambda trainer: True,
        after_evaluation: Callable[[Trainer], None] = lambda trainer: None,
    ) -> None:
        """Train to the end or until `after_step` returns False, and save regularly."""

        def evaluated(trainer: Trainer) -> None:
            self.save_evaluation()
            after_evaluation(trainer)

        def stepped(trainer: Trainer) -> bool:
            by_steps = trainer.step % trainer.recipe.save_every == 0
            by_time = time.monotonic() - self.saved_at > SAVE_SECONDS
            if (by_steps or by_time) and not trainer.finished:
                self.save_state()
            return after_step(trainer)

        self.trainer.run(stepped, evaluated)
        self.save_state()

    def save_evaluation(self) -> None:
        """Write the model as just evaluated, and the history so far."""
        history = self.trainer.history
        write_history(self.path, history)
        write_weights(self.path, self.trainer.model, self.config, history[-1] if history else None)

    def save_state(self) -> None:
        """Write training.pt, the only file that resuming depends on besides config.json."""
        state = {
            **self.trainer.state(),
            "schema": SCHEMA,
            "config_sha256": config_digest(self.config, RUN_PARTS),
        }
        content = io.BytesIO()
        torch.save(state, content)
        with replacing(self.path / TRAINING) as path:
            path.write_bytes(content.getvalue())
        self.saved_at = time.monotonic()


def read_state(source: Path) -> dict[str, Any]:
    """The contents of training.pt: tensors and plain values.

    Anything else in the file is refused, never executed.
    """
    path = source / TRAINING
    try:
        state = _load_plain(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so this checkpoint cannot be resumed") from error
    except pickle.UnpicklingError as error:
        reason = "it holds objects other than tensors; they were not loaded"
        raise CheckpointError(f"{path}: damaged, or not written by mtdinterp ({reason})") from error
    except UNREADABLE as error:
        reason = "it cannot be read"
        raise CheckpointError(f"{path}: damaged, or not written by mtdinterp ({reason})") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA or "config_sha256" not in state:
        raise CheckpointError(
            f"{path}: expected a training state of checkpoint schema {SCHEMA}, written by mtdinterp"
        )
    return state


def _load_plain(content: bytes) -> Any:
    """Read a file of torch.save, checking the archive's checksums, which torch ignores."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if archive.testzip() is not None:
            raise zipfile.BadZipFile
    with warnings.catch_warnings():
        # torch warns about foreign pickles, which are refused anyway.
        warnings.simplefilter("ignore")
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _check_device(name: str) -> None:
    """Raise ValueError if torch cannot use the device."""
    try:
        torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: {name!r} cannot be used here ({reason})") from error
