"""The models of the zoo by the settings that they are trained with: task, shape, recipe and seed.

`scripts/build_zoo` trains them and stores them in the package; `mtdinterp reproduce --train` trains
them again.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from mtdinterp.architectures import new_model
from mtdinterp.checkpoint_files import CheckpointError, model_name
from mtdinterp.checkpoints.load import build
from mtdinterp.models import LensTransformer
from mtdinterp.tasks import MTDTask
from mtdinterp.training.recipes import Recipe, recipe_for
from mtdinterp.training.run import Run, new_run, resumed_run

VOCAB_SIZE = 5
TASK_SEED = 0


@dataclass(frozen=True)
class Entry:
    """One model; all models of an order learn the same task, that of seed 0."""

    order: int
    length: int
    architecture: str = "disentangled"
    layers: int = 3
    seed: int = 0
    recipe: str = "fast"
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe that differ from the named one."""
    suffix: str = ""
    """Added to the name of a model that is trained in an unusual way."""

    @property
    def name(self) -> str:
        """The model's name in the zoo."""
        name = model_name(self.architecture, self.order, self.length, self.layers, self.seed)
        return name + self.suffix

    @property
    def seeds(self) -> dict[str, int]:
        """The seeds of task and model, as a checkpoint stores them."""
        return {"task": TASK_SEED, "model": self.seed}

    @property
    def task(self) -> MTDTask:
        """The task that the model learns."""
        return zoo_task(self.order)

    @property
    def full_recipe(self) -> Recipe:
        """The recipe with its changes."""
        return recipe_for(self.recipe, self.architecture, self.layers, **self.changes)

    def model(self) -> LensTransformer:
        """The model before its initialisation."""
        return new_model(
            self.architecture, VOCAB_SIZE, self.length, self.layers, n_components=self.order
        )

    def made(self, config: Mapping[str, Any]) -> bool:
        """Whether a checkpoint with this configuration was trained from this entry."""
        model, task = build(Path(self.name), config)
        return (
            model.config == self.model().config
            and task == self.task
            and _complete(config.get("recipe")) == _as_json(self.full_recipe.to_dict())
            and config.get("seeds") == self.seeds
        )


def _complete(stored: Any) -> dict[str, Any]:
    """A stored recipe, with the defaults of fields that older files do not have."""
    given = stored if isinstance(stored, dict) else {}
    defaults = {entry.name: entry.default for entry in fields(Recipe)}
    known = {name: value for name, value in defaults.items() if value is not MISSING}
    return _as_json({**known, **given})


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values as they come back from a JSON file, where tuples are lists."""
    return json.loads(json.dumps(values))


def zoo_task(order: int) -> MTDTask:
    """The task that all models of an order learn."""
    return MTDTask.random(VOCAB_SIZE, order, seed=TASK_SEED)


ENTRIES = (
    Entry(3, 64),
    Entry(4, 64),
    Entry(5, 64),
    Entry(3, 128),
    Entry(4, 128),
    Entry(5, 128),
    Entry(3, 256),
    Entry(4, 256),
    Entry(5, 256, changes={"steps": 20_000}),  # after 8000 it is at 1.16 × one-step mirror descent
    Entry(3, 64, "standard"),
    Entry(4, 64, "standard"),
    Entry(5, 64, "standard"),
    Entry(4, 128, "standard"),
    *(Entry(3, 64, layers=5, seed=seed) for seed in (0, 1, 2)),
    *(Entry(3, 128, layers=5, seed=seed) for seed in (0, 1, 2)),
    Entry(4, 64, changes={"initialisation": "mirrored"}, suffix="-mirrored"),
    *(Entry(order, 64, recipe="paper", suffix="-paper") for order in (4, 3, 5)),
    *(Entry(4, 64, seed=seed, recipe="paper", suffix="-paper") for seed in (1, 2)),
    Entry(4, 128, recipe="paper", suffix="-paper"),
)


@contextmanager
def entry_run(entry: Entry, directory: Path) -> Iterator[Run]:
    """Start the run of a model in a directory, or resume the one that the directory holds.

    Args:
        entry: the model.
        directory: new, empty, or with a run of this model.

    Returns:
        A context manager whose value is the run.
    """
    if not directory.exists() or not any(directory.iterdir()):
        with new_run(directory, entry.model(), entry.task, entry.full_recipe, entry.seeds) as run:
            yield run
        return
    with resumed_run(directory) as run:
        if not entry.made(run.config):
            raise CheckpointError(
                f"{directory}: contains a run whose settings differ from those of {entry.name}; "
                "remove it, or choose another directory"
            )
        yield run
