"""A state with the models it names: the runs that the page shows, each computed once while it is
looked at.

An edit of the state becomes an `Edit` whose source is already there: what other runs show at a hook
point is kept, so that another edit, or another place of the same one, costs one run of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.app.cache import Recent
from mtdinterp.app.models import Constants, Registry
from mtdinterp.app.runs import Run, observe
from mtdinterp.app.state import MOST_TOKENS, EditState, ModelState, Range, State
from mtdinterp.estimators import exact_posterior_mean
from mtdinterp.interventions import Edit, FromRun, Share, steering_edit
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.places import hook_name
from mtdinterp.interventions.sources import taken_from
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask
from probes.compare_attention import counterpart

MEAN_OVER, MEAN_SEED = 64, 0
"""Sequences that the mean is over, and their seed."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What a state means."""

    state: State
    task: MTDTask
    model: LensTransformer
    reference: LensTransformer
    """The model to compare with: the construction, or the checkpoint if the construction is the
    model in view."""
    constants: Constants
    memory: "Memory"
    extra: tuple[Edit, ...] = ()
    """Edits in the library's own form, after those of the state: a notebook has them at hand."""

    @property
    def length(self) -> int:
        return len(self.state.tokens)

    @property
    def beta(self) -> float:
        given = self.state.model.beta
        return self.constants.beta if given is None else given

    @cached_property
    def tokens(self) -> Int[Tensor, "1 pos"]:
        return self.model.check_tokens(torch.tensor([self.state.tokens]))

    @cached_property
    def source(self) -> Int[Tensor, "1 pos"] | None:
        return (
            None
            if self.state.source is None
            else self.model.check_tokens(torch.tensor([self.state.source]))
        )

    @property
    def _own(self) -> tuple[Any, ...]:
        """What tells this model's runs from another's; β and δ are the construction's."""
        model = self.state.model
        return (model.name if model.role == "checkpoint" else model), self.length

    @property
    def _reference_key(self) -> tuple[Any, ...]:
        """The same for the reference model."""
        return "reference", self.state.model, self.length

    @cached_property
    def before(self) -> Run:
        return self.memory.run(
            (self._own, self.state.tokens), lambda: observe(self.model, self.tokens)
        )

    @cached_property
    def after(self) -> Run:
        """With the edits that are on; without any, the very run before."""
        edits = tuple(edit for edit in self.state.edits if edit.on)
        if self.extra:
            return observe(
                self.model, self.tokens, [*(self.edit(edit) for edit in edits), *self.extra]
            )
        return self.with_edits(edits) if edits else self.before

    @cached_property
    def reference_run(self) -> Run:
        """The reference model on the same sequence, without edits."""
        return self.memory.run(
            (self._reference_key, self.state.tokens), lambda: observe(self.reference, self.tokens)
        )

    @cached_property
    def of_source(self) -> Run | None:
        tokens = self.source
        if tokens is None:
            return None
        return self.memory.run((self._own, self.state.source), lambda: observe(self.model, tokens))

    @cached_property
    def posterior(self) -> Float64[Tensor, " lag"]:
        """The exact posterior mean of the weights."""
        task, key = self.task, (self.state.model.name, "posterior", self.state.tokens)
        return self.memory.tensor(
            key,
            lambda: exact_posterior_mean(
                task.transition, self.tokens, task.order, task.concentration
            )[0],
        )

    def with_edits(self, edits: tuple[EditState, ...]) -> Run:
        key = (
            self._own,
            self._reference_key,
            self.state.tokens,
            self.state.source,
            edits,
        )  # edits may take from the reference run
        return self.memory.run(
            key, lambda: observe(self.model, self.tokens, [self.edit(edit) for edit in edits])
        )

    def corresponding_layer(self, layer: int) -> int:
        """The layer of the reference model that corresponds to a layer of the model."""
        return counterpart(layer, len(self.model.blocks), len(self.reference.blocks))

    def reference_layer(self, edit: EditState) -> int | None:
        """The layer of the reference model that an edit takes from."""
        layer = edit.layer if edit.source.layer is None else edit.source.layer
        return None if layer is None else self.corresponding_layer(layer)

    def edit(self, edit: EditState) -> Edit:
        """The edit with its source looked up."""
        plain = plain_edit(edit)
        if edit.source.kind == "weights" and len(edit.source.values or ()) != self.task.order:
            raise ValueError(f"weights: expected {self.task.order} of them, one a lag")
        name = hook_name(self.model, plain)
        if edit.source.kind == "mean":
            return replace(plain, source=taken_from(self.model, plain, name, self._mean(name)))
        if edit.source.kind not in ("sequence", "reference"):
            return plain
        if edit.source.kind == "sequence":
            if self.source is None:
                raise ValueError(
                    "source: there is no source sequence to take this from; sample or type one"
                )
            model, tokens, role = self.model, self.source, self._own
            layer = edit.source.layer
        else:
            model, tokens, role = self.reference, self.tokens, self._reference_key
            layer = self.reference_layer(edit)
        where = FromRun(tokens, model, layer=layer, position=edit.source.position)
        taken = (
            name
            if layer is None
            else hook_name(model, Edit(name.rsplit("hook_", 1)[1], "zero", layer=layer))
        )
        shown = self.memory.tensor(
            (role, tuple(tokens[0].tolist()), taken),
            lambda: activations(model, tokens, [taken])[taken],
        )
        return replace(plain, source=taken_from(model, replace(plain, source=where), taken, shown))

    def _mean(self, name: str) -> Tensor:
        tokens = self.task.sample(MEAN_OVER, self.length, MEAN_SEED).tokens
        return self.memory.tensor(
            (self._own, "mean", name),
            lambda: activations(self.model, tokens, [name])[name].mean(0, keepdim=True),
        )


