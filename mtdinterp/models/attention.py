"""Relative attention as pure functions: no parameters, no hooks.

score[i, j] = q_i·k_j + p_i·key_table[i-j], softmax over j ≤ i, and two outputs: Σ_j A[i, j]·v_j and
Σ_j A[i, j]·value_table[i-j]. Axes are [batch, pos, head, d] outside and [batch, head, query, key]
inside. Queries may be fewer than keys; they are then the last ones.

Nothing of shape [query, key, d] is ever built. The products p_i·key_table[o] form a matrix [query,
offset]; laid out with its columns reversed and one column of padding, it already holds score[i, j]
at a constant stride, so that going from offsets to keys (or back, for the values) is a change of
shape:

    row i of [query, K+1]:  pad, o=K-1, …, o=1, o=0     and     key j of query i has offset o = i -
    j.

Reading the same memory from element Q on in rows of K puts offset i - j into column j; what lands
above the diagonal belongs to other rows and is masked.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from mtdinterp.native import use_kernels
from mtdinterp.native.attention import can_fuse, fused_relative_attention


def relative_attention(
    q: Float[Tensor, "batch query head d_key"],
    p: Float[Tensor, "batch query head d_pos"],
    k: Float[Tensor, "batch key head d_key"],
    v: Float[Tensor, "batch key head d_value"],
    key_table: Float[Tensor, "head length d_pos"],
    value_table: Float[Tensor, "head length d_rel"],
) -> tuple[Float[Tensor, "batch query head d_value"], Float[Tensor, "batch query head d_rel"]]:
    """What each query gathers from the values and from the value table.

    The fused kernel where it applies (float32 on the CPU, compiled kernels at hand), the eager one
    otherwise.
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
    """The readable implementation, for any device and dtype: the one that hooks see."""
    scores = content_scores(q, k, position_scores(p, key_table, k.shape[1]))
    # `causal_softmax`, but these scores are nobody else's: masking them in place saves a copy, and
    # there is nothing to differentiate, since the softmax gives a masked score no gradient.
    with torch.no_grad():
        scores.masked_fill_(future_mask(*scores.shape[-2:], scores.device), float("-inf"))
    pattern = scores.softmax(-1)
    return gather_values(pattern, v), gather_positions(pattern, value_table)


def position_scores(
    p: Float[Tensor, "batch query head d_pos"],
    key_table: Float[Tensor, "head length d_pos"],
    n_keys: int,
) -> Float[Tensor, "batch head query key"]:
    """p_i·key_table[i-j] for j ≤ i; what stands above the diagonal means nothing."""
    rows = _reversed_rows(key_table, n_keys)
    # Contiguous in and out: the same bits whatever view of the stream `p` is, and a matrix to
    # re-read.
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
    """q_i·k_j added to the position scores, in one pass over them."""
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
    return scores.masked_fill(future_mask(n_queries, n_keys, scores.device), float("-inf")).softmax(
        -1
    )


def gather_values(
    pattern: Float[Tensor, "batch head query key"], v: Float[Tensor, "batch key head d_value"]
) -> Float[Tensor, "batch query head d_value"]:
    """Σ_j A[i, j]·v_j.

    Computed feature by feature: values are few columns wide, and a matrix product with a narrow
    result is several times slower than its transpose.
    """
    return rearrange(
        torch.einsum("bkhd,bhqk->bhdq", v, pattern), "batch head d query -> batch query head d"
    )


def gather_positions(
    pattern: Float[Tensor, "batch head query key"], value_table: Float[Tensor, "head length d_rel"]
) -> Float[Tensor, "batch query head d_rel"]:
    """Σ_j A[i, j]·value_table[i-j]: the pattern, zero above its diagonal, read back by offset."""
    rows = _reversed_rows(value_table, pattern.shape[-1])
    gathered = torch.einsum("hod,bhqo->bhdq", rows, _offsets_from_keys(pattern))
    return rearrange(gathered, "batch head d query -> batch query head d")


def attention_by_offset(
    pattern: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query key"]:
    """The pattern with column o holding the attention at offset o = i - j; zero where there is no
    such key."""
    visible = pattern.masked_fill(future_mask(*pattern.shape[-2:], pattern.device), 0)
    return _offsets_from_keys(visible)[..., 1:].flip(-1)


def _offsets_from_keys(
    pattern: Float[Tensor, "batch head query key"],
) -> Float[Tensor, "batch head query keys_and_pad"]:
    """The change of shape of `position_scores`, undone: columns are padding, then offsets K-1 down
    to 0."""
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
    """True where a key lies after the query; the queries are the last `n_queries` positions."""
    ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return ones.triu(1 + n_keys - n_queries)
