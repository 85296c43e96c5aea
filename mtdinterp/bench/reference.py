"""The forward passes written the obvious way: gather R[i-j] into [query, key, d], then einsum.

Slow and memory-hungry on purpose: tests check the real models against these functions, and
benchmarks compare with them.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtdinterp.models import DisentangledTransformer, StandardTransformer


def gather_by_offset(
    table: Float[Tensor, "head length d"], length: int
) -> Float[Tensor, "head query key d"]:
    """table[i-j] for every query i and key j; future keys get row 0, and are masked later."""
    position = torch.arange(length)
    offset = position[:, None] - position[None, :]
    return table[:, offset.clamp_min(0)]


def causal(scores: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query key"]:
    """Softmax over keys j ≤ i."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1)


def disentangled_forward(
    model: DisentangledTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos vocab"]:
    """h ← concat(h, Σ_j A[i, j]·concat(h_j, R_V[i-j])) layer by layer, then h·W_U."""
    length = tokens.shape[1]
    h = torch.eye(model.config.vocab_size, dtype=model.W_U.dtype)[tokens]
    for attn in model.attention:
        key_table = gather_by_offset(attn.R_A, length)
        value_table = gather_by_offset(attn.R_V, length)
        content_scores = torch.einsum("bid,hde,bje->bhij", h, attn.W_A, h)
        position_scores = torch.einsum("bid,hijd->bhij", h, key_table)
        pattern = causal(content_scores + position_scores)
        content = torch.einsum("bhij,bjd->bihd", pattern, h)
        position = torch.einsum("bhij,hijr->bihr", pattern, value_table)
        written = torch.cat([content, position], dim=-1)
        h = torch.cat([h, written.flatten(2)], dim=-1)
    return h @ model.W_U


def standard_forward(
    model: StandardTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos vocab"]:
    """x ← x + Σ_h (Σ_j A[i, j]·(v_j + R_V[i-j]))·W_O layer by layer, then x·W_U."""
    length = tokens.shape[1]
    x = model.W_E[tokens]
    for attn in model.attention:
        key_table = gather_by_offset(attn.R_K, length)
        value_table = gather_by_offset(attn.R_V, length)
        q = torch.einsum("bpm,hmd->bphd", x, attn.W_Q)
        k = torch.einsum("bpm,hmd->bphd", x, attn.W_K)
        v = torch.einsum("bpm,hmd->bphd", x, attn.W_V)
        content_scores = torch.einsum("bihd,bjhd->bhij", q, k)
        position_scores = torch.einsum("bihd,hijd->bhij", q, key_table)
        pattern = causal((content_scores + position_scores) / attn.d_head**0.5)
        content = torch.einsum("bhij,bjhd->bihd", pattern, v)
        position = torch.einsum("bhij,hijd->bihd", pattern, value_table)
        x = x + torch.einsum("bihd,hdm->bim", content + position, attn.W_O)
    return x @ model.W_U
