"""Where trained models come from: the zoo, or the zoo's own recipes run now."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from mtdinterp.checkpoint_files import CONFIG, zoo_names
from mtdinterp.checkpoints import Checkpoint, load_checkpoint
from mtdinterp.training.loop import Trainer
from mtdinterp.training.zoo import Entry, entry_run


@runtime_checkable
class Models(Protocol):
    """Trained models by what they are trained from; None for one that is not there."""

    @property
    def stored(self) -> bool:
        """Whether they are there already: what takes hours to train is asked for only then."""

    def get(self, entry: Entry) -> Checkpoint | None: ...


@dataclass(frozen=True)
class ZooModels:
    """The models that ship with the package."""

    stored: bool = True

    def get(self, entry: Entry) -> Checkpoint | None:
        return load_checkpoint(entry.name) if entry.name in zoo_names() else None


@dataclass(frozen=True)
class TrainedModels:
    """Each model trained when it is first asked for, in a directory of its own where a stopped run
    goes on."""

    directory: Path
    announce: Callable[[str], None] = field(default=lambda words: None)
    stored: bool = False

    def get(self, entry: Entry) -> Checkpoint:
        path = self.directory / entry.name
        # Resuming prepares a held-out set, which takes seconds: not for a run that is finished.
        if (
            (path / CONFIG).exists()
            and entry.made((found := load_checkpoint(path)).config)
            and _finished(found)
        ):
            return found
        with entry_run(entry, path) as run:
            run.train(after_evaluation=self._report(entry))
        return load_checkpoint(path)

    def _report(self, entry: Entry) -> Callable[[Trainer], None]:
        def after_evaluation(trainer: Trainer) -> None:
            last = trainer.history[-1]
            self.announce(
                f"training {entry.name}: step {trainer.step} of {trainer.recipe.steps}, KL "
                f"{last['kl']:.5f}, "
                f"{last['ratio']:.3f}× one-step mirror descent"
            )

        return after_evaluation


def _finished(checkpoint: Checkpoint) -> bool:
    return (
        bool(checkpoint.history)
        and checkpoint.history[-1]["step"] == checkpoint.config["recipe"]["steps"]
    )


def available(models: Models, entries: Iterable[Entry]) -> tuple[dict[str, Checkpoint], list[str]]:
    """Those of the models that are there, by name, and the names of the others."""
    found = {entry.name: models.get(entry) for entry in entries}
    return (
        {name: checkpoint for name, checkpoint in found.items() if checkpoint is not None},
        [name for name, checkpoint in found.items() if checkpoint is None],
    )


def say_missing(names: list[str]) -> tuple[str, ...]:
    """A sentence for what could not be drawn, or none."""
    return (f"Not shown, because not in the zoo: {', '.join(names)}.",) if names else ()
