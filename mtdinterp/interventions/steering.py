"""Write weights of one's own where the model keeps its estimate, or another model's attention where
it has its own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_distribution, check_number, check_option
from mtdinterp.construction import one_step
from mtdinterp.fitting import Evidence, fit_beta
from mtdinterp.interventions.edits import Edit
from mtdinterp.interventions.patching import patch
from mtdinterp.metrics import clip_to_distribution, kl_divergence, total_variation
from mtdinterp.models import LensTransformer
from mtdinterp.readout import attention, predictions, sequences
from mtdinterp.task import MTDTask, Sample, predict_next

TRANSPLANTS = {"responsibilities": 0, "uniform": 1, "one_step": 2}
"""Attention of the construction by what it is, with the layer that has it."""


def steer_weights(
    model: LensTransformer,
    tokens: ArrayLike,
    weights: ArrayLike,
    dose: float = 1.0,
    layer: int = -1,
) -> Float[Tensor, "batch vocab"]:
    """The model's prediction when a layer (the last) attends to the lags with the given weights at
    the last position.

    `weights` is one vector for all sequences or one each; lag g is offset g-1 there. With a dose
    below one that share of the attention is replaced; 0 is the model as it is.
    """
    sequence = model.check_tokens(tokens)
    wanted = as_distribution("weights", weights)
    length, order = sequence.shape[1], wanted.shape[-1]
    if wanted.shape not in ((order,), (len(sequence), order)) or order > length:
        raise ValueError(
            f"weights: expected shape [lag] or [{len(sequence)}, lag] with at most {length} lags, "
            "got "
            f"{list(wanted.shape)}"
        )
    return patch(model, sequence, [steering_edit(wanted, dose, layer)]).after


def steering_edit(weights: ArrayLike, dose: float = 1.0, layer: int = -1) -> Edit:
    """The edit that `steer_weights` makes, to be combined with others."""
    wanted, dose = (
        torch.atleast_2d(as_distribution("weights", weights)),
        check_number("dose", dose, minimum=0),
    )

    def mixed(own: Tensor) -> Tensor:
        row = torch.zeros(len(wanted), 1, 1, own.shape[-1], dtype=torch.float64)
        row[:, 0, 0, own.shape[-1] - wanted.shape[-1] :] = wanted.flip(-1)
        return (1 - dose) * own + dose * row.to(own)

    return Edit("pattern", mixed, position=-1, layer=layer)


@dataclass(frozen=True, eq=False)
class DoseResponse:
    """How the output follows the weights that are written, from none of them to all."""

    doses: tuple[float, ...]
    divergence: tuple[float, ...]
    """Mean KL(formula ‖ model): the formula is Σ_g w_g·π[y_{T-g}], with w the given weights mixed
    with the model's own attention over the lags, normalised."""
    moved: tuple[float, ...]
    """Mean total variation of the output from where it was."""
    expected: tuple[float, ...]
    """The same of the formula."""
    explained: float
    """R² of the outputs' movement by the formula's, at the largest dose; not a number where nothing
    should move."""

    def summary(self) -> str:
        rows = [
            f"  dose {dose:<5.2g} moved {moved:.3f}  KL to the formula {kl:.2e}"
            for dose, moved, kl in zip(self.doses, self.moved, self.divergence, strict=True)
        ]
        return "\n".join(
            [
                "Steering the in-context weights:",
                *rows,
                f"At the largest dose the formula explains {self.explained:.1%} of the movement.",
            ]
        )


def dose_response(
    model: LensTransformer,
    task: MTDTask,
    tokens: ArrayLike,
    weights: ArrayLike,
    doses: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
) -> DoseResponse:
    """Steer towards the weights by several doses, and compare with what the formula says."""
    sequence = sequences(model, task, tokens, 0, 0, least=1)
    wanted = as_distribution("weights", weights, task.order)
    if wanted.shape not in ((task.order,), (len(sequence), task.order)):
        raise ValueError(
            f"weights: expected shape [{task.order}] or [{len(sequence)}, {task.order}], got "
            f"{list(wanted.shape)}"
        )
    if not doses:
        raise ValueError("doses: expected at least one")
    wanted, doses = wanted.expand(len(sequence), task.order), sorted(doses)
    found = patch(model, sequence, [])
    own = found.weights_before.double().mean(1)[:, : task.order]
    own = own / own.sum(-1, keepdim=True)
    start = clip_to_distribution(found.before)[0]
    formula_start = predict_next(task.transition, sequence, own)
    divergence, moved, expected = [], [], []
    for dose in doses:
        output = clip_to_distribution(steer_weights(model, sequence, wanted, dose))[0]
        formula = predict_next(task.transition, sequence, (1 - dose) * own + dose * wanted)
        divergence.append(kl_divergence(formula, output).mean().item())
        moved.append(total_variation(output, start).mean().item())
        expected.append(total_variation(formula, formula_start).mean().item())
    change, predicted = output - start, formula - formula_start
    total = predicted.square().sum().item()
    explained = 1 - (change - predicted).square().sum().item() / total if total > 0 else math.nan
    return DoseResponse(
        tuple(float(dose) for dose in doses),
        tuple(divergence),
        tuple(moved),
        tuple(expected),
        explained,
    )


