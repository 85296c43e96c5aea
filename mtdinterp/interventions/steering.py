"""Write chosen mixture weights into the attention of a model.

If the last layer's attention over the lags is the weights that the model mixes with, its prediction
follows the weights that are written there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_distribution, check_number
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import NOTHING_MOVES, USED_R2
from mtdinterp.errors import NotApplicable
from mtdinterp.formatting import counted, explained_text, share_text
from mtdinterp.interventions.edits import Edit
from mtdinterp.interventions.patching import patch
from mtdinterp.metrics import clip_to_distribution, kl_divergence, r_squared, total_variation
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Heading, Line, Lines, Text
from mtdinterp.readings import probe_sequences
from mtdinterp.readings.mechanism import lag_offsets
from mtdinterp.results import Result
from mtdinterp.tasks.base import Task


def steer_weights(
    model: LensTransformer,
    tokens: ArrayLike,
    weights: ArrayLike,
    dose: float = 1.0,
    layer: int = -1,
    offsets: Sequence[int] | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Predict with a layer that attends to the lags with the given weights at the last position.

    Args:
        model: any hooked model.
        tokens: sequences [batch, pos].
        weights: [lag] for all sequences, or [batch, lag].
        dose: the share of the attention that is replaced; 0 leaves the model as it is.
        layer: the layer whose attention is replaced, from 0; the last one by default.
        offsets: how far before the last position each weight's token stands; 0, 1, … by default,
            which are the lags 1, 2, … of the next token.

    Returns:
        The prediction after the last position.
    """
    sequence = model.check_tokens(tokens)
    wanted = as_distribution("weights", weights)
    length = sequence.shape[1]
    n_lags = wanted.shape[-1]
    if wanted.shape not in ((n_lags,), (len(sequence), n_lags)) or n_lags > length:
        raise ValueError(
            f"weights: expected shape [lag] or [{len(sequence)}, lag] with at most {length} lags, "
            f"got {list(wanted.shape)}"
        )
    return patch(model, sequence, [steering_edit(wanted, dose, layer, offsets)]).after


def steering_edit(
    weights: ArrayLike,
    dose: float = 1.0,
    layer: int = -1,
    offsets: Sequence[int] | None = None,
) -> Edit:
    """The edit that `steer_weights` makes, to combine with others.

    Args:
        weights: [lag] for all sequences, or [batch, lag].
        dose: the share of the attention that is replaced.
        layer: the layer whose attention is replaced, from 0; the last one by default.
        offsets: how far before the last position each weight's token stands; 0, 1, … by default.

    Returns:
        An edit of the attention of all heads at the last position.
    """
    wanted = torch.atleast_2d(as_distribution("weights", weights))
    share = check_number("dose", dose, minimum=0)
    places = torch.tensor(range(wanted.shape[-1]) if offsets is None else offsets)

    def mixed(own: Tensor) -> Tensor:
        n_keys = own.shape[-1]
        row = torch.zeros(len(wanted), 1, 1, n_keys, dtype=torch.float64)
        row[:, 0, 0, n_keys - 1 - places] = wanted
        return (1 - share) * own + share * row.to(own)

    return Edit("pattern", mixed, position=-1, layer=layer)


