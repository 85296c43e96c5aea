"""A state with the models it names: the runs that the page shows, each computed once.

An edit of the state becomes an `Edit` whose source has been looked up. Activations of other runs
are kept, so that another edit, or the same edit at another place, costs one run of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.app.cache import Recent
from mtdinterp.app.library_edits import plain_edit
from mtdinterp.app.models import Reading, Registry
from mtdinterp.app.runs import Run, observe
from mtdinterp.app.state import MOST_TOKENS, EditState, ModelState, State
from mtdinterp.estimators.base import Constants
from mtdinterp.evidence import Evidence
from mtdinterp.interventions import Edit, FromRun
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.places import hook_name
from mtdinterp.interventions.sources import taken_from
from mtdinterp.models import LensTransformer
from mtdinterp.registry import ESTIMATORS
from mtdinterp.tasks import Task

MEAN_OVER = 64
"""Sequences in the mean that an edit may take."""
MEAN_SEED = 0


@dataclass(frozen=True, eq=False)
class Scene:
    """A state with the models that it names."""

    state: State
    task: Task
    model: LensTransformer
    reference: LensTransformer | None
    """The model to compare with: the construction, or the checkpoint if the construction is the
    model in view; None if no construction is known."""
    reading: Reading
    """The explanation of the checkpoint."""
    memory: "Memory"
    extra: tuple[Edit, ...] = ()
    """Edits of the library, after those of the state: a notebook passes them directly."""

    @property
    def length(self) -> int:
        return len(self.state.tokens)

    @property
    def beta(self) -> float:
        """β of the one-step bars, and of a one-step reference."""
        chosen = self.state.model.beta
        return self.reading.fits["one_step"].constants["beta"] if chosen is None else chosen

    @property
    def no_reference(self) -> str:
        """Why there is no reference construction, in one sentence; empty if there is one."""
        return self.reading.explanation.no_implementation

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence of the sequence about its weights."""
        return self.task.evidence(self.tokens)

    @cached_property
    def tokens(self) -> Int[Tensor, "1 pos"]:
        return self.model.check_tokens(torch.tensor([self.state.tokens]))

    @cached_property
    def source(self) -> Int[Tensor, "1 pos"] | None:
        """The source sequence, if there is one."""
        if self.state.source is None:
            return None
        return self.model.check_tokens(torch.tensor([self.state.source]))

    @property
    def _model_key(self) -> tuple[Any, ...]:
        """Identifies the model's runs; β and δ belong to the construction alone."""
        model = self.state.model
        return (model.name if model.role == "checkpoint" else model), self.length

    @property
    def _reference_key(self) -> tuple[Any, ...]:
        """Identifies the reference model's runs."""
        return "reference", self.state.model, self.length

    @cached_property
    def before(self) -> Run:
        """The model without edits."""
        return self.memory.run(
            (self._model_key, self.state.tokens), lambda: observe(self.model, self.tokens)
        )

    @cached_property
    def after(self) -> Run:
        """The model with the edits that are on; without any, the same run as `before`."""
        edits = tuple(edit for edit in self.state.edits if edit.on)
        if self.extra:
            own = [self.edit(edit) for edit in edits]
            return observe(self.model, self.tokens, [*own, *self.extra])
        return self.with_edits(edits) if edits else self.before

    @cached_property
    def reference_run(self) -> Run | None:
        """The reference model on the same sequence, without edits; None without a reference."""
        reference = self.reference
        if reference is None:
            return None
        return self.memory.run(
            (self._reference_key, self.state.tokens), lambda: observe(reference, self.tokens)
        )

    @cached_property
    def of_source(self) -> Run | None:
        """The model on the source sequence."""
        tokens = self.source
        if tokens is None:
            return None
        return self.memory.run(
            (self._model_key, self.state.source), lambda: observe(self.model, tokens)
        )

    def bar_constants(self, name: str) -> Constants:
        """The constants of an estimator that is a bar, with the chosen β."""
        constants = dict(self.reading.fits[name].constants)
        if "beta" in constants:
            constants["beta"] = self.beta
        return constants

    def estimate(self, name: str) -> Float64[Tensor, " lag"]:
        """The weights of an estimator that is a bar.

        Raises:
            CannotCompute: if it has no answer on this sequence.
        """
        constants = self.bar_constants(name)
        key = (self.state.model.name, name, tuple(constants.values()), self.state.tokens)
        return self.memory.tensor(
            key, lambda: ESTIMATORS[name].weights(self.evidence, **constants)[0]
        )

    def accuracy_note(self, name: str) -> str | None:
        """How accurate the weights of a bar are, if its estimator has something to say."""
        key = (self.state.model.name, name, self.state.tokens)
        return self.memory.note(key, lambda: ESTIMATORS[name].accuracy_note(self.evidence))

    def with_edits(self, edits: tuple[EditState, ...]) -> Run:
        """The model with these edits and no others."""
        # Edits may take from the source's run and from the reference's.
        sources = (self._reference_key, self.state.tokens, self.state.source)
        return self.memory.run(
            (self._model_key, *sources, edits),
            lambda: observe(self.model, self.tokens, [self.edit(edit) for edit in edits]),
        )

    def edit(self, edit: EditState) -> Edit:
        """The edit with its source looked up."""
        plain = plain_edit(edit)
        kind = edit.source.kind
        n_components = self.task.n_components
        if kind == "weights" and len(edit.source.values or ()) != n_components:
            raise ValueError(f"weights: expected {n_components} weights, one per lag")
        name = hook_name(self.model, plain)
        if kind == "mean":
            return replace(plain, source=taken_from(self.model, plain, name, self._mean(name)))
        if kind == "sequence":
            if self.source is None:
                raise ValueError(
                    "source: there is no source sequence to copy from; sample or type one"
                )
            return self._from_run(edit, self.model, self.source, self._model_key)
        if kind == "reference":
            if self.reference is None:
                raise ValueError(
                    f"source: there is no reference model to copy from. {self.no_reference}"
                )
            return self._from_run(edit, self.reference, self.tokens, self._reference_key)
        return plain

    def reference_layer(self, edit: EditState) -> int | None:
        """The layer of the reference that an edit takes from."""
        return edit.layer if edit.source.layer is None else edit.source.layer

    def _from_run(
        self,
        edit: EditState,
        model: LensTransformer,
        tokens: Int[Tensor, "1 pos"],
        key: tuple[Any, ...],
    ) -> Edit:
        """The edit with activations of another run as its source."""
        plain = plain_edit(edit)
        name = hook_name(self.model, plain)
        layer = edit.source.layer
        if edit.source.kind == "reference":
            layer = self.reference_layer(edit)
        where = FromRun(tokens, model, layer=layer, position=edit.source.position)
        taken = name
        if layer is not None:
            hook = name.rsplit("hook_", 1)[1]
            taken = hook_name(model, Edit(hook, "zero", layer=layer))
        shown = self.memory.tensor(
            (key, tuple(tokens[0].tolist()), taken),
            lambda: activations(model, tokens, [taken])[taken],
        )
        return replace(plain, source=taken_from(model, replace(plain, source=where), taken, shown))

    def _mean(self, name: str) -> Tensor:
        tokens = self.task.sample(MEAN_OVER, self.length, MEAN_SEED).tokens
        return self.memory.tensor(
            (self._model_key, "mean", name),
            lambda: activations(self.model, tokens, [name])[name].mean(0, keepdim=True),
        )


