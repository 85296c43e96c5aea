"""The workbench's views in a notebook: the last expression of a cell is shown as the page would
show it.

    from mtdinterp.notebook import look, sweep
    look(checkpoint)                                                   # a sequence of its task
    look(checkpoint, tokens, edits=[Edit("pattern", "zero", layer=1, position=-1)])
    sweep(checkpoint, tokens, source)

Static HTML with inline pictures: nothing is fetched, no extra is needed, and a saved notebook keeps
it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mtdinterp.app.document import sweep_document, view_document
from mtdinterp.app.models import construction_for, fit_constants
from mtdinterp.app.scene import Memory, Scene, check_length
from mtdinterp.app.state import ModelState, State
from mtdinterp.app.views import View, view
from mtdinterp.checkpoints import Checkpoint
from mtdinterp.checks import ArrayLike, as_distribution, as_tokens
from mtdinterp.interventions import Edit, SweepResult, patch_sweep
from mtdinterp.pages.page import fragment


@dataclass(frozen=True, eq=False)
class Look:
    """One view; `numbers` has what the bars and tables show."""

    scene: Scene

    @property
    def numbers(self) -> View:
        return view(self.scene)

    def _repr_html_(self) -> str:
        return fragment(view_document(self.scene))


@dataclass(frozen=True, eq=False)
class Sweep:
    """A patch sweep; `result` is the library's."""

    result: SweepResult

    def _repr_html_(self) -> str:
        return fragment(sweep_document(self.result))


def look(
    checkpoint: Checkpoint,
    tokens: ArrayLike | None = None,
    *,
    edits: Sequence[Edit] = (),
    weights: ArrayLike | None = None,
    source: ArrayLike | None = None,
    position: int = -1,
    beta: float | None = None,
    delta: float = 100.0,
    seed: int = 1,
) -> Look:
    """A run of the checkpoint's model next to its construction, with edits if there are any.

    `tokens` is one sequence (drawn from the task, with its true weights, where there is none),
    `weights` its true mixture weights where they are known, `source` another sequence to show
    beside it.
    """
    model, task = checkpoint.model, checkpoint.task
    if tokens is None:
        drawn = task.sample(1, model.config.length, seed)
        tokens, weights = drawn.tokens, drawn.weights[0]
    given = _one(checkpoint, "tokens", tokens)
    check_length(task, len(given))
    other = None if source is None else _one(checkpoint, "source", source)
    if other is not None and len(other) != len(given):
        raise ValueError(
            f"source: expected as many tokens as the sequence has, {len(given)}, got {len(other)}"
        )
    truth = (
        None if weights is None else tuple(as_distribution("weights", weights, task.order).tolist())
    )
    if not -len(given) <= position < len(given):
        raise ValueError(
            f"position: expected a position of {-len(given)}..{len(given) - 1}, got {position}"
        )
    constants = fit_constants(model, task, len(given))
    state = State(
        ModelState(checkpoint.path.name, beta=beta, delta=delta),
        given,
        truth,
        other,
        position=position,
    )
    construction = construction_for(model, task, len(given), constants, beta, delta)
    return Look(Scene(state, task, model, construction, constants, Memory(), tuple(edits)))


def sweep(
    checkpoint: Checkpoint, tokens: ArrayLike, source: ArrayLike, kind: str = "block"
) -> Sweep:
    """Every place patched from the source sequence in turn; the metric is -KL(before ‖ patched)."""
    here, there = (
        torch.tensor([_one(checkpoint, name, given)])
        for name, given in (("tokens", tokens), ("source", source))
    )
    return Sweep(patch_sweep(checkpoint.model, here, there, kind, "noise"))


def _one(checkpoint: Checkpoint, name: str, tokens: ArrayLike) -> tuple[int, ...]:
    """One sequence, with or without its batch axis."""
    try:
        rows = as_tokens(torch.atleast_2d(torch.as_tensor(tokens)), checkpoint.task.vocab_size)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {str(error).removeprefix('tokens: ')}") from None
    if len(rows) != 1:
        raise ValueError(f"{name}: expected one sequence, got {len(rows)}")
    return tuple(rows[0].tolist())