@dataclass(frozen=True)
class Transplant:
    """KL to the truth with a layer's own attention and with another's in its place."""

    layer: int
    source: str
    kl_before: float
    kl_after: float
    difference_stderr: float
    """Of the mean difference over the same sequences."""

    @property
    def difference(self) -> float:
        return self.kl_after - self.kl_before

    def summary(self) -> str:
        sure = abs(self.difference) > 2 * self.difference_stderr
        verdict = (
            "which is no more than chance"
            if not sure
            else "for the better"
            if self.difference < 0
            else "for the worse"
        )
        return (
            f"Layer {self.layer + 1} with {self.source} attention: KL to the truth "
            f"{self.kl_before:.5f} -> "
            f"{self.kl_after:.5f} ({self.difference:+.5f} ± {self.difference_stderr:.5f}, "
            f"{verdict})."
        )


def transplant_attention(
    model: LensTransformer,
    task: MTDTask,
    data: Sample,
    layer: int,
    source: str | LensTransformer,
    beta: float | None = None,
    source_layer: int | None = None,
) -> Transplant:
    """Replace a layer's attention by the construction's, or by another model's, and see how the KL
    to the truth moves.

    `source` is "responsibilities" (γ), "uniform" (over positions m..T-1) or "one_step"
    (softmax(β·Γ)): the attention of the construction's layer 1, 2 or 3, with the given β or the one
    that explains the model's predictions best. Or it is a model, whose `source_layer` (the same one
    by default) gives its attention; so the construction can be given a trained model's. Layers
    count from 0.
    """
    tokens = sequences(model, task, data.tokens, 0, 0, least=1)
    layer = (
        range(len(model.blocks))[layer]
        if -len(model.blocks) <= layer < len(model.blocks)
        else layer
    )
    if isinstance(source, str):
        check_option("source", source, TRANSPLANTS)
        if beta is None:
            beta = fit_beta(Evidence(task, tokens), predictions(model, tokens))
        giver: LensTransformer = one_step(
            task.transition, task.order, tokens.shape[1], beta, dtype=model.W_U.dtype
        )
        name, taken = source, TRANSPLANTS[source]
    else:
        giver, name, taken = (
            source,
            "another model's",
            layer if source_layer is None else source_layer,
        )
    pattern = _attention_of(giver, tokens, taken)
    if not 0 <= layer < len(model.blocks):
        raise ValueError(f"layer: expected a layer of 0..{len(model.blocks) - 1}, got {layer}")
    if pattern.shape[1] != model.layers[layer].attn.n_heads:
        pattern = pattern.mean(1, keepdim=True)  # no head answers another: every one gets the mean
    found = patch(model, tokens, [Edit("pattern", pattern, layer=layer)])
    before, after = (
        kl_divergence(data.next_probs, clip_to_distribution(outputs)[0])
        for outputs in (found.before, found.after)
    )
    difference = after - before
    stderr = (
        difference.std().item() / len(difference) ** 0.5 if len(difference) > 1 else float("nan")
    )
    return Transplant(layer, name, before.mean().item(), after.mean().item(), stderr)


def _attention_of(
    model: LensTransformer, tokens: Tensor, layer: int
) -> Float64[Tensor, "batch head query key"]:
    """A layer's attention on the tokens."""
    if not 0 <= layer < len(model.blocks):
        raise ValueError(
            f"source_layer: expected a layer of 0..{len(model.blocks) - 1}, got {layer}"
        )
    return attention(model, tokens, patterns=[layer], last_only=False).patterns[layer].double()