class Memory:
    """Runs and activations of the last few scenes."""

    def __init__(self) -> None:
        self._runs: Recent[Run] = Recent(24)
        self._tensors: Recent[Tensor] = Recent(48)
        self._notes: Recent[str | None] = Recent(48)

    def run(self, key: tuple[Any, ...], make: Callable[[], Run]) -> Run:
        return self._runs.get(key, make)

    def tensor(self, key: tuple[Any, ...], make: Callable[[], Tensor]) -> Tensor:
        return self._tensors.get(key, make)

    def note(self, key: tuple[Any, ...], make: Callable[[], str | None]) -> str | None:
        return self._notes.get(key, make)


def open_scene(registry: Registry, memory: Memory, state: State) -> Scene:
    """Open the models that a state names, and check that its sequences fit them.

    Args:
        registry: where models are looked up.
        memory: cache of earlier runs.
        state: the state to show.

    Returns:
        The scene.
    """
    name = state.model.name
    length = len(state.tokens)
    checkpoint = registry.checkpoint(name)
    task = checkpoint.task
    check_length(task, length)
    # Checked before anything is fitted at this length.
    checkpoint.model.check_tokens(torch.tensor([state.tokens]))
    if state.weights is not None and len(state.weights) != task.n_components:
        raise ValueError(
            f"weights: expected {task.n_components} weights, one per lag, got {len(state.weights)}"
        )
    reading = registry.reading(name, length)
    construction = registry.reference(name, length, state.model.beta, state.model.delta)
    if state.model.role == "checkpoint":
        return Scene(state, task, checkpoint.model, construction, reading, memory)
    if construction is None:
        raise ValueError(
            f"role: {name} has no construction. {reading.explanation.no_implementation}"
        )
    return Scene(state, task, construction, checkpoint.model, reading, memory)


def check_length(task: Task, length: int) -> None:
    """Refuse a sequence without evidence about its weights."""
    if length <= task.warm_up:
        raise ValueError(f"tokens: expected more than m = {task.warm_up} tokens, got {length}")


def fresh_state(registry: Registry, model: ModelState, seed: int) -> State:
    """A first state: a sequence of the model's task, and a source sequence with the same end.

    With the same last tokens, the predictions of the two differ by their weights alone.

    Args:
        registry: where the model is looked up.
        model: which model.
        seed: seed for drawing the sequences.

    Returns:
        The state.
    """
    checkpoint = registry.checkpoint(model.name)
    task = checkpoint.task
    length = min(checkpoint.model.config.length, MOST_TOKENS)
    here = task.sample(1, length, [seed, 0])
    source = task.sample(1, length, [seed, 1]).tokens
    source[:, -task.warm_up :] = here.tokens[:, -task.warm_up :]
    return State(
        model,
        tuple(here.tokens[0].tolist()),
        tuple(here.weights[0].tolist()),
        tuple(source[0].tolist()),
    )
