"""The models of the zoo by the settings that they are trained with: task, shape, recipe and seed.

A model may grow from a shorter one (`ladder`). `scripts/build_zoo` trains the models and stores
them in the package; `mtdinterp reproduce --train` trains them again.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from mtdinterp.architectures import new_model
from mtdinterp.checkpoint_files import CheckpointError, model_name
from mtdinterp.checkpoints.load import Checkpoint, build
from mtdinterp.checkpoints.save import parent_of
from mtdinterp.models import LensTransformer
from mtdinterp.tasks import MTDTask
from mtdinterp.training.growth import grow
from mtdinterp.training.recipes import Recipe, recipe_for
from mtdinterp.training.run import Run, new_run, resumed_run

VOCAB_SIZE = 5
TASK_SEED = 0


@dataclass(frozen=True)
class Entry:
    """One model. Unless the task's seed says otherwise, all models of an order learn one task."""

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
    task_seed: int = TASK_SEED
    grown_from: "Entry | None" = None
    """The shorter model whose weights this one starts from."""

    @property
    def name(self) -> str:
        """The model's name in the zoo."""
        name = model_name(self.architecture, self.order, self.length, self.layers, self.seed)
        other_task = f"-task{self.task_seed}" if self.task_seed != TASK_SEED else ""
        return name + other_task + self.suffix

    @property
    def seeds(self) -> dict[str, int]:
        """The seeds of task and model, as a checkpoint stores them."""
        return {"task": self.task_seed, "model": self.seed}

    @property
    def task(self) -> MTDTask:
        """The task that the model learns."""
        return zoo_task(self.order, self.task_seed)

    @property
    def full_recipe(self) -> Recipe:
        """The recipe with its changes."""
        return recipe_for(
            self.recipe, self.architecture, self.layers, length=self.length, **self.changes
        )

    @property
    def chain(self) -> "list[Entry]":
        """The models that this one comes from, the first one first, and this one."""
        before = [] if self.grown_from is None else self.grown_from.chain
        return [*before, self]

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
            and ("parent" in config) == (self.grown_from is not None)
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


def zoo_task(order: int, seed: int = TASK_SEED) -> MTDTask:
    """The task that the models of an order learn, or another one."""
    return MTDTask.random(VOCAB_SIZE, order, seed=seed)


def ladder(order: int, lengths: Sequence[int], **settings: Any) -> list[Entry]:
    """Models of growing length, each grown from the one before.

    Args:
        order: the number of lags.
        lengths: increasing; the first model is trained with the fast recipe.
        settings: other fields of every entry.

    Returns:
        The models, in the order of their lengths.
    """
    entries = [Entry(order, lengths[0], **settings)]
    for length in lengths[1:]:
        grown = Entry(order, length, recipe="grown", grown_from=entries[-1], **settings)
        entries.append(grown)
    return entries


ENTRIES = (
    *ladder(3, (64, 128, 256, 512, 1024, 1984)),
    *ladder(4, (64, 128, 256, 512, 1024, 1984)),
    *ladder(5, (64, 128, 256, 512, 1024, 1984)),
    *ladder(4, (64, 256), task_seed=1),
    *ladder(4, (64, 256), task_seed=2),
    Entry(3, 64, "standard"),
    *ladder(4, (64, 128, 256, 512), architecture="standard"),
    Entry(5, 64, "standard"),
    *ladder(3, (64, 128, 256, 512), layers=5, seed=0),
    *ladder(3, (64, 128, 256, 512), layers=5, seed=1),
    *ladder(3, (64, 128, 256, 512), layers=5, seed=2),
    Entry(4, 64, changes={"initialisation": "mirrored"}, suffix="-mirrored"),
    *(Entry(order, 64, recipe="paper", suffix="-paper") for order in (4, 3, 5)),
    *(Entry(4, 64, seed=seed, recipe="paper", suffix="-paper") for seed in (1, 2)),
    Entry(4, 128, recipe="paper", suffix="-paper"),
)


@contextmanager
def entry_run(entry: Entry, directory: Path, parent: Checkpoint | None = None) -> Iterator[Run]:
    """Start the run of a model in a directory, or resume the one that the directory holds.

    Args:
        entry: the model.
        directory: new, empty, or with a run of this model.
        parent: the model of `entry.grown_from`, if it has one.

    Returns:
        A context manager whose value is the run.
    """
    if not directory.exists() or not any(directory.iterdir()):
        with _new_run(entry, directory, parent) as run:
            yield run
        return
    with resumed_run(directory) as run:
        if not entry.made(run.config):
            raise CheckpointError(
                f"{directory}: contains a run whose settings differ from those of {entry.name}; "
                "remove it, or choose another directory"
            )
        yield run


def _new_run(
    entry: Entry, directory: Path, parent: Checkpoint | None
) -> AbstractContextManager[Run]:
    recipe, seeds = entry.full_recipe, entry.seeds
    if entry.grown_from is None:
        return new_run(directory, entry.model(), entry.task, recipe, seeds)
    if parent is None:
        raise ValueError(f"{entry.name}: expected the model that it grows from")
    model = grow(parent.model, entry.length, entry.order)
    origin = parent_of(entry.grown_from.name, parent.model)
    return new_run(directory, model, entry.task, recipe, seeds, parent=origin)
