"""What reaches the last layer from each position, by way of the layers in between.

Layer 1's attention on the lags of position i is its lag mass M_i times a distribution over lags.
A layer that averages gives position i the weight A[last, i]. The last layer reads the averaged
lags Σ_i A[last, i]·A¹[i, i-g], so position i counts with the product A[last, i]·M_i, its
*effective attention*. Neither factor alone says how much a position counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mtdinterp.criteria import LEAST_GAIN
from mtdinterp.evidence import Evidence
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.readings.attention import Attention
from mtdinterp.readings.mechanism import averaged_lags, head_betas, head_paths, strongest
from mtdinterp.readings.regression import fit_slope, varying
from mtdinterp.tasks.base import Task

SETTLED = 1e-10
"""Token weights are found when no step changes them by more than this share."""
MOST_STEPS = 1000
"""Steps after which the search for token weights stops."""
TINY = 1e-300
"""Stands for zero in a denominator."""

Patterns = Mapping[int, Float[Tensor, "batch _head query key"]]
"""Attention by layer, where 0 is the first."""


@dataclass(frozen=True)
class Carriers:
    """The head of every layer that carries the lags."""

    heads: tuple[int, ...]
    """One head per layer, from 0."""
    branch: str
    """"direct", "mirrored" or "undecided", by the heads of layers 1 and 2."""


def carrying_heads(
    watched: Attention, task: Task, evidence: Evidence, offsets: list[int]
) -> Carriers:
    """The head of every layer that carries the lags, from 0.

    In layers 1 and 2 it is the pair whose averaged lags follow Γ best, in other layers before the
    last the head that averages layer 1's lags best, and in the last layer the head whose
    log-attention follows Γ best.

    Args:
        watched: attention of all layers but the last, and the last layer's log-attention.
        task: the task that the sequences come from.
        evidence: the evidence of the same sequences.
        offsets: where the last query reads each component.

    Returns:
        One head per layer, and the branch.
    """
    first, second = watched.patterns[0], watched.patterns[1]
    paths = head_paths(first, second, task, evidence)
    gain = strongest([path.gain for path in paths])
    best = next(path for path in paths if path.gain is gain)
    heads = [best.first - 1, best.second - 1]
    average = varying(evidence.mean_responsibilities)
    carrier = first[:, heads[0], None]
    for layer in range(2, len(watched.patterns)):
        averaged = averaged_lags(carrier, watched.patterns[layer], offsets)[:, 0]
        gains = []
        for head in range(averaged.shape[1]):
            gains.append(fit_slope(average, varying(averaged[:, head]), least=LEAST_GAIN))
        heads.append(gains.index(strongest(gains)))
    last = len(watched.patterns)
    betas = head_betas(watched.log_at_last[last], task, evidence)
    heads.append(betas.index(strongest(betas)))
    return Carriers(tuple(heads), best.branch)


def lag_mass(
    pattern: Float[Tensor, "batch query key"], offsets: list[int]
) -> Float64[Tensor, "batch pos"]:
    """Layer 1's attention on the lags of every position.

    Args:
        pattern: attention of one head of layer 1.
        offsets: where the last query reads each component; the source of an observed token stands
            one position farther back.

    Returns:
        M_i.
    """
    sources = [offset + 1 for offset in offsets]
    by_offset = attention_by_offset(pattern[:, None])[:, 0]
    return by_offset[:, :, sources].double().sum(-1)


def weights_along(
    patterns: Patterns, heads: tuple[int, ...], layers: tuple[int, ...]
) -> Float64[Tensor, "batch pos"]:
    """With what weight each position reaches the last query through layers that average.

    Args:
        patterns: attention of these layers.
        heads: the head of every layer, from 0.
        layers: the layers that average, from 1, the first of them first.

    Returns:
        A^{l_k}[last, ·]·A^{l_{k-1}}·…·A^{l_1} for the layers l_1, …, l_k; for a single layer the
        attention of the last query.
    """
    *inner, last = layers
    weights = patterns[last - 1][:, heads[last - 1], -1].double()
    for layer in reversed(inner):
        pattern = patterns[layer - 1][:, heads[layer - 1]].double()
        weights = torch.einsum("bq,bqk->bk", weights, pattern)
    return weights


def token_weights(
    totals: Float64[Tensor, "batch vocab"],
    counts: Float64[Tensor, "batch vocab"],
    repeats: Float64[Tensor, "sample batch"],
) -> Float64[Tensor, "sample vocab"]:
    """Weights ω for which the attention of a position is f·ω[its token], with f per sequence.

    A sequence with many tokens of large weight has less attention left for each of them, so a
    plain mean by token would depend on what else the sequences contain. The weights solve

        f_s = Σ_b totals[s, b] / Σ_b counts[s, b]·ω_b,
        ω_b = Σ_s totals[s, b] / Σ_s counts[s, b]·f_s,

    the maximum of the Poisson likelihood. They are exact if attention has this form.

    Args:
        totals: summed attention on each token, for every sequence.
        counts: how often the token occurs in the sequence.
        repeats: how often each sequence counts; one row per sample, such as of a bootstrap.

    Returns:
        ω with a mean of 1 over all occurrences; NaN for a token that does not occur.
    """
    seen = repeats @ counts
    by_token = repeats @ totals
    whole = totals.sum(-1)
    weights = torch.ones_like(by_token)
    for _ in range(MOST_STEPS):
        expected = (weights @ counts.T).clamp_min(TINY)
        scale = repeats * whole / expected
        found = by_token / (scale @ counts).clamp_min(TINY)
        found = found * seen.sum(-1, keepdim=True) / (found * seen).sum(-1, keepdim=True)
        change = (found - weights).abs().max()
        weights = found
        if change <= SETTLED * found.max():
            break
    return weights.masked_fill(seen == 0, float("nan"))
