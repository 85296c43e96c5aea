"""The models of the zoo as what they are trained from: task, shape, recipe and seed; and a run that trains one.

`scripts/build_zoo` stores them in the package, `mtdinterp reproduce --train` trains the same ones anew.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtdinterp.checkpoint_files import model_name
from mtdinterp.models import new_model
from mtdinterp.task import MTDTask
from mtdinterp.training.loop import Trainer
from mtdinterp.training.recipes import recipe_for
from mtdinterp.training.run import Run, new_run, resumed_run

VOCAB_SIZE, TASK_SEED = 5, 0


@dataclass(frozen=True)
class Entry:
    """One model; all of them learn the task of seed 0 for their order."""

    order: int
    length: int
    architecture: str = "disentangled"
    layers: int = 3
    seed: int = 0
    recipe: str = "fast"
    changes: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""

    @property
    def name(self) -> str:
        return model_name(self.architecture, self.order, self.length, self.layers, self.seed) + self.suffix

    @property
    def seeds(self) -> dict[str, int]:
        return {"task": TASK_SEED, "model": self.seed}

    @property
    def task(self) -> MTDTask:
        return zoo_task(self.order)


def zoo_task(order: int) -> MTDTask:
    """The task that all models of an order learn."""
    return MTDTask.random(VOCAB_SIZE, order, seed=TASK_SEED)


ENTRIES = (
    *(Entry(order, length) for length in (64, 128, 256) for order in (3, 4, 5)),
    *(Entry(order, 64, "standard") for order in (3, 4, 5)),
    Entry(4, 128, "standard"),
    *(Entry(3, length, layers=5, seed=seed) for length in (64, 128) for seed in (0, 1, 2)),
    Entry(4, 64, changes={"initialisation": "mirrored"}, suffix="-mirrored"),
    *(Entry(order, 64, recipe="paper", suffix="-paper") for order in (4, 3, 5)),
    *(Entry(4, 64, seed=seed, recipe="paper", suffix="-paper") for seed in (1, 2)),
    Entry(4, 128, recipe="paper", suffix="-paper"),
)


def entry_run(entry: Entry, directory: Path) -> AbstractContextManager[Run]:
    """The run of a model in a directory: the one that is there, or a new one."""
    if directory.exists():
        return resumed_run(directory)
    model = new_model(entry.architecture, VOCAB_SIZE, entry.length, entry.layers, d_rel=entry.order)
    recipe = recipe_for(entry.recipe, entry.architecture, entry.layers, **entry.changes)
    return new_run(directory, model, entry.task, recipe, entry.seeds)


def train_to_end(run: Run, after_evaluation: Callable[[Trainer], None] = lambda trainer: None) -> None:
    """Train what is left of a run, saving on the way."""
    trainer = run.trainer

    def after_step(_: Trainer) -> bool:
        if trainer.step % trainer.recipe.save_every == 0 or trainer.finished:
            run.save()
        return True

    if not trainer.finished:
        trainer.run(after_step, after_evaluation)
