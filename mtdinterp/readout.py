"""Pure readings of a model: where its last layer looks, what its second layer averages, and the
constants in both.

Cheap enough to watch a model while it trains; probes build on the same readings. Nothing here
changes the model, and nothing asks what class it has: hook names and, for the weights, named stream
blocks are all that is used.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_count, check_order
from mtdinterp.estimators import mean_responsibilities, responsibilities
from mtdinterp.metrics import row_kl
from mtdinterp.models import DisentangledTransformer, LensTransformer
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.task import MTDTask

CLEAR_R2 = 0.5
"""Below this R² a slope decides nothing: trained models were above 0.9, untrained ones below 0.1.
"""
RECOVERED = 0.5
"""A recovered π has at most this share of the row KL that the token marginal alone has."""
LEAST_GAIN = 0.02
"""A gain below this is no mechanism, however straight its line: untrained models had 0.01 with R²
0.7 at two tokens, the models of the zoo have 0.2 and more."""
LEAST_TOKEN_GAIN = 0.1
"""A query token with a smaller gain is on no branch: untrained models had at most 0.03."""
READ_CELLS = 2**22
"""Attention entries a layer that a reading may hold: 256 sequences at T = 128, 64 at T = 256."""


@dataclass(frozen=True)
class Slope:
    """A least-squares slope through the origin with its standard error and the share of variance it
    explains."""

    value: float
    stderr: float
    r2: float


NOT_APPLICABLE = Slope(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class Reading:
    """What training shows while it runs."""

    beta: Slope
    """Slope of the last layer's log-attention over the lags on the mean responsibilities, in what
    varies."""
    gain: Slope
    """Slope of what layers 1 and 2 average, Γ̃, on Γ: 1 in the construction, negative if mirrored.
    """
    transition_kl: float
    """Mean row KL of π to the gauge-fixed π that layer 1's token scores stand for."""

    @property
    def branch(self) -> str:
        """direct, mirrored, or undecided where the gain explains less than half of the variance."""
        return branch_of(self.gain)


def branch_of(gain: Slope) -> str:
    if not gain.r2 >= CLEAR_R2:
        return "undecided"
    return "direct" if gain.value > 0 else "mirrored"


