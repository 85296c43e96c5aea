"""Models that the workbench can open: the zoo, the given directories, and the constructions.

Nothing else is reachable from a request: a name is looked up in this registry and never becomes a
path.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from mtdinterp.app.cache import Recent
from mtdinterp.checkpoint_files import (
    ZOO,
    MissingKind,
    find_checkpoint,
    read_config,
    short_name,
    zoo_names,
)
from mtdinterp.checkpoints import Checkpoint, load_checkpoint
from mtdinterp.checkpoints.load import read_task
from mtdinterp.estimators.base import Constants, fit_constants
from mtdinterp.explanation import Explanation, explain
from mtdinterp.models import LensTransformer
from mtdinterp.registry import ESTIMATORS
from mtdinterp.tasks import Task

EXPLAINED_ON = 256
"""Sequences that constants are fitted on: fewer than in a report, so that a model opens fast."""
BARS = ("exact_bayes", "one_step")
"""Estimators that the charts show as bars; the table of estimators has every registered one."""
LONGEST_NAME = 80
"""The number of characters of an unknown name that an error shows."""
FIRST = "disentangled-m4-T64"
"""The model that a first-time visitor sees."""


@dataclass(frozen=True)
class Entry:
    """One checkpoint of the list, as its configuration describes it."""

    name: str
    path: Path
    architecture: str
    layers: int
    order: int
    """m: the number of components that can explain a token."""
    vocab_size: int
    length: int


@dataclass(frozen=True)
class Fitted:
    """An estimator's constants for one model."""

    constants: Constants
    at_bound: tuple[str, ...] = ()
    """Constants that ended on a bound of their range: the predictions do not determine them."""


@dataclass(frozen=True, eq=False)
class Reading:
    """Quantities that the page computes once per model and length."""

    explanation: Explanation
    fits: dict[str, Fitted]
    """For each estimator that is a bar, the constants nearest to the model's predictions."""

    @property
    def adjustable(self) -> bool:
        """Whether β and δ of the reference can be chosen: it takes one step with a single β."""
        return "beta" in self.explanation.constants

    def reference(self, beta: float | None, delta: float) -> LensTransformer | None:
        """The reference construction, or None if none is known.

        Args:
            beta: replaces the fitted β of an adjustable reference; None keeps it.
            delta: size of the masks' scores of an adjustable reference; others choose their own.

        Returns:
            A model of the same depth and architecture.
        """
        if not self.adjustable:
            return self.explanation.reference()
        chosen = self.explanation.constants["beta"] if beta is None else beta
        return self.explanation.reference({"beta": chosen}, delta)


def read_model(model: LensTransformer, task: Task, length: int) -> Reading:
    """Explain a model at one length.

    Args:
        model: any hooked model.
        task: the model's task.
        length: tokens per sequence.

    Returns:
        The explanation, and the constants of the estimators that are bars.
    """
    explanation = explain(model, task, length=length, n_sequences=EXPLAINED_ON)
    fits = {name: fitted_to(name, explanation) for name in BARS}
    return Reading(explanation, fits)


def fitted_to(name: str, explanation: Explanation) -> Fitted:
    """An estimator's constants nearest to the model's predictions.

    Args:
        name: the estimator's name.
        explanation: the model's explanation; its constants are used if it names this estimator.

    Returns:
        The constants, and which of them are at a bound.

    Raises:
        CannotCompute: if the estimator has no answer on these sequences.
    """
    if name == explanation.algorithm.name:
        return Fitted(explanation.constants, explanation.at_bound)
    estimator = ESTIMATORS[name]
    evidence = explanation.task.evidence(explanation.tokens)
    if not estimator.constants_for(evidence):
        return Fitted({})
    found = fit_constants(estimator, evidence, explanation.predictions)
    return Fitted(found.constants, found.at_bound)


class Registry:
    """The list of models, and what was opened from it recently. Callers share it under a lock."""

    def __init__(self, given: Sequence[str | Path] = ()) -> None:
        self.entries: dict[str, Entry] = {}
        self.left_out: list[str] = []
        """A sentence for every given checkpoint whose plugin is not installed."""
        for path in given:
            try:
                self._add(find_checkpoint(path))
            except MissingKind as error:
                self.left_out.append(str(error))
        for name in zoo_names():
            self._add(ZOO / name)
        if not self.entries:
            raise ValueError(" ".join(["There is no model to open.", *self.left_out]))
        self.first = FIRST
        if len(given) > len(self.left_out) or FIRST not in self.entries:
            self.first = next(iter(self.entries))
        self._checkpoints: Recent[Checkpoint] = Recent(4)
        self._readings: Recent[Reading] = Recent(64)
        self._references: Recent[LensTransformer | None] = Recent(8)

    def _add(self, path: Path) -> None:
        """Add a checkpoint under the shortest end of its path that is not taken."""
        path = path.resolve()
        known = [entry.path for entry in self.entries.values()]
        if path in known:
            return
        name = short_name(path, known)
        self.entries[name] = _entry(name, path)

    def entry(self, name: str) -> Entry:
        """The entry of that name; an unknown name is an error with the nearest known one."""
        if name not in self.entries:
            close = get_close_matches(str(name), self.entries, n=1)
            hint = f"Did you mean {close[0]!r}? " if close else ""
            raise ValueError(
                f"There is no model {str(name)[:LONGEST_NAME]!r} here. {hint}The Model panel lists "
                "the models that can be opened."
            )
        return self.entries[name]

    def checkpoint(self, name: str) -> Checkpoint:
        """The loaded checkpoint of that name."""
        path = self.entry(name).path
        return self._checkpoints.get(name, lambda: load_checkpoint(path))

    def reading(self, name: str, length: int) -> Reading:
        """The explanation of a checkpoint at this length, computed once."""
        checkpoint = self.checkpoint(name)
        return self._readings.get(
            (name, length), lambda: read_model(checkpoint.model, checkpoint.task, length)
        )

    def reference(
        self, name: str, length: int, beta: float | None, delta: float
    ) -> LensTransformer | None:
        """The reference construction of a checkpoint, or None if none is known.

        Args:
            name: the checkpoint's name.
            length: tokens per sequence.
            beta: replaces the fitted β of a one-step construction; None keeps it.
            delta: size of the masks' scores.

        Returns:
            A model of the same depth and architecture.
        """
        reading = self.reading(name, length)
        return self._references.get(
            (name, length, beta, delta), lambda: reading.reference(beta, delta)
        )


def _entry(name: str, path: Path) -> Entry:
    """A checkpoint's entry in the list of models; its weights are not read."""
    config = read_config(path)
    model = config.get("model")
    if not isinstance(model, dict) or not {"architecture", "n_layers", "length"} <= set(model):
        model = load_checkpoint(path).model.config.to_dict()
    task = read_task(path, config)
    return Entry(
        name=name,
        path=path,
        architecture=model["architecture"],
        layers=model["n_layers"],
        order=task.n_components,
        vocab_size=task.vocab_size,
        length=model["length"],
    )
