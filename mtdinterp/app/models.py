"""What may be opened: the zoo, the directories that were given, and the constructions for their
tasks.

Nothing else is reachable from a request: a name is looked up in this registry and never becomes a
path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp.app.cache import Recent
from mtdinterp.checkpoint_files import ZOO, find_checkpoint, read_config, short_name, zoo_names
from mtdinterp.checkpoints import Checkpoint, load_checkpoint
from mtdinterp.checks import check_option
from mtdinterp.construction import construction_with
from mtdinterp.estimators import TwoStepConstants
from mtdinterp.fitting import Evidence, fit_beta, fit_two_step
from mtdinterp.models import LensTransformer
from mtdinterp.readout import predictions
from mtdinterp.task import MTDTask

FITTED_ON, FITTING_SEED = 256, 31
FIRST = "disentangled-m4-T64"
"""What a first-time visitor sees."""


@dataclass(frozen=True)
class Entry:
    """One checkpoint of the list, by what its configuration says."""

    name: str
    path: Path
    architecture: str
    layers: int
    order: int
    vocab_size: int
    length: int


@dataclass(frozen=True)
class Constants:
    """The constants of the reference construction of a model."""

    beta: float
    """Of one-step mirror descent, as it is nearest to the model's predictions."""
    two_step: TwoStepConstants | None
    """For five layers and more: those of the two-step construction."""


class Registry:
    """The list, and what was opened from it lately. Not for several threads at once: whoever shares
    it, locks."""

    def __init__(self, given: Sequence[str | Path] = ()) -> None:
        self.entries: dict[str, Entry] = {}
        for path in given:
            self._add(find_checkpoint(path))
        for name in zoo_names():
            self._add(ZOO / name)
        self.first = next(iter(self.entries)) if given or FIRST not in self.entries else FIRST
        self._checkpoints: Recent[Checkpoint] = Recent(4)
        self._constants: Recent[Constants] = Recent(64)
        self._constructions: Recent[LensTransformer] = Recent(8)

    def _add(self, path: Path) -> None:
        """By its directory's name, or by as much of the path as tells it from those before it."""
        path = path.resolve()
        if any(entry.path == path for entry in self.entries.values()):
            return
        name = short_name(path, [entry.path for entry in self.entries.values()])
        config = read_config(path)
        checkpoint = load_checkpoint(path) if not _complete(config) else None
        model, task = config["model"], config["task"]
        vocab_size = checkpoint.task.vocab_size if checkpoint else len(task["transition"])
        self.entries[name] = Entry(
            name,
            path,
            model["architecture"],
            model["n_layers"],
            task["order"],
            vocab_size,
            model["length"],
        )

    def entry(self, name: str) -> Entry:
        return self.entries[check_option("model", name, self.entries)]

    def checkpoint(self, name: str) -> Checkpoint:
        path = self.entry(name).path
        return self._checkpoints.get(name, lambda: load_checkpoint(path))

    def constants(self, name: str, length: int) -> Constants:
        """Fitted to the checkpoint's predictions at this length, once."""
        checkpoint = self.checkpoint(name)
        return self._constants.get(
            (name, length), lambda: fit_constants(checkpoint.model, checkpoint.task, length)
        )

    def construction(
        self, name: str, length: int, beta: float | None, delta: float
    ) -> LensTransformer:
        """The construction for a checkpoint's task, as deep as it is; two steps take their
        constants from the model."""
        constants, checkpoint = self.constants(name, length), self.checkpoint(name)
        return self._constructions.get(
            (name, length, beta, delta),
            lambda: construction_for(
                checkpoint.model, checkpoint.task, length, constants, beta, delta
            ),
        )


def _complete(config: dict[str, Any]) -> bool:
    """Whether a configuration has all that the list shows; if not, loading says what is wrong."""
    model, task = config.get("model"), config.get("task")
    return (
        isinstance(model, dict)
        and isinstance(task, dict)
        and {"architecture", "n_layers", "length"} <= set(model)
        and isinstance(task.get("order"), int)
        and isinstance(task.get("transition"), list)
    )


def construction_for(
    model: LensTransformer,
    task: MTDTask,
    length: int,
    constants: Constants,
    beta: float | None = None,
    delta: float = 100.0,
) -> LensTransformer:
    """The construction of a model's architecture and depth; β is the fitted one where it is
    None."""
    chosen = constants.two_step or (constants.beta if beta is None else beta)
    return construction_with(task, length, chosen, model.config.architecture, delta)


def fit_constants(model: LensTransformer, task: MTDTask, length: int) -> Constants:
    evidence = Evidence(task, task.sample(FITTED_ON, length, FITTING_SEED).tokens)
    given = predictions(model, evidence.tokens)
    deep = len(model.blocks) >= 5 and model.config.architecture == "disentangled"
    return Constants(
        float(fit_beta(evidence, given)), fit_two_step(evidence, given) if deep else None
    )