@dataclass(frozen=True, kw_only=True, eq=False)
class DoseResponse(Result):
    """How the prediction follows weights that are written into the last layer, dose by dose.

    The formula it is compared with is Σ_g w_g·rows[g], where w mixes the model's own attention over
    the lags (normalised, mean over heads) with the given weights.
    """

    doses: tuple[float, ...]
    divergence: tuple[float, ...]
    """Mean KL(formula ‖ model)."""
    moved: tuple[float, ...]
    """Mean total variation of the prediction from the unsteered one."""
    expected: tuple[float, ...]
    """The same for the formula."""
    explained: float
    """R² of the model's movement, as explained by the formula's, at the largest dose; NaN if
    nothing should move.
    """
    weights: tuple[float, ...] | None
    """The weights that are written; None if every sequence has its own."""
    n_heads: int = 1
    """Heads of the last layer; all of them get the weights."""

    def summary(self) -> str:
        """One line per dose, then how much of the movement the formula explains."""
        lines = ["Steering the in-context weights:"]
        for dose, moved, kl in zip(self.doses, self.moved, self.divergence, strict=True):
            lines.append(f"  dose {dose:<5.2g} moved {moved:.3f}  KL to the formula {kl:.2e}")
        lines.append(
            f"At the largest dose the formula explains {explained_text(self.explained)} of the "
            f"movement ({counted(self.n_sequences, 'sequence')}{self._head_note()})."
        )
        return "\n".join(lines)

    def _head_note(self) -> str:
        """A note on the heads, to be appended to a number; empty for a single head."""
        if self.n_heads == 1:
            return ""
        return f"; the weights are written into all {self.n_heads} heads"

    def claims(self) -> tuple[Claim, ...]:
        """Whether the last layer's attention is the weights that the model mixes with."""
        known = math.isfinite(self.explained)
        claim = Claim(
            claim="Weights written into the last layer's attention move the predictions as the "
            "formula predicts",
            status=decide(self.explained >= USED_R2) if known else Status.UNDECIDABLE,
            evidence="Steering to one lag: share of the movement that Σ_g w_g·rows[g] explains"
            + self._head_note(),
            number=share_text(self.explained),
            threshold=f"≥ {USED_R2:.0%}",
            control="no movement 0%",
            n_sequences=self.n_sequences,
            seed=self.seed,
            reason="" if known else "the formula does not move with these weights",
        )
        return (claim,)

    def blocks(self) -> list[Block]:
        """How much of the movement is explained, and the movement by dose."""
        sentence = "According to the formula, these weights should not move the prediction."
        if math.isfinite(self.explained):
            sentence = (
                f"The formula explains {explained_text(self.explained)} of how the prediction "
                f"moves ({counted(self.n_sequences, 'sequence')}{self._head_note()})."
            )
        target = "the given weights"
        if self.weights is not None:
            target = f"the weights ({', '.join(f'{weight:.3g}' for weight in self.weights)})"
        expected = tuple(zip(self.doses, self.expected, strict=True))
        moved = tuple(zip(self.doses, self.moved, strict=True))
        return [
            Heading("Steering"),
            Text((sentence,)),
            Lines(
                f"Steering towards {target}: how far the prediction moves",
                (Line("one_step", "the formula", expected), Line("model", "this model", moved)),
                "dose: share of the attention that is replaced",
                "total variation",
            ),
        ]


def dose_response(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike,
    weights: ArrayLike,
    doses: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
) -> DoseResponse:
    """Steer towards the weights by several doses, and compare the result with the formula.

    Args:
        model: any hooked model.
        task: the task that the sequences come from.
        tokens: sequences [batch, pos].
        weights: [component] for all sequences, or [batch, component].
        doses: shares of the last layer's attention to replace.

    Returns:
        Movements of the prediction, the model's and the formula's.

    Raises:
        NotApplicable: if the last query does not read every component at an offset.
    """
    sequence = probe_sequences(model, task, tokens, 0, 0, least=1)
    offsets = _offsets_to_steer(task)
    n_lags = task.n_components
    given = as_distribution("weights", weights, n_lags)
    if given.shape not in ((n_lags,), (len(sequence), n_lags)):
        raise ValueError(
            f"weights: expected shape [{n_lags}] or [{len(sequence)}, {n_lags}], "
            f"got {list(given.shape)}"
        )
    if not doses:
        raise ValueError("doses: expected at least one")
    wanted = given.expand(len(sequence), n_lags)
    evidence = task.evidence(sequence)
    unsteered = patch(model, sequence, [])
    own = unsteered.weights_before.double().mean(1)[:, offsets]
    own = own / own.sum(-1, keepdim=True)
    start = clip_to_distribution(unsteered.before)[0]
    formula_start = evidence.predict(own)
    divergence = []
    moved = []
    expected = []
    for dose in sorted(doses):
        steered = steer_weights(model, sequence, wanted, dose, offsets=offsets)
        output = clip_to_distribution(steered)[0]
        formula = evidence.predict((1 - dose) * own + dose * wanted)
        divergence.append(kl_divergence(formula, output).mean().item())
        moved.append(total_variation(output, start).mean().item())
        expected.append(total_variation(formula, formula_start).mean().item())
    return DoseResponse(
        doses=tuple(float(dose) for dose in sorted(doses)),
        divergence=tuple(divergence),
        moved=tuple(moved),
        expected=tuple(expected),
        explained=r_squared(
            output - start, formula - formula_start, least=NOTHING_MOVES * len(sequence)
        ),
        weights=tuple(given.tolist()) if given.ndim == 1 else None,
        n_heads=model.layers[-1].attn.n_heads,
        n_sequences=len(sequence),
        seed=None,
    )


def _offsets_to_steer(task: Task) -> list[int]:
    """The offset of every component, or NotApplicable if some have none."""
    offsets = lag_offsets(task)
    if offsets is None:
        raise NotApplicable(
            "Steering needs an attention offset for every component; "
            f"the task {task.name!r} has components that no single position shows."
        )
    return offsets
