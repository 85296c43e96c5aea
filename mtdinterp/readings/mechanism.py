"""What layers 1, 2 and the last do with the likelihood: gains, branches, β, and π in layer 1.

Layer 1 may weigh lags by how likely they are (gain > 0, "direct") or by how unlikely
(gain < 0, "mirrored"). Attention ignores any constant per query token, so its scores show π only
up to one factor per column; the stationary marginal fixes that gauge.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from mtdinterp.criteria import CLEAR_R2, LEAST_GAIN
from mtdinterp.evidence import Evidence
from mtdinterp.metrics import row_kl
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.models.lens import LensTransformer
from mtdinterp.readings.attention import attention_of
from mtdinterp.readings.regression import NO_SLOPE, Slope, fit_slope, varying
from mtdinterp.tasks.base import HasTransition, Task


@dataclass(frozen=True)
class HeadPath:
    """A head of layer 1 and a head of layer 2 that averages what it writes."""

    first: int
    """The head of layer 1, from 1."""
    second: int
    """The head of layer 2, from 1."""
    gain: Slope
    """Slope of Γ̃, what the two average, on Γ: 1 in the construction, negative if mirrored."""

    @property
    def branch(self) -> str:
        """direct, mirrored or undecided."""
        return branch_of(self.gain)


@dataclass(frozen=True)
class Reading:
    """Readings shown during training; with several heads, those of the carrying heads."""

    beta: Slope
    """Slope of the last layer's log-attention over the lags on Γ."""
    gain: Slope
    """Slope of Γ̃, what layers 1 and 2 average, on Γ: 1 in the construction, < 0 if mirrored."""
    transition_kl: float
    """Mean row KL of π to the gauge-fixed π of layer 1 (of its best head); NaN without one π."""

    @property
    def branch(self) -> str:
        """direct, mirrored, or undecided if the gain explains less than half of the variance."""
        return branch_of(self.gain)


def branch_of(gain: Slope) -> str:
    """direct, mirrored or undecided, by a gain's R² and sign."""
    if not gain.r2 >= CLEAR_R2:
        return "undecided"
    return "direct" if gain.value > 0 else "mirrored"


def read(model: LensTransformer, task: Task, tokens: Int[Tensor, "batch pos"]) -> Reading:
    """β by the last layer's attention, the gain of the first two, and π by the first.

    Args:
        model: any hooked model.
        task: the task that the sequences come from.
        tokens: the sequences.

    Returns:
        The readings; NaN if a level does not apply.
    """
    evidence = task.evidence(tokens)
    last = len(model.blocks) - 1
    watched = attention_of(model, tokens, range(2) if last else (), [last])
    beta = strongest(head_betas(watched.log_at_last[last], task, evidence))
    gain = NO_SLOPE
    if last:
        paths = head_paths(watched.patterns[0], watched.patterns[1], task, evidence)
        gain = strongest([path.gain for path in paths])
    return Reading(beta, gain, _transition_kl(model, task, gain))


def head_betas(
    log_attention: Float64[Tensor, "batch head offset"], task: Task, evidence: Evidence
) -> list[Slope]:
    """For every head, the slope of its log-attention over the lags on Γ at the last query.

    Args:
        log_attention: log-attention of one layer at the last query, by offset.
        task: the task that the sequences come from.
        evidence: the evidence of the same sequences.

    Returns:
        One slope per head; NaN if some component is read at no offset.
    """
    offsets = lag_offsets(task)
    n_heads = log_attention.shape[1]
    if offsets is None:
        return [NO_SLOPE] * n_heads
    average = varying(evidence.mean_responsibilities)
    return [fit_slope(average, varying(log_attention[:, head, offsets])) for head in range(n_heads)]


def head_paths(
    first: Float[Tensor, "batch head1 query key"],
    second: Float[Tensor, "batch head2 some key"],
    task: Task,
    evidence: Evidence,
) -> list[HeadPath]:
    """The gain of every pair of a layer-1 head and a layer-2 head.

    Args:
        first: attention of layer 1.
        second: attention of layer 2; only its last query counts.
        task: the task that the sequences come from.
        evidence: the evidence of the same sequences.

    Returns:
        One path per pair; NaN gains if some component is read at no offset.
    """
    offsets = lag_offsets(task)
    average = varying(evidence.mean_responsibilities)
    averaged = None if offsets is None else averaged_lags(first, second, offsets)
    paths = []
    for i in range(first.shape[1]):
        for j in range(second.shape[1]):
            gain = NO_SLOPE
            if averaged is not None:
                gain = fit_slope(average, varying(averaged[:, i, j]), least=LEAST_GAIN)
            paths.append(HeadPath(i + 1, j + 1, gain))
    return paths


def strongest(slopes: list[Slope]) -> Slope:
    """The slope with the largest R²: that of the head that carries most."""
    return max(slopes, key=lambda slope: -1.0 if math.isnan(slope.r2) else slope.r2)


