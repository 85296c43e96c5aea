"""Relative attention as pure functions: no parameters, no hooks.

score[i, j] = q_i·k_j + p_i·key_table[i-j], softmax over j ≤ i, and two outputs: Σ_j A[i, j]·v_j and
Σ_j A[i, j]·value_table[i-j]. Arguments and outputs have axes [batch, pos, head, d], patterns
[batch, head, query, key]. If there are fewer queries than keys, they are the last positions.

No tensor of shape [query, key, d] is ever built. The products p_i·key_table[o] form a matrix
[query, offset]. With its columns reversed and one column of padding in front, that matrix already
holds score[i, j] at a constant stride, so that going from offsets to keys (or back, for the values)
is only a change of shape. With Q queries and K keys,

    row i of [query, K+1] is:  pad, o = K-1, …, o = 1, o = 0,
    and key j of query i has offset o = i - j.

Reading the same memory in rows of K, starting at element Q, puts offset i - j into column j. The
entries above the diagonal come from other rows and are masked.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from mtdinterp.native import use_kernels
from mtdinterp.native.attention import fused_relative_attention
from mtdinterp.native.operands import can_fuse


def relative_attention(
    q: Float[Tensor, "batch query head d_key"],
    p: Float[Tensor, "batch query head d_pos"],
    k: Float[Tensor, "batch key head d_key"],
    v: Float[Tensor, "batch key head d_value"],
    key_table: Float[Tensor, "head length d_pos"],
    value_table: Float[Tensor, "head length d_rel"],
) -> tuple[Float[Tensor, "batch query head d_value"], Float[Tensor, "batch query head d_rel"]]:
    """What each query gathers from the values and from the value table.

    Runs the compiled operator if it applies (float32 on the CPU, kernels available) and
    `eager_relative_attention` otherwise.

    Args:
        q: queries of the content score, [batch, query, head, d_key].
        p: queries of the position score, [batch, query, head, d_pos].
        k: keys, [batch, key, head, d_key].
        v: values, [batch, key, head, d_value].
        key_table: vectors that `p` is multiplied with, by offset, [head, length, d_pos].
        value_table: values gathered by offset, [head, length, d_rel].

    Returns:
        Σ_j A[i, j]·v_j, [batch, query, head, d_value], and Σ_j A[i, j]·value_table[i-j],
        [batch, query, head, d_rel].
    """
    if can_fuse(q, p, k, v, key_table, value_table) and use_kernels():
        return fused_relative_attention(q, p, k, v, key_table, value_table)
    return eager_relative_attention(q, p, k, v, key_table, value_table)


def eager_relative_attention(
    q: Float[Tensor, "batch query head d_key"],
    p: Float[Tensor, "batch query head d_pos"],
    k: Float[Tensor, "batch key head d_key"],
    v: Float[Tensor, "batch key head d_value"],
    key_table: Float[Tensor, "head length d_pos"],
    value_table: Float[Tensor, "head length d_rel"],
) -> tuple[Float[Tensor, "batch query head d_value"], Float[Tensor, "batch query head d_rel"]]:
    """`relative_attention` in plain PyTorch, for any device and dtype.

    Args:
        q: queries of the content score, [batch, query, head, d_key].
        p: queries of the position score, [batch, query, head, d_pos].
        k: keys, [batch, key, head, d_key].
        v: values, [batch, key, head, d_value].
        key_table: vectors that `p` is multiplied with, by offset, [head, length, d_pos].
        value_table: values gathered by offset, [head, length, d_rel].

    Returns:
        Σ_j A[i, j]·v_j, [batch, query, head, d_value], and Σ_j A[i, j]·value_table[i-j],
        [batch, query, head, d_rel].
    """
    scores = content_scores(q, k, position_scores(p, key_table, k.shape[1]))
    future = future_mask(q.shape[1], k.shape[1], scores.device)
    # The same as `causal_softmax`, but in place, which saves a copy: nothing else uses these
    # scores. Autograd need not know, because the softmax gives masked scores no gradient.
    with torch.no_grad():
        scores.masked_fill_(future, float("-inf"))
    pattern = scores.softmax(-1)
    return gather_values(pattern, v), gather_positions(pattern, value_table)


def position_scores(
    p: Float[Tensor, "batch query head d_pos"],
    key_table: Float[Tensor, "head length d_pos"],
    n_keys: int,
) -> Float[Tensor, "batch head query key"]:
    """p_i·key_table[i-j] for j ≤ i; entries above the diagonal are meaningless.

    Args:
        p: queries of the position score, [batch, query, head, d_pos].
        key_table: rows by offset, [head, length, d_pos].
        n_keys: number of keys; the queries are the last of their positions.

    Returns:
        Scores [batch, head, query, key].
    """
    rows = _reversed_rows(key_table, n_keys)
    # A contiguous `p` gives the same bits whatever view of the stream it is; a contiguous result
    # can be re-read in rows of another length.
    by_offset = torch.einsum("bqhd,hod->bhqo", p.contiguous(), rows).contiguous()
    batch, heads, n_queries, _ = by_offset.shape
    # `split`, not a slice: its backward is one concatenation instead of a fill and a copy.
    _, by_key = by_offset.flatten(2).split([n_queries, n_queries * n_keys], dim=-1)
    return by_key.view(batch, heads, n_queries, n_keys)


def content_scores(
    q: Float[Tensor, "batch query head d_key"],
    k: Float[Tensor, "batch key head d_key"],
    position: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """q_i·k_j plus the position scores, in one pass over them.

    Args:
        q: queries, [batch, query, head, d_key].
        k: keys, [batch, key, head, d_key].
        position: position scores, [batch, head, query, key].

    Returns:
        Scores [batch, head, query, key].
    """
    batch, n_queries, heads, _ = q.shape
    queries = rearrange(q, "batch query head d -> (batch head) query d")
    keys = rearrange(k, "batch key head d -> (batch head) d key")
    scores = torch.baddbmm(position.reshape(batch * heads, n_queries, k.shape[1]), queries, keys)
    return scores.view(position.shape)


def causal_softmax(
    scores: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """Softmax over the keys that are not in the future of the query."""
    n_queries, n_keys = scores.shape[-2:]
    future = future_mask(n_queries, n_keys, scores.device)
    return scores.masked_fill(future, float("-inf")).softmax(-1)


def gather_values(
    pattern: Float[Tensor, "batch head query key"], v: Float[Tensor, "batch key head d_value"]
) -> Float[Tensor, "batch query head d_value"]:
    """Σ_j A[i, j]·v_j.

    Computed feature by feature: values have few columns, and a matrix product with a narrow
    result is several times slower than its transpose.
    """
    gathered = torch.einsum("bkhd,bhqk->bhdq", v, pattern)
    return rearrange(gathered, "batch head d query -> batch query head d")


def gather_positions(
    pattern: Float[Tensor, "batch head query key"], value_table: Float[Tensor, "head length d_rel"]
) -> Float[Tensor, "batch query head d_rel"]:
    """Σ_j A[i, j]·value_table[i-j]; the pattern must be zero above its diagonal."""
    rows = _reversed_rows(value_table, pattern.shape[-1])
    gathered = torch.einsum("hod,bhqo->bhdq", rows, _offsets_from_keys(pattern))
    return rearrange(gathered, "batch head d query -> batch query head d")


def attention_by_offset(
    pattern: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """The pattern with column o holding the attention at offset o = i - j, zero without a key."""
    visible = pattern.masked_fill(future_mask(*pattern.shape[-2:], pattern.device), 0)
    return _offsets_from_keys(visible)[..., 1:].flip(-1)


def _offsets_from_keys(
    pattern: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query keys_and_pad"]:
    """The inverse of the change of shape in `position_scores`: padding, then offsets K-1 to 0."""
    batch, heads, n_queries, n_keys = pattern.shape
    padding = pattern.new_zeros(batch, heads, n_queries)
    flat = torch.cat([padding, pattern.flatten(2)], dim=-1)
    return flat.view(batch, heads, n_queries, n_keys + 1)


def _reversed_rows(
    table: Float[Tensor, "head length d"], n_keys: int
) -> Float[Tensor, "head keys_and_pad d"]:
    """A zero row, then offsets n_keys-1 down to 0."""
    return F.pad(table[:, :n_keys].flip(1), (0, 0, 1, 0))


@lru_cache(maxsize=32)
def future_mask(n_queries: int, n_keys: int, device: torch.device) -> Bool[Tensor, "query key"]:
    """Which keys lie after the query.

    Args:
        n_queries: number of queries; they are the last positions.
        n_keys: number of keys.
        device: where to put the mask.

    Returns:
        Booleans [query, key].
    """
    ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return ones.triu(1 + n_keys - n_queries)
