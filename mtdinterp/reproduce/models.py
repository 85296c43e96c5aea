"""Where trained models come from: the zoo, checkpoints of a list, or the zoo's recipes run now."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mtdinterp.checkpoint_files import CONFIG, read_config, zoo_names
from mtdinterp.checkpoints import Checkpoint, load_checkpoint
from mtdinterp.tasks import MTDTask
from mtdinterp.training.loop import Trainer
from mtdinterp.training.zoo import Entry, entry_run


@runtime_checkable
class Models(Protocol):
    """Trained models, looked up by how they are trained."""

    @property
    def stored(self) -> bool:
        """Whether models are loaded instead of trained.

        Models that take hours to train are asked for only if they are stored.
        """

    def get(self, entry: Entry) -> Checkpoint | None:
        """The model, or None if there is none."""
        ...

    @property
    def place(self) -> str:
        """Where the models are, as in "not in the zoo"."""
        ...


@dataclass(frozen=True)
class ZooModels:
    """The models that ship with the package."""

    stored: bool = True
    place: str = "the zoo"

    def get(self, entry: Entry) -> Checkpoint | None:
        """The model of the zoo, or None if the zoo does not have it."""
        return load_checkpoint(entry.name) if entry.name in zoo_names() else None


@dataclass(frozen=True)
class ListedModels:
    """Finished checkpoints, such as those of a sweep, found by the settings in their files."""

    paths: Mapping[str, Path]
    """The checkpoints by name."""
    place: str
    stored: bool = True
    used: dict[str, Path] = field(default_factory=dict)
    """The checkpoints that were asked for and found, by name."""

    def get(self, entry: Entry) -> Checkpoint | None:
        """The first model of the list that was trained from this entry, or None."""
        for name, config in self._configs.items():
            if _may_be(config, entry) and entry.made(config):
                self.used[name] = self.paths[name]
                return load_checkpoint(self.paths[name])
        return None

    @cached_property
    def _configs(self) -> dict[str, dict[str, Any]]:
        """The configuration of every checkpoint, by name."""
        return {name: read_config(path) for name, path in self.paths.items()}


def _may_be(config: Mapping[str, Any], entry: Entry) -> bool:
    """Whether a checkpoint is worth a closer look, which builds its model.

    Tasks and architectures of plugins, which may not be loaded, are sorted out here, too.
    """
    model = config.get("model")
    task = config.get("task")
    if not isinstance(model, dict) or not isinstance(task, dict):
        return False
    # Older files do not name the kind of task, as there was only one.
    found = (model.get("architecture"), model.get("length"), task.get("kind", MTDTask.name))
    wanted = (entry.architecture, entry.length, MTDTask.name)
    return found == wanted and config.get("seeds") == entry.seeds


@dataclass(frozen=True)
class TrainedModels:
    """Models that are trained when they are first asked for, each in its own directory.

    A run that was interrupted is resumed.
    """

    directory: Path
    announce: Callable[[str], None] = field(default=lambda message: None)
    """Called with a line of progress after every evaluation."""
    stored: bool = False
    place: str = "the directory of runs"

    def get(self, entry: Entry) -> Checkpoint:
        """The trained model; trains it unless its directory holds a finished run."""
        path = self.directory / entry.name
        finished = _finished_run(path, entry)
        if finished is not None:
            return finished
        parent = None if entry.grown_from is None else self.get(entry.grown_from)
        with entry_run(entry, path, parent) as run:
            run.train(after_evaluation=self._report(entry))
        return load_checkpoint(path)

    def _report(self, entry: Entry) -> Callable[[Trainer], None]:
        def after_evaluation(trainer: Trainer) -> None:
            last = trainer.history[-1]
            step = f"step {trainer.step} of {trainer.recipe.steps}"
            ratio = f"{last['ratio']:.3f}× one-step mirror descent"
            self.announce(f"training {entry.name}: {step}, KL {last['kl']:.5f}, {ratio}")

        return after_evaluation


def _finished_run(path: Path, entry: Entry) -> Checkpoint | None:
    """The checkpoint of a finished run of this entry, or None."""
    # Resuming would prepare a held-out set, which takes seconds and is not needed here.
    if not (path / CONFIG).exists():
        return None
    checkpoint = load_checkpoint(path)
    if not checkpoint.history or not entry.made(checkpoint.config):
        return None
    last_step = checkpoint.history[-1]["step"]
    return checkpoint if last_step == checkpoint.config["recipe"]["steps"] else None


def available(models: Models, entries: Iterable[Entry]) -> tuple[dict[str, Checkpoint], list[str]]:
    """The models that exist, by name, and the names of those that do not."""
    found: dict[str, Checkpoint] = {}
    missing: list[str] = []
    for entry in entries:
        checkpoint = models.get(entry)
        if checkpoint is None:
            missing.append(entry.name)
        else:
            found[entry.name] = checkpoint
    return found, missing


def say_missing(names: list[str], models: Models) -> tuple[str, ...]:
    """A sentence about the models that could not be drawn; empty if there are none."""
    if not names:
        return ()
    return (f"Not shown, because not in {models.place}: {', '.join(names)}.",)


def say_ends(
    kind: str, longest: Mapping[int, int], lengths: Sequence[int], models: Models
) -> tuple[str, ...]:
    """A sentence about trained models that stop before the longest length; empty if none do.

    Args:
        kind: which models, as in "standard" or "five-layer".
        longest: the length of the longest model that is shown, by order.
        lengths: the lengths of the figure.
        models: where the models come from.
    """
    short = {order: length for order, length in longest.items() if length < max(lengths)}
    if not short:
        return ()
    ends = ", ".join(f"T = {length} (m = {order})" for order, length in short.items())
    return (f"The trained {kind} models end at {ends}: {models.place} has no longer ones.",)
