"""Pure readings of a model: where its last layer looks, what its second layer averages, and the constants in both.

Cheap enough to watch a model while it trains; probes build on the same readings. Nothing here changes the model,
and nothing asks what class it has: hook names and, for the weights, named stream blocks are all that is used.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from mtdinterp.estimators import mean_responsibilities
from mtdinterp.models import LensTransformer
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.task import MTDTask

BRANCH_R2 = 0.5
"""Below this R² of the gain the branch is undecided: trained models were above 0.9, untrained ones below 0.1."""
READ_CELLS = 2**22
"""Attention entries a layer that a reading may hold: 256 sequences at T = 128, 64 at T = 256."""
TINY = 1e-12
"""Attention below this is taken as this in logarithms."""


@dataclass(frozen=True)
class Slope:
    """A least-squares slope through the origin with its standard error and the share of variance it explains."""

    value: float
    stderr: float
    r2: float


@dataclass(frozen=True)
class Reading:
    """What training shows while it runs."""

    beta: Slope
    """Slope of the last layer's log-attention over the lags on the mean responsibilities, in what varies."""
    gain: Slope
    """Slope of what layers 1 and 2 average, Γ̃, on Γ: 1 in the construction, negative if mirrored."""

    @property
    def branch(self) -> str:
        """direct, mirrored, or undecided where the gain explains less than half of the variance."""
        return branch_of(self.gain)


def branch_of(gain: Slope) -> str:
    if not gain.r2 >= BRANCH_R2:
        return "undecided"
    return "direct" if gain.value > 0 else "mirrored"


def read(model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"]) -> Reading:
    """β by the last layer's attention and the gain of the first two, on the given sequences."""
    average = varying(mean_responsibilities(task.transition, tokens, task.order))
    patterns = attention_patterns(model, tokens)
    read_out = last_attention(patterns[-1])[:, : task.order]
    beta = fit_slope(average, varying(read_out.clamp_min(TINY).log()))
    if len(patterns) < 2:
        return Reading(beta, Slope(float("nan"), float("nan"), float("nan")))
    return Reading(beta, fit_slope(average, varying(averaged_lags(patterns[0], patterns[1], task.order))))


def some_to_read(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "some pos"]:
    """As many of the sequences as a reading of attention should hold at once, and no more than it needs."""
    return tokens[: max(8, min(256, READ_CELLS // tokens.shape[1] ** 2))]


def predictions(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], softmax: bool = False
) -> Float64[Tensor, "batch vocab"]:
    """Raw outputs at the last position, some sequences at a time; with `softmax` they are logits."""
    at_once = max(1, min(512, 2 * READ_CELLS // tokens.shape[1] ** 2))
    with torch.no_grad():
        outputs = torch.cat([model(part, last_only=True) for part in tokens.split(at_once)]).double()
    return outputs.softmax(-1) if softmax else outputs


def attention_patterns(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> list[Float[Tensor, "batch head query key"]]:
    """The attention of every layer."""
    names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(len(model.blocks))]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, names_filter=names)
    return [cache[name] for name in names]


def last_attention(pattern: Float[Tensor, "batch head query key"]) -> Float64[Tensor, "batch offset"]:
    """Attention of the last query by offset, mean over heads. Offset g-1 is lag g: the token that predicts."""
    return attention_by_offset(pattern[:, :, -1:])[:, :, 0].double().mean(1)


def averaged_lags(
    first: Float[Tensor, "batch head1 query key"], second: Float[Tensor, "batch head2 query key"], order: int
) -> Float64[Tensor, "batch lag"]:
    """Γ̃_g = Σ_i A²[last, i]·A¹[i, i-g], mean over heads: the construction's Γ where its attention is the model's."""
    weights = second[:, :, -1].double().mean(1)
    by_lag = attention_by_offset(first).double().mean(1)[..., 1 : order + 1]
    return torch.einsum("bi,big->bg", weights, by_lag)


def weight_beta(model: LensTransformer, order: int) -> Slope:
    """β from the weights of a disentangled model: the last layer's read of the averaged lag block times what
    layer 1 writes there, double-centred, against I - 11ᵀ/m. Not a number where there is no such block."""
    block, layers = "L2.L1.lag", [cast(Any, entry).attn for entry in model.blocks]
    if block not in model.stream or len(layers) < 3 or model.config.length <= order or layers[-1].n_heads != 1:
        return Slope(float("nan"), float("nan"), float("nan"))
    with torch.no_grad():
        reads = layers[-1].R_A[0, :order, model.stream[block]].double()
        writes = layers[0].R_V[0, 1 : order + 1].double()
        product = centred(centred(reads @ writes.T).T).T
    ideal = torch.eye(order, dtype=torch.float64) - 1 / order
    return fit_slope(ideal, product)


def centred(values: Float[Tensor, "*batch lag"]) -> Float[Tensor, "*batch lag"]:
    """Minus the mean over the last axis: what a softmax does not see."""
    return values - values.mean(-1, keepdim=True)


def varying(values: Float[Tensor, "batch lag"]) -> Float[Tensor, "batch lag"]:
    """What varies with the sequence: minus the mean over lags, and minus each lag's mean over sequences.

    A constant of a lag's own says nothing about a sequence, and the last layer's static scores undo it: counted as
    unexplained variance it would hide a clear mechanism (R² 0.6 where this way it is 0.97, with the same slope).
    """
    return centred(values - values.mean(0))


def fit_slope(x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"]) -> Slope:
    """Least squares of y on x, both centred already; rows of the last axis lose a degree of freedom to that."""
    across, spread, square = (x * y).sum().item(), x.square().sum().item(), y.square().sum().item()
    if not (spread > 0 and square > 0):
        return Slope(0.0, float("nan"), 0.0)
    value = across / spread
    r2 = across**2 / (spread * square)
    freedom = max(1, x.numel() - x.numel() // x.shape[-1] - 1)
    return Slope(value, (max(0.0, 1 - r2) * square / freedom / spread) ** 0.5, r2)
