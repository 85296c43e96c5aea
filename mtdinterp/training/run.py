"""A run in a directory: a checkpoint that always loads, and a state from which the run resumes.

Every file is replaced atomically, and everything that decides how training continues is in one of
them, `training.pt`. A run that is killed at any moment leaves a directory that loads and resumes.
The checkpoint is the model at its last evaluation, which is the last line of its history as loaded;
the state may be older or newer. Every snapshot up to the step of the state is there; a resumed run
writes later ones again, with the same weights. The directory is locked while a run writes to it,
and the lock ends with the process, however that ends.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mtdinterp.architectures import initialise
from mtdinterp.bounded_files import resolved
from mtdinterp.checkpoint_files import (
    CONFIG,
    TRAINING,
    CheckpointError,
    check_new,
    read_config,
)
from mtdinterp.checkpoints.digests import RUN_PARTS, config_digest
from mtdinterp.checkpoints.load import build, named_errors
from mtdinterp.checkpoints.save import (
    describe,
    refusing_second_writer,
    write_config,
    write_history,
    write_weights,
)
from mtdinterp.checkpoints.snapshots import Snapshot, find_snapshots, write_snapshot
from mtdinterp.checks import check_count
from mtdinterp.models import LensTransformer
from mtdinterp.storage import AlreadyThere, locked, publish_new, remove_unfinished, staged
from mtdinterp.tasks import Task
from mtdinterp.training.evaluation import HeldOut
from mtdinterp.training.loop import Trainer
from mtdinterp.training.recipes import Recipe
from mtdinterp.training.snapshots import spaced_steps
from mtdinterp.training.state import (
    SavedState,
    StateError,
    checked_state,
    read_state,
    stored_dtype,
    write_state,
)

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
    parent: Mapping[str, Any] | None = None,
) -> Iterator["Run"]:
    """Initialise the model and start a run in a new or empty directory.

    Args:
        path: the directory.
        model: the model to train; without a parent, its parameters are overwritten by the recipe's
            initialisation.
        task: the task to train it on.
        recipe: the training settings.
        seeds: "model" decides the initialisation and the data; "task" is recorded if known.
        held_out: what the model is evaluated on; prepared from the task if None.
        parent: where the model's weights come from, as plain values for config.json, if training
            starts from those of another model.

    Returns:
        A context manager whose value is the run; the directory is locked while it lasts.
    """
    target = resolved(path)
    check_new(target)
    _check_device(recipe.device)
    if parent is None:
        initialise(model, recipe.initialisation, seeds["model"])
    held_out = held_out or HeldOut.prepare(task, model.config.length)
    trainer = Trainer(model, task, recipe, seeds["model"], held_out)
    # The directory that `staged` makes is locked, and stays so when it is moved to the target.
    with staged(target) as staging:
        config = describe(model, task, recipe.to_dict(), seeds, parent)
        write_config(staging, config)
        run = Run(staging, trainer, config)
        run.save_snapshot()
        run.save_state()
        run.save_evaluation()
        try:
            publish_new(staging, target)
        except AlreadyThere as error:
            raise CheckpointError(f"{target}: another run has started in this directory") from error
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
    source = resolved(path)
    if not source.is_dir():
        raise CheckpointError(f"{source}: no such directory to resume")
    config = read_config(source)
    with refusing_second_writer(), locked(source):
        model, task = build(source, config)
        n_parameters = sum(parameter.numel() for parameter in model.parameters())
        state = read_state(source, n_parameters)
        if state["config_sha256"] != config_digest(config, RUN_PARTS):
            raise CheckpointError(
                f"{source}: {TRAINING} belongs to another config.json, or config.json was changed"
            )
        with named_errors(source / CONFIG):
            recipe = Recipe.from_dict(config["recipe"])
            seed = check_count("seeds.model", config["seeds"]["model"], minimum=0)
            _check_device(recipe.device)
        held_out = held_out or HeldOut.prepare(task, model.config.length)
        try:
            # The dtype comes first: it decides which optimizer and which kernels are used.
            model.to(stored_dtype(state))
            trainer = Trainer(model, task, recipe, seed, held_out)
            saved = checked_state(state, trainer)
        except StateError as error:
            raise CheckpointError(
                f"{source}: {TRAINING} does not match its config.json ({error})"
            ) from error
        _restore(trainer, saved)
        _warn_of_changes(trainer, saved)
        remove_unfinished(source)
        yield Run(source, trainer, config)


def _restore(trainer: Trainer, saved: SavedState) -> None:
    """Return to the point at which a state was saved; the optimizer keeps the recipe's settings."""
    trainer.model.load_state_dict(saved.weights)
    groups = trainer.optimizer.state_dict()["param_groups"]
    trainer.optimizer.load_state_dict({"state": saved.optimizer, "param_groups": groups})
    trainer.step = saved.step
    trainer.seconds = saved.seconds
    trainer.losses = saved.losses
    trainer.history = saved.history


def _warn_of_changes(trainer: Trainer, saved: SavedState) -> None:
    """Log each property of the machine that differs from the one the state was saved on."""
    for name, now in trainer.circumstances().items():
        before = saved.circumstances[name]
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
        self.snapshot_steps = spaced_steps(trainer.recipe.snapshots, trainer.recipe.steps)
        self.saved_at = time.monotonic()

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        """The snapshots written so far, by step."""
        return find_snapshots(self.path, self.trainer.model.config, self.config)

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
            # Before the state, so that a resumed run misses no snapshot.
            self.save_snapshot()
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

    def save_snapshot(self) -> None:
        """Write the weights if the recipe asks for a snapshot of this step."""
        trainer = self.trainer
        if trainer.step in self.snapshot_steps:
            trainer.check_finite()
            write_snapshot(self.path, trainer.step, trainer.model, self.config)

    def save_state(self) -> None:
        """Write everything that resuming depends on besides config.json."""
        write_state(self.path, self.trainer, self.config)
        self.saved_at = time.monotonic()


def _check_device(name: str) -> None:
    """Raise ValueError if torch cannot use the device."""
    try:
        torch.zeros((), device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: {name!r} cannot be used here ({reason})") from error
