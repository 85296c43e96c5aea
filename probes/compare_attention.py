"""Does each layer attend as the construction does, on the same sequences?

The construction's constants are the model's own: β by its last layer's attention, or the four
constants fitted to a five-layer model's predictions. Distances are total variation, 0 for the same
attention and 1 for disjoint ones. The construction is exact at the last position only, so later
layers are judged there; layer 1 at every position that has all its lags.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.construction import construction_with, tune_two_step
from mtdinterp.estimators import TwoStepConstants
from mtdinterp.fitting import (
    EXPLAINED,
    FAMILIES,
    Evidence,
    explained,
    fit_two_step,
    one_step_weights,
    usual_beta,
)
from mtdinterp.metrics import total_variation
from mtdinterp.models import LensTransformer
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.readout import (
    CLEAR_R2,
    Slope,
    attention,
    first_step_beta,
    fit_slope,
    predictions,
    read,
    sequences,
    some_to_read,
    varying,
)
from mtdinterp.task import MTDTask

NEAR, FAR = 0.1, 0.5
"""Below the first distance attention is called near the construction's, above the second far from
it."""
NEARER = 0.5
"""And near only if it is nearer than this share of what uniform attention would be: two averages
are alike anyway."""
FALLS_R2 = 0.05
"""Share of the variance of a layer's log-attention below which a slope over positions says nothing.
"""


@dataclass(frozen=True, eq=False)
class LayerComparison:
    """One layer's attention next to the construction's; means over sequences (and heads)."""

    layer: int
    total_variation: Float64[Tensor, " query"]
    """By query position."""
    distance: float
    """At the positions that count: all that have their lags in layer 1, the last one in later
    layers."""
    uniform_distance: float
    """The same for uniform attention over all visible positions in the model's place: a control."""
    mass_on_lags: float
    """Attention on the lags there: offsets 1..m of a token in layer 1, 0..m-1 of the next one in
    later layers."""
    responsibility_correlation: float
    """Layer 1: of its attention over the lags, normalised, with the responsibilities γ. Not a
    number elsewhere."""
    distance_from_uniform: float
    """Of the last query from uniform attention over positions m..T-1: an averaging layer has 0."""
    falls_with: Slope | None
    """Layer 4 of five: slope of its last query's log-attention on w¹·γ_i over positions, -a in the
    construction."""

    @property
    def near(self) -> bool:
        return self.distance < NEAR and self.distance < NEARER * self.uniform_distance


@dataclass(frozen=True, eq=False)
class AttentionComparison:
    """All layers, and the construction that they were compared with."""

    layers: tuple[LayerComparison, ...]
    construction: str
    constants: dict[str, float]
    fitted: bool
    """Whether the constants are the model's own; else it showed none, and the optimum for the task
    was taken."""

    def summary(self) -> str:
        constants = ", ".join(f"{name} = {value:.3g}" for name, value in self.constants.items())
        source = (
            "read from the model"
            if self.fitted
            else "the task's optimum: the model shows no clear one"
        )
        lines = [
            f"Attention next to the {self.construction} construction ({constants}; {source}):",
            "  layer  total variation (uniform's)  mass on lags  from uniform  correlation with γ",
        ]
        for layer in self.layers:
            rho = layer.responsibility_correlation
            correlation = "" if math.isnan(rho) else f"{rho:.3f}"
            distance = f"{layer.distance:.3f} ({layer.uniform_distance:.3f})"
            lines.append(
                f"  {layer.layer:<6} {distance:<28} {layer.mass_on_lags:<13.3f} "
                f"{layer.distance_from_uniform:<13.3f} {correlation}".rstrip()
            )
            if layer.falls_with is not None:
                slope = layer.falls_with
                sure = slope.r2 >= FALLS_R2 and slope.value < -2 * slope.stderr
                falls = (
                    ": it falls, as the second step needs" if sure else ": no sign of a second step"
                )
                lines.append(
                    f"         log-attention on w¹·γ: slope {slope.value:.2f} ± "
                    f"{slope.stderr:.2f}, "
                    f"R² {slope.r2:.2f}{falls}"
                )
        near = [str(layer.layer) for layer in self.layers if layer.near]
        far = [str(layer.layer) for layer in self.layers if layer.distance > FAR]
        words = [
            f"near the construction: layer {', '.join(near)}"
            if near
            else "no layer is near the construction"
        ]
        words += [f"far from it: layer {', '.join(far)}"] if far else []
        return "\n".join([*lines, "  " + "; ".join(words) + "."])


