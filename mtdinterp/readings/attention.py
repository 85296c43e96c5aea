"""A model's attention: whole patterns, and the last query's logarithms by offset, per head."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from mtdinterp.models.lens import LensTransformer


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention that was asked for, by layer (0 is the first)."""

    # Layers may differ in their heads and queries, which the underscores allow.
    patterns: dict[int, Float[Tensor, "batch _head _query key"]]
    log_at_last: dict[int, Float64[Tensor, "batch _head offset"]]
    """Logarithm of the last query's attention by offset. Offset g-1 is lag g of the next token."""


def attention_of(
    model: LensTransformer,
    tokens: Int[Tensor, "batch pos"],
    patterns: Iterable[int] = (),
    log_at_last: Iterable[int] = (),
    last_only: bool = True,
) -> Attention:
    """Attention of some layers from one run of the model.

    Log-attention is computed from the scores, because attention itself can underflow to zero.

    Args:
        model: any hooked model.
        tokens: the sequences.
        patterns: layers whose whole patterns are wanted.
        log_at_last: layers whose log-attention at the last query is wanted.
        last_only: compute only the last query of the last layer.

    Returns:
        The requested patterns and log-attention, by layer.
    """
    wanted = {layer: f"blocks.{layer}.attn.hook_pattern" for layer in patterns}
    scored = {layer: f"blocks.{layer}.attn.hook_attn_scores" for layer in log_at_last}
    names = [*wanted.values(), *scored.values()]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, last_only=last_only, names_filter=names)
    logs = {}
    for layer, name in scored.items():
        scores = cache[name][:, :, -1].cpu().double()
        logs[layer] = scores.log_softmax(-1).flip(-1)
    whole = {layer: cache[name].cpu() for layer, name in wanted.items()}
    return Attention(whole, logs)


def mean_over_heads(
    log_attention: Float64[Tensor, "batch head offset"],
) -> Float64[Tensor, "batch offset"]:
    """Logarithm of the mean attention over heads."""
    return log_attention.logsumexp(1) - math.log(log_attention.shape[1])
