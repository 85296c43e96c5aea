"""The models of the zoo as what they are trained from: task, shape, recipe and seed; and a run that
trains one.

`scripts/build_zoo` stores them in the package, `mtdinterp reproduce --train` trains the same ones
anew.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtdinterp.architectures import new_model
from mtdinterp.checkpoint_files import CheckpointError, model_name
from mtdinterp.checkpoints.digests import config_digest
from mtdinterp.checkpoints.load import build
from mtdinterp.checkpoints.save import describe
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask
from mtdinterp.training.recipes import Recipe, recipe_for
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
        return (
            model_name(self.architecture, self.order, self.length, self.layers, self.seed)
            + self.suffix
        )

    @property
    def seeds(self) -> dict[str, int]:
        return {"task": TASK_SEED, "model": self.seed}

    @property
    def task(self) -> MTDTask:
        return zoo_task(self.order)

    @property
    def full_recipe(self) -> Recipe:
        return recipe_for(self.recipe, self.architecture, self.layers, **self.changes)

    def model(self) -> LensTransformer:
        """Not initialised yet."""
        return new_model(
            self.architecture, VOCAB_SIZE, self.length, self.layers, n_components=self.order
        )

    def made(self, config: Mapping[str, Any]) -> bool:
        """Whether a checkpoint with this configuration comes from just this task, shape, recipe and
        seed."""
        wanted, (model, _) = self.model(), build(Path(self.name), config)
        own = describe(wanted, self.task, self.full_recipe.to_dict(), self.seeds)
        # Older files may lack a field of the model or the recipe that has its default.
        try:
            same = (
                model.config == wanted.config
                and Recipe.from_dict(config["recipe"] or {}) == self.full_recipe
            )
        except (TypeError, ValueError):  # a construction, or a recipe of another version
            return False
        return same and config_digest(own, ("task", "seeds")) == config_digest(
            config, ("task", "seeds")
        )


def zoo_task(order: int) -> MTDTask:
    """The task that all models of an order learn."""
    return MTDTask.random(VOCAB_SIZE, order, seed=TASK_SEED)


ENTRIES = (
    *(
        Entry(order, length)
        for length in (64, 128, 256)
        for order in (3, 4, 5)
        if (order, length) != (5, 256)
    ),
    Entry(5, 256, changes={"steps": 20_000}),  # after 8000 it is at 1.16 × one-step mirror descent
    *(Entry(order, 64, "standard") for order in (3, 4, 5)),
    Entry(4, 128, "standard"),
    *(Entry(3, length, layers=5, seed=seed) for length in (64, 128) for seed in (0, 1, 2)),
    Entry(4, 64, changes={"initialisation": "mirrored"}, suffix="-mirrored"),
    *(Entry(order, 64, recipe="paper", suffix="-paper") for order in (4, 3, 5)),
    *(Entry(4, 64, seed=seed, recipe="paper", suffix="-paper") for seed in (1, 2)),
    Entry(4, 128, recipe="paper", suffix="-paper"),
)


@contextmanager
def entry_run(entry: Entry, directory: Path) -> Iterator[Run]:
    """The run of a model in a directory: the one that is there, if it is of this model, or a new
    one."""
    model, recipe = entry.model(), entry.full_recipe
    if not directory.exists() or not any(directory.iterdir()):
        with new_run(directory, model, entry.task, recipe, entry.seeds) as run:
            yield run
        return
    with resumed_run(directory) as run:
        if not entry.made(run.config):
            raise CheckpointError(
                f"{directory}: the run that is there is not that of {entry.name} as it is made "
                "now; "
                "remove it, or choose another directory"
            )
        yield run