def compare_attention(
    model: LensTransformer,
    task: MTDTask,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 256,
    seed: int = 0,
) -> AttentionComparison:
    """Every layer's attention against the construction with the model's own constants, on some 256
    sequences at most.

    With several heads a layer, attention is the mean over them.
    """
    sequence = some_to_read(sequences(model, task, tokens, n_sequences, seed))
    n_layers, length = len(model.blocks), sequence.shape[1]
    evidence = Evidence(task, sequence)
    name, constants, fitted = _constants(model, evidence)
    reference = construction_of(task, length, constants)
    # In full, not at the last query alone: positions before it are part of the picture.
    own = attention(model, sequence, patterns=range(n_layers), last_only=False).patterns
    ideal = attention(
        reference, sequence, patterns=range(len(reference.blocks)), last_only=False
    ).patterns
    layers = [
        _compare(
            evidence,
            layer,
            n_layers,
            own[layer].double().mean(1),
            ideal[counterpart(layer, n_layers, len(reference.blocks))].double().mean(1),
        )
        for layer in range(n_layers)
    ]
    if n_layers >= 5 and name == "two-step":
        layers[3] = _with_fall(layers[3], model, evidence)
    return AttentionComparison(tuple(layers), name, constants, fitted)


def _constants(model: LensTransformer, evidence: Evidence) -> tuple[str, dict[str, float], bool]:
    """Which construction, with which constants, and whether they are the model's own."""
    task, length = evidence.task, evidence.length
    if len(model.blocks) >= 5:
        given = predictions(model, evidence.tokens)
        fitted = fit_two_step(evidence, given)._asdict()
        if (
            explained(evidence, given, FAMILIES["two_step_construction"].weights(evidence, fitted))
            >= EXPLAINED
        ):
            return "two-step", fitted, True
        return "two-step", tune_two_step(task, length, n_sequences=1000)._asdict(), False
    beta = read(model, task, evidence.tokens).beta
    if beta.r2 >= CLEAR_R2 and beta.value > 0:
        return "one-step", {"beta": beta.value}, True
    return "one-step", {"beta": usual_beta(task, length)}, False


def construction_of(task: MTDTask, length: int, constants: dict[str, float]) -> LensTransformer:
    """The one-step construction for one named constant, the two-step one for four."""
    return construction_with(
        task, length, TwoStepConstants(**constants) if len(constants) > 1 else constants["beta"]
    )


def counterpart(layer: int, n_layers: int, n_reference: int) -> int:
    """First and last layers answer each other, whatever the depth; between them in order."""
    if layer == n_layers - 1:
        return n_reference - 1
    return min(layer, n_reference - 2)


def _compare(
    evidence: Evidence,
    layer: int,
    n_layers: int,
    own: Float64[Tensor, "batch query key"],
    ideal: Float64[Tensor, "batch query key"],
) -> LayerComparison:
    order = evidence.task.order
    distances = total_variation(own, ideal).mean(0)
    visible = torch.ones_like(own[0]).tril()
    control = total_variation(visible / visible.sum(-1, keepdim=True), ideal).mean(0)
    by_offset = attention_by_offset(own[:, None])[:, 0]
    last = own[:, -1]
    uniform = torch.zeros_like(last)
    uniform[:, order:] = 1 / (evidence.length - order)
    if layer == 0 and n_layers > 1:
        lags = by_offset[:, order:, 1 : order + 1]
        distance, uniform_distance = distances[order:].mean().item(), control[order:].mean().item()
        mass = lags.sum(-1).mean().item()
        correlation = _correlation(
            lags / lags.sum(-1, keepdim=True).clamp_min(1e-12), evidence.responsibilities
        )
    else:
        distance, uniform_distance, correlation = distances[-1].item(), control[-1].item(), math.nan
        mass = by_offset[:, -1, :order].sum(-1).mean().item()
    return LayerComparison(
        layer + 1,
        distances,
        distance,
        uniform_distance,
        mass,
        correlation,
        total_variation(last, uniform).mean().item(),
        None,
    )


def _with_fall(
    comparison: LayerComparison, model: LensTransformer, evidence: Evidence
) -> LayerComparison:
    """How the log-attention of the last query falls with w¹·γ_i over the positions i that have
    their lags.

    w¹ is taken with layer 3's own β, or with the task's optimum where layer 3 takes no step of its
    own.
    """
    task, layer = evidence.task, comparison.layer - 1
    beta = first_step_beta(model, task, evidence.tokens)
    weights = one_step_weights(
        evidence, usual_beta(task, evidence.length) if beta is None else beta
    )
    logs = attention(model, evidence.tokens, log_at_last=[layer], last_only=False).log_at_last[
        layer
    ]
    explanations = torch.einsum("btg,bg->bt", evidence.responsibilities, weights)
    # Static scores by position are no re-weighting: both sides without each position's mean over
    # sequences.
    fall = fit_slope(varying(explanations), varying(logs.flip(-1)[:, task.order :]))
    return LayerComparison(**{**vars(comparison), "falls_with": fall})


def _correlation(x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"]) -> float:
    return torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1].item()