class Memory:
    """Runs, and tensors such as activations, of the last few scenes."""

    def __init__(self) -> None:
        self._runs: Recent[Run] = Recent(24)
        self._tensors: Recent[Tensor] = Recent(48)

    def run(self, key: tuple[Any, ...], make: Callable[[], Run]) -> Run:
        return self._runs.get(key, make)

    def tensor(self, key: tuple[Any, ...], make: Callable[[], Tensor]) -> Tensor:
        return self._tensors.get(key, make)


def open_scene(registry: Registry, memory: Memory, state: State) -> Scene:
    """The models that a state names, and a check that the sequence is one of theirs."""
    name, length = state.model.name, len(state.tokens)
    checkpoint = registry.checkpoint(name)
    task = checkpoint.task
    check_length(task, length)
    checkpoint.model.check_tokens(
        torch.tensor([state.tokens])
    )  # before anything is fitted at this length
    if state.weights is not None and len(state.weights) != task.order:
        raise ValueError(
            f"weights: expected {task.order} of them, one a lag, got {len(state.weights)}"
        )
    construction = registry.construction(name, length, state.model.beta, state.model.delta)
    pair = (checkpoint.model, construction)
    model, reference = pair if state.model.role == "checkpoint" else pair[::-1]
    return Scene(state, task, model, reference, registry.constants(name, length), memory)


def check_length(task: MTDTask, length: int) -> None:
    """One transition must be seen at least."""
    if length <= task.order:
        raise ValueError(f"tokens: expected more than m = {task.order} of them, got {length}")


def fresh_state(registry: Registry, model: ModelState, seed: int) -> State:
    """A sequence of the model's task to begin with, and another to take from that ends alike: only
    the weights differ, not the tokens that the next one is drawn from."""
    checkpoint = registry.checkpoint(model.name)
    length, order = min(checkpoint.model.config.length, MOST_TOKENS), checkpoint.task.order
    here, there = (checkpoint.task.sample(1, length, [seed, part]) for part in (0, 1))
    there.tokens[:, -order:] = here.tokens[:, -order:]
    return State(
        model,
        tuple(here.tokens[0].tolist()),
        tuple(here.weights[0].tolist()),
        tuple(there.tokens[0].tolist()),
    )


def plain_edit(edit: EditState) -> Edit:
    """The edit as the library has it, with a source that needs no other run; others are "zero" for
    now."""
    source, values = edit.source, edit.source.values
    if source.kind == "weights":
        if (
            edit.hook.removeprefix("hook_") != "pattern"
            or edit.position is not None
            or edit.key is not None
        ):
            raise ValueError(
                "source: weights are written into the attention of a layer at the last position; "
                "choose "
                "the hook point pattern, without positions and keys"
            )
        return steering_edit(
            torch.tensor(values, dtype=torch.float64),
            layer=-1 if edit.layer is None else edit.layer,
        )
    found: Any = "zero"
    if source.kind == "number":
        found = source.value
    elif source.kind == "values":
        found = torch.tensor(values, dtype=torch.float64)
    elif source.kind == "share":
        if edit.key is None or edit.hook.removeprefix("hook_") != "pattern":
            raise ValueError(
                "source: a share of the row needs attention (hook point pattern) and its keys"
            )
        return Edit(
            edit.hook,
            Share(source.value or 0.0, keys=slice(*edit.key)),
            _index(edit.position),
            edit.head,
            layer=edit.layer,
        )
    return Edit(
        edit.hook, found, _index(edit.position), edit.head, edit.block, edit.layer, _index(edit.key)
    )


def _index(places: Range | None) -> int | slice | None:
    """One position as its number, several as a slice."""
    if places is None:
        return None
    return places[0] if places[1] == places[0] + 1 else slice(*places)