def lag_offsets(task: Task) -> list[int] | None:
    """The offsets at which the last query reads the components; None if some have none."""
    offsets = [offset for offset in task.read_offsets if offset is not None]
    return offsets if len(offsets) == task.n_components else None


def _transition_kl(model: LensTransformer, task: Task, gain: Slope) -> float:
    if not isinstance(task, HasTransition):
        return math.nan
    sign = -1 if branch_of(gain) == "mirrored" else 1
    heads = [gauge_fixed(scores, task.stationary, sign) for scores in token_scores(model)]
    return min(row_kl(task.transition, estimate) for estimate in heads)


def token_scores(model: LensTransformer) -> Float64[Tensor, "head query key"]:
    """Layer 1's content score of every pair of tokens: W_A itself, or the QK circuit."""
    attn = model.layers[0].attn
    with torch.no_grad():
        embedded = model.W_E.cpu().double()
        queries = embedded @ attn.W_Q.cpu().double()
        keys = embedded @ attn.W_K.cpu().double()
        return attn.score_scale * queries @ keys.mT


def gauge_fixed(
    scores: Float64[Tensor, "query key"],
    marginal: Float64[Tensor, " vocab"],
    sign: int | Float64[Tensor, " query"] = 1,
) -> Float64[Tensor, "vocab vocab"]:
    """The transition matrix that layer 1's token scores encode.

    Attention ignores any constant per query token b, so exp(scoresᵀ) is π up to one factor per
    column b. The process fixes it: its token marginal p is stationary, Σ_a p_a·π[a, b] = p_b.

    Args:
        scores: the score of every query token with every key token.
        marginal: p.
        sign: -1 for a mirrored model, which attends to the least likely lag; or one per query
            token.

    Returns:
        A row-stochastic matrix.
    """
    logits = sign * scores.T  # one column per query token
    likely = (logits - logits.max(0).values).exp()
    columns = likely * marginal / (marginal[:, None] * likely).sum(0).clamp_min(1e-300)
    return columns / columns.sum(1, keepdim=True).clamp_min(1e-300)


def averaged_lags(
    first: Float[Tensor, "batch head1 query key"],
    second: Float[Tensor, "batch head2 some key"],
    offsets: list[int],
) -> Float64[Tensor, "batch head1 head2 component"]:
    """Γ̃_g = Σ_i A²[last, i]·A¹[i, i-g] for every pair of heads: what layers 1 and 2 average.

    Args:
        first: attention of layer 1.
        second: attention of layer 2; only its last query counts.
        offsets: where the last query reads each component; the source of an observed token stands
            one position farther back.

    Returns:
        Γ̃, which is Γ if the attention is the construction's.
    """
    weights = second[:, :, -1].double()
    sources = [offset + 1 for offset in offsets]
    by_lag = attention_by_offset(first).double()[..., sources]
    return torch.einsum("bki,bhig->bhkg", weights, by_lag)


def lag_attention(
    first: Float[Tensor, "batch head1 query key"], task: Task
) -> Float64[Tensor, " head1"]:
    """Layer 1's attention on the lags of each token: 1 in the construction.

    Args:
        first: attention of layer 1, at every query.
        task: the task that the sequences come from.

    Returns:
        For every head, the mean over sequences and over the positions that have all lags; NaN if
        some component is read at no offset.
    """
    offsets = lag_offsets(task)
    if offsets is None:
        return torch.full((first.shape[1],), math.nan, dtype=torch.float64)
    sources = [offset + 1 for offset in offsets]
    by_lag = attention_by_offset(first).double()[:, :, task.warm_up :, sources]
    return by_lag.sum(-1).mean((0, 2))


def token_gains(
    model: LensTransformer, task: Task, tokens: Int[Tensor, "batch pos"], evidence: Evidence
) -> Float64[Tensor, "head vocab"]:
    """For every head and query token, the slope of layer 1's attention over the lags on γ.

    1 in the construction, negative where lags are weighed by how unlikely they are; a model may
    differ from token to token. Each lag's mean is subtracted.

    Args:
        model: any hooked model.
        task: the task that the sequences come from.
        tokens: the sequences.
        evidence: the evidence of the same sequences.

    Returns:
        Gains; NaN for a token that does not occur, or with a single lag.
    """
    offsets = lag_offsets(task)
    pattern = attention_of(model, tokens, patterns=[0], last_only=False).patterns[0]
    n_heads = pattern.shape[1]
    gains = torch.full((n_heads, task.vocab_size), math.nan, dtype=torch.float64)
    if offsets is None:
        return gains
    sources = [offset + 1 for offset in offsets]
    by_lag = attention_by_offset(pattern).double()[:, :, task.warm_up :, sources]
    gamma = evidence.responsibilities()
    queries = tokens[:, task.warm_up :].cpu()
    for token in range(task.vocab_size):
        chosen = queries == token
        x = gamma[chosen]
        x = x - x.mean(0)
        total = x.square().sum()
        if not total > 0:
            continue
        for head in range(n_heads):
            y = by_lag[:, head][chosen]
            gains[head, token] = (x * (y - y.mean(0))).sum() / total
    return gains
