"""A run in a directory: a checkpoint that can be loaded at any instant, and a state from which it
goes on.

Every file is replaced in one step, and everything that decides how training goes on is in one of
them, `training.pt`, so a run that is killed anywhere leaves a directory that loads and resumes. The
checkpoint is the model at its last evaluation, which is the last line of its history as it is
loaded; the state may be from before or after that. The directory is locked while a run writes to
it; the lock ends with the process, however that ends.
"""

import errno
import io
import logging
import os
import pickle
import struct
import time
import warnings
import zipfile
import zlib
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
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask
from mtdinterp.training.evaluation import HeldOut
from mtdinterp.training.loop import Trainer
from mtdinterp.training.recipes import Recipe

UNREADABLE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    struct.error,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged or foreign file may raise."""
RUN_PARTS = ("model", "task", "recipe", "seeds")
"""What of a configuration decides how a run goes on."""
SAVE_SECONDS = 300.0
"""The state is saved after this time at the latest, however few steps that were."""

log = logging.getLogger("mtdinterp")


@contextmanager
def new_run(
    path: str | os.PathLike,
    model: LensTransformer,
    task: MTDTask,
    recipe: Recipe,
    seeds: dict[str, int],
    held_out: HeldOut | None = None,
) -> Iterator["Run"]:
    """Initialise the model and begin a run in a new or empty directory. `seeds` has "model", and
    "task" if known."""
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
                raise CheckpointError(f"{target}: another run began there first") from error
            raise
        run.path = target
        yield run


@contextmanager
def resumed_run(path: str | os.PathLike, held_out: HeldOut | None = None) -> Iterator["Run"]:
    """Go on with the run in a directory, from where it was last saved."""
    source = Path(path).expanduser().resolve()
    if not source.is_dir():
        raise CheckpointError(f"{source}: no such directory to resume")
    config = read_config(source)
    with locked(source):
        state = read_state(source)
        if state["config_sha256"] != config_digest(config, RUN_PARTS):
            raise CheckpointError(
                f"{source}: {TRAINING} belongs to another config.json, or that one was changed"
            )
        model, task = build(source, config)
        recipe, seed = Recipe.from_dict(config["recipe"]), int(config["seeds"]["model"])
        _check_device(recipe.device)
        held_out = held_out or HeldOut.prepare(task, model.config.length)
        try:
            model.to(next(iter(state["model"].values())).dtype)
            trainer = Trainer(model, task, recipe, seed, held_out)
            trainer.restore(state)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(
                f"{source}: {TRAINING} does not fit its config.json ({reason})"
            ) from error
        for name, now in trainer.circumstances().items():
            if state.get(name, now) != now:
                log.warning(
                    "mtdinterp: this run had %s = %s and goes on with %s: its last bits will "
                    "differ from a run "
                    "that was never stopped",
                    name,
                    state[name],
                    now,
                )
        for left_behind in source.glob(UNFINISHED + "*"):
            left_behind.unlink(missing_ok=True)
        yield Run(source, trainer, config)


class Run:
    """A trainer and the directory that follows it."""

    def __init__(self, path: Path, trainer: Trainer, config: dict[str, Any]) -> None:
        self.path, self.trainer, self.config = path, trainer, config
        self.saved_at = time.monotonic()

    def train(
        self,
        after_step: Callable[[Trainer], bool] = lambda trainer: True,
        after_evaluation: Callable[[Trainer], None] = lambda trainer: None,
    ) -> None:
        """Train to the end, or until `after_step` returns False, saving on the way and at the
        end."""

        def evaluated(trainer: Trainer) -> None:
            self.save_evaluation()
            after_evaluation(trainer)

        def stepped(trainer: Trainer) -> bool:
            due = (
                trainer.step % trainer.recipe.save_every == 0
                or time.monotonic() - self.saved_at > SAVE_SECONDS
            )
            if due and not trainer.finished:
                self.save_state()
            return after_step(trainer)

        self.trainer.run(stepped, evaluated)
        self.save_state()

    def save_evaluation(self) -> None:
        """The model as it was evaluated just now, and the history to there; the state has its own
        copies."""
        history = self.trainer.history
        write_history(self.path, history)
        write_weights(self.path, self.trainer.model, self.config, history[-1] if history else None)

    def save_state(self) -> None:
        """What resuming goes by, alone."""
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
    """The contents of training.pt: tensors and plain values; anything else in it is refused, not
    executed."""
    path = source / TRAINING
    try:
        content = io.BytesIO(path.read_bytes())
        with zipfile.ZipFile(
            content
        ) as archive:  # torch's own format, whose checksums torch does not look at
            if archive.testzip() is not None:
                raise zipfile.BadZipFile
        content.seek(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign pickles, which are refused anyway
            state = torch.load(content, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing, so this checkpoint cannot be resumed") from error
    except UNREADABLE as error:
        reason = (
            "it holds more than tensors and plain values"
            if isinstance(error, pickle.UnpicklingError)
            else "it cannot be read"
        )
        raise CheckpointError(f"{path}: damaged, or not written by mtdinterp ({reason})") from error
    if not isinstance(state, dict) or state.get("schema") != SCHEMA or "config_sha256" not in state:
        raise CheckpointError(
            f"{path}: expected checkpoint schema {SCHEMA}, or not written by mtdinterp"
        )
    return state


def _check_device(name: str) -> None:
    try:
        torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ValueError(
            f"device: {name!r} cannot be used here ({str(error).splitlines()[0]})"
        ) from error
