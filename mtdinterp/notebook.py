"""The workbench's views in a notebook, shown as the output of a cell.

    from mtdinterp.notebook import look, sweep
    look(checkpoint)                                         # a sequence drawn from its task
    look(checkpoint, tokens, edits=[Edit("pattern", "zero", layer=1, position=-1)])
    sweep(checkpoint, tokens, source)

The output is static HTML with inline pictures: nothing is fetched, no optional dependency is
needed, and a saved notebook keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mtdinterp.app.document import sweep_document, view_document
from mtdinterp.app.models import read_model
from mtdinterp.app.scene import Memory, Scene, check_length
from mtdinterp.app.state import ModelState, State
from mtdinterp.app.views import View, view
from mtdinterp.checkpoints import Checkpoint
from mtdinterp.checks import ArrayLike, as_distribution, as_tokens
from mtdinterp.interventions import Edit, SweepResult, patch_sweep
from mtdinterp.pages.page import fragment


@dataclass(frozen=True, eq=False)
class Look:
    """One view of a model's run; a notebook shows it as HTML."""

    scene: Scene

    @property
    def numbers(self) -> View:
        """The numbers behind the bars and tables."""
        return view(self.scene)

    def _repr_html_(self) -> str:
        return fragment(view_document(self.scene))


@dataclass(frozen=True, eq=False)
class Sweep:
    """A patch sweep; a notebook shows it as HTML."""

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
    """Run a checkpoint's model next to its reference construction, with optional edits.

    Args:
        checkpoint: the model and its task.
        tokens: one sequence, [pos] or [1, pos]; by default one is drawn from the task, together
            with its true mixture weights.
        edits: edits of the model's activations.
        weights: the true mixture weights of the sequence, [lag], if they are known.
        source: another sequence of the same length, as a source for edits and to show.
        position: the position whose stream is shown.
        beta: β of the reference construction; by default the one that fits the model.
        delta: δ of the reference construction, which masks what it must not attend to.
        seed: the seed with which a sequence is drawn if none is given.

    Returns:
        A view that a notebook shows; its `numbers` hold what is drawn.
    """
    model = checkpoint.model
    task = checkpoint.task
    if tokens is None:
        sample = task.sample(1, model.config.length, seed)
        tokens = sample.tokens
        weights = sample.weights[0]
    sequence = _one_sequence(checkpoint, "tokens", tokens)
    length = len(sequence)
    check_length(task, length)
    source_sequence = None
    if source is not None:
        source_sequence = _one_sequence(checkpoint, "source", source)
        if len(source_sequence) != length:
            raise ValueError(
                f"source: expected {length} tokens, as many as in the sequence; got "
                f"{len(source_sequence)}"
            )
    truth = None
    if weights is not None:
        truth = tuple(as_distribution("weights", weights, task.n_components).tolist())
    if not -length <= position < length:
        raise ValueError(
            f"position: expected a position in {-length}..{length - 1}, got {position}"
        )
    reading = read_model(model, task, length)
    reference = reading.reference(beta, delta)
    state = State(
        ModelState(checkpoint.path.name, beta=beta, delta=delta),
        sequence,
        truth,
        source_sequence,
        position=position,
    )
    return Look(Scene(state, task, model, reference, reading, Memory(), tuple(edits)))


def sweep(
    checkpoint: Checkpoint, tokens: ArrayLike, source: ArrayLike, kind: str = "block"
) -> Sweep:
    """Patch every place in turn with its activation on another sequence.

    Args:
        checkpoint: the model and its task.
        tokens: the sequence whose run is patched, [pos] or [1, pos].
        source: the sequence that activations are taken from, of the same length.
        kind: what is patched at each place; see `mtdinterp.interventions.patch_sweep`.

    Returns:
        A sweep that a notebook shows. Its metric is -KL(before ‖ patched) of the predictions.
    """
    clean = torch.tensor([_one_sequence(checkpoint, "tokens", tokens)])
    corrupted = torch.tensor([_one_sequence(checkpoint, "source", source)])
    return Sweep(patch_sweep(checkpoint.model, clean, corrupted, kind, "noise"))


def _one_sequence(checkpoint: Checkpoint, name: str, tokens: ArrayLike) -> tuple[int, ...]:
    """Check one sequence, with or without a batch axis; errors start with the argument's name."""
    # Python's own conversion errors and those of the checks say what is wrong, but not with which
    # argument.
    try:
        rows = as_tokens(torch.atleast_2d(torch.as_tensor(tokens)), checkpoint.task.vocab_size)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {str(error).removeprefix('tokens: ')}") from None
    if len(rows) != 1:
        raise ValueError(f"{name}: expected one sequence, got {len(rows)}")
    return tuple(rows[0].tolist())