def read(model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"]) -> Reading:
    """β by the last layer's attention, the gain of the first two and π by the first, on the given
    sequences."""
    average = varying(mean_responsibilities(task.transition, tokens, task.order))
    last = len(model.blocks) - 1
    watch = attention(model, tokens, patterns=range(2) if last else (), log_at_last=[last])
    beta = fit_slope(average, varying(watch.log_at_last[last][:, : task.order]))
    gain = NOT_APPLICABLE
    if last:
        averaged = averaged_lags(watch.patterns[0], watch.patterns[1], task.order)
        gain = fit_slope(average, varying(averaged), least=LEAST_GAIN)
    sign = -1 if branch_of(gain) == "mirrored" else 1
    estimate = gauge_fixed(token_scores(model).mean(0), task.stationary, sign)
    return Reading(beta, gain, row_kl(task.transition, estimate))


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention that was asked for, by layer (0 is the first)."""

    patterns: dict[int, Float[Tensor, "batch head query key"]]
    log_at_last: dict[int, Float64[Tensor, "batch offset"]]
    """Logarithm of the last query's attention by offset, mean over heads. Offset g-1 is lag g of
    the next token."""


def attention(
    model: LensTransformer,
    tokens: Int[Tensor, "batch pos"],
    patterns: Iterable[int] = (),
    log_at_last: Iterable[int] = (),
    last_only: bool = True,
) -> Attention:
    """Whole patterns of some layers, and of some the last query's logarithms, from one run.

    With `last_only` the last layer has its last query alone. Logarithms come from the scores:
    attention itself may be too small for its type where they are not.
    """
    wanted = {layer: f"blocks.{layer}.attn.hook_pattern" for layer in patterns}
    scored = {layer: f"blocks.{layer}.attn.hook_attn_scores" for layer in log_at_last}
    with torch.no_grad():
        _, cache = model.run_with_cache(
            tokens, last_only=last_only, names_filter=[*wanted.values(), *scored.values()]
        )
    logs = {}
    for layer, name in scored.items():
        by_head = cache[name][:, :, -1].cpu().double().log_softmax(-1).flip(-1)
        logs[layer] = by_head.logsumexp(1) - math.log(by_head.shape[1])
    return Attention({layer: cache[name].cpu() for layer, name in wanted.items()}, logs)


def some_to_read(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "some pos"]:
    """As many of the sequences as a reading of attention should hold at once, and no more than it
    needs."""
    return tokens[: max(8, min(256, READ_CELLS // tokens.shape[1] ** 2))]


def sequences(
    model: LensTransformer,
    task: MTDTask,
    tokens: ArrayLike | None,
    n_sequences: int,
    seed: int,
    least: int = 8,
) -> Int[Tensor, "batch pos"]:
    """The sequences to probe on: those given, or drawn from the task; checked against the model and
    the task."""
    if model.config.vocab_size != task.vocab_size:
        raise ValueError(
            f"task: it has {task.vocab_size} tokens and the model {model.config.vocab_size}"
        )
    if tokens is None:
        tokens = task.sample(
            check_count("n_sequences", n_sequences, minimum=least), model.config.length, seed
        ).tokens
    checked = model.check_tokens(tokens)
    check_order(task.order, checked.shape[1])
    if len(checked) < least:
        raise ValueError(f"tokens: expected at least {least} sequences, got {len(checked)}")
    return checked


def predictions(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "batch vocab"]:
    """What the model predicts after the last position, unclipped, some sequences at a time."""
    at_once = max(1, min(512, 2 * READ_CELLS // tokens.shape[1] ** 2))
    with torch.no_grad():
        outputs = torch.cat(
            [model(part, last_only=True).cpu() for part in tokens.split(at_once)]
        ).double()
    return model.to_probabilities(outputs)


def token_scores(model: LensTransformer) -> Float64[Tensor, "head query key"]:
    """Layer 1's content score of every pair of tokens: W_A itself in a disentangled model, its QK
    circuit otherwise."""
    attn = model.layers[0].attn
    with torch.no_grad():
        embedded, to_query, to_key = (
            weights.cpu().double() for weights in (model.W_E, attn.W_Q, attn.W_K)
        )
        return attn.score_scale * (embedded @ to_query) @ (embedded @ to_key).mT


def token_gains(
    model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, " vocab"]:
    """For every query token: the slope of layer 1's attention over the lags on the
    responsibilities, mean over heads.

    1 in the construction, negative where lags are weighed by how unlikely they are; a model may
    differ from token to token. Each lag's mean is taken out. Not a number for a token that does not
    occur, or with a single lag.
    """
    gamma = responsibilities(task.transition, tokens, task.order)
    by_offset = attention_by_offset(
        attention(model, tokens, patterns=[0], last_only=False).patterns[0]
    )
    own = by_offset.double().mean(1)[:, task.order :, 1 : task.order + 1]
    queries = tokens[:, task.order :].cpu()
    gains = torch.full((task.vocab_size,), math.nan, dtype=torch.float64)
    for token in range(task.vocab_size):
        x, y = (values[queries == token] for values in (gamma, own))
        x, y = x - x.mean(0), y - y.mean(0)
        if (total := x.square().sum()) > 0:
            gains[token] = (x * y).sum() / total
    return gains


def gauge_fixed(
    scores: Float64[Tensor, "query key"],
    marginal: Float64[Tensor, " vocab"],
    sign: int | Float64[Tensor, " query"] = 1,
) -> Float64[Tensor, "vocab vocab"]:
    """The transition matrix that layer 1's token scores stand for.

    Attention ignores any constant of a query token b, so exp(scoresᵀ) is π up to a factor for every
    column b. The process fixes it: its token marginal p is stationary, Σ_a p_a·π[a, b] = p_b.
    `sign` is -1 for a mirrored model, which attends to the least likely lag, or one number a query
    token.
    """
    logits = sign * scores.T  # a column a query token
    likely = (logits - logits.max(0).values).exp()
    columns = likely * marginal / (marginal[:, None] * likely).sum(0).clamp_min(1e-300)
    return columns / columns.sum(1, keepdim=True).clamp_min(1e-300)


def averaged_lags(
    first: Float[Tensor, "batch head1 query key"],
    second: Float[Tensor, "batch head2 some key"],
    order: int,
) -> Float64[Tensor, "batch lag"]:
    """Γ̃_g = Σ_i A²[last, i]·A¹[i, i-g], mean over heads: the construction's Γ where its attention
    is the model's."""
    weights = second[:, :, -1].double().mean(1)
    by_lag = attention_by_offset(first).double().mean(1)[..., 1 : order + 1]
    return torch.einsum("bi,big->bg", weights, by_lag)


def weight_beta(model: LensTransformer, order: int) -> Slope:
    """β from the weights of a three-layer disentangled model; not a number where there is no such
    block.

    The last layer's read of the averaged lag block times what layer 1 writes there, double-centred,
    against I - 11ᵀ/m.
    """
    block = "L2.L1.lag"
    layers = model.attention if isinstance(model, DisentangledTransformer) else []
    if (
        block not in model.stream
        or len(layers) != 3
        or model.config.length <= order
        or layers[-1].n_heads != 1
    ):
        return NOT_APPLICABLE
    with torch.no_grad():
        reads = layers[-1].R_A[0, :order, model.stream[block]].double()
        writes = layers[0].R_V[0, 1 : order + 1].double()
        product = centred(centred(reads @ writes.T).T).T
    ideal = torch.eye(order, dtype=torch.float64) - 1 / order
    return fit_slope(ideal, product)


def first_step_beta(
    model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"]
) -> float | None:
    """β by the attention of layer 3 (or the last, of fewer), which takes the first step; None where
    it shows none."""
    layer = min(2, len(model.blocks) - 1)
    logs = attention(model, tokens, log_at_last=[layer]).log_at_last[layer][:, : task.order]
    slope = fit_slope(
        varying(mean_responsibilities(task.transition, tokens, task.order)), varying(logs)
    )
    return slope.value if slope.r2 >= CLEAR_R2 and slope.value > 0 else None


def centred(values: Float[Tensor, "*batch lag"]) -> Float[Tensor, "*batch lag"]:
    """Minus the mean over the last axis: what a softmax does not see."""
    return values - values.mean(-1, keepdim=True)


def varying(values: Float[Tensor, "batch lag"]) -> Float[Tensor, "batch lag"]:
    """What varies with the sequence: minus the mean over lags, and minus each lag's mean over
    sequences.

    A constant of a lag's own says nothing about a sequence, and the last layer's static scores undo
    it: counted as unexplained variance it would hide a clear mechanism (R² 0.6 where this way it is
    0.97, with the same slope).
    """
    return centred(values - values.mean(0))


def fit_slope(x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"], least: float = 0.0) -> Slope:
    """Least squares of y on x, both centred already, whose first axis is sequences.

    Errors within a sequence belong together, so the standard error adds up each sequence's before
    it squares. R² counts the variance that a slope of `least` would make as unexplained: a slope
    far below it has none.
    """
    across, spread, square = (x * y).sum().item(), x.square().sum().item(), y.square().sum().item()
    if not (spread > 0 and square > 0):
        return Slope(0.0, float("nan"), 0.0)
    value = across / spread
    errors = (x * (y - value * x)).flatten(1).sum(1)
    return Slope(
        value,
        errors.square().sum().item() ** 0.5 / spread,
        across**2 / (spread * (square + least**2 * spread)),
    )
