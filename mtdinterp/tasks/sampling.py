"""Draw sequences of lag tasks in bulk.

NumPy with a loop over positions, never over sequences, or a compiled kernel; both give the same
tokens from the same seed.

A token is one draw from an alias table (Walker 1977): a uniform number picks a column k and keeps
it with probability `keep[k, a]`, otherwise takes `other[k, a]`. That is exact for any transition
matrix and costs the same for every vocabulary size.
"""

import numpy as np
from jaxtyping import Float64, Int64

from mtdinterp.native import kernels, use_kernels

CHUNK = 1024
"""Sequences drawn together: enough to amortise Python's overhead, few enough for the cache."""


def alias_tables(
    transition: Float64[np.ndarray, "vocab vocab"],
) -> tuple[Float64[np.ndarray, "vocab vocab"], Int64[np.ndarray, "vocab vocab"]]:
    """`keep[column, source]` and `other[column, source]`, one alias table per source token."""
    vocab_size = len(transition)
    keep = np.ones((vocab_size, vocab_size))
    other = np.tile(np.arange(vocab_size)[:, None], (1, vocab_size))
    for source, row in enumerate(transition):
        mass = row * vocab_size
        under = [k for k in range(vocab_size) if mass[k] < 1]
        over = [k for k in range(vocab_size) if mass[k] >= 1]
        while under and over:
            small = under.pop()
            large = over.pop()
            keep[small, source] = mass[small]
            other[small, source] = large
            mass[large] -= 1 - mass[small]
            (under if mass[large] < 1 else over).append(large)
        # The remaining columns are full up to rounding, and are always kept.
    return keep, other


def draw_sequences(
    matrices: Float64[np.ndarray, "matrix vocab vocab"],
    weights: Float64[np.ndarray, "batch lag"],
    length: int,
    rng: np.random.Generator,
) -> tuple[Int64[np.ndarray, "batch pos"], Int64[np.ndarray, "batch pos"]]:
    """Draw tokens and the lags that produced them.

    Random numbers are drawn in the same order whichever implementation turns them into tokens.

    Args:
        matrices: one transition matrix that all lags share, or one per lag.
        weights: mixture weights of every sequence.
        length: tokens per sequence; the first `order` ones are uniform.
        rng: random number generator.

    Returns:
        Tokens, and the lag of each token (0 for the first ones).
    """
    batch_size, order = weights.shape
    vocab_size = matrices.shape[-1]
    steps = length - order
    # One allocation for both: the larger it is, the fewer pages the system hands out for it.
    tokens, lags = np.empty((2, batch_size, length), np.int64)
    tables = [alias_tables(matrix) for matrix in matrices]
    keep = np.concatenate([table.ravel() for table, _ in tables])
    other = np.concatenate([table.ravel() for _, table in tables])
    # The kernel supports only one matrix.
    compiled = len(matrices) == 1 and use_kernels()
    draw = kernels.draw_tokens if compiled else draw_tokens
    for start in range(0, batch_size, CHUNK):
        rows = slice(start, start + CHUNK)
        size = len(weights[rows])
        boundaries = np.ascontiguousarray(np.cumsum(weights[rows], axis=1).T[:-1])
        first_tokens = rng.integers(vocab_size, size=(order, size))
        lag_uniform = rng.random((steps, size))
        token_uniform = rng.random((steps, size))
        draw(
            keep,
            other,
            vocab_size,
            boundaries,
            lag_uniform,
            token_uniform,
            first_tokens,
            tokens[rows],
            lags[rows],
        )
    return tokens, lags


def draw_tokens(
    keep: Float64[np.ndarray, " cells"],
    other: Int64[np.ndarray, " cells"],
    vocab_size: int,
    boundaries: Float64[np.ndarray, "inner_lag batch"],
    lag_uniform: Float64[np.ndarray, "step batch"],
    token_uniform: Float64[np.ndarray, "step batch"],
    first_tokens: Int64[np.ndarray, "lag batch"],
    tokens: Int64[np.ndarray, "batch pos"],
    lags: Int64[np.ndarray, "batch pos"],
) -> None:
    """Fill `tokens` and `lags` of one chunk from uniform numbers.

    Positions come first in memory here, so that a step is one contiguous row.

    Args:
        keep: alias tables [matrix, column, source], flattened.
        other: the alternative columns in the same layout.
        vocab_size: number of distinct tokens.
        boundaries: cumulative weights of all lags but the last.
        lag_uniform: decides each step's lag.
        token_uniform: decides each step's token.
        first_tokens: the tokens of the warm-up.
        tokens: filled with the sequences.
        lags: filled with the lag of every token.
    """
    steps, batch_size = lag_uniform.shape
    order, length = len(first_tokens), tokens.shape[1]
    drawn = np.empty((length, batch_size), np.int64)
    drawn[:order] = first_tokens

    lag = np.ones((steps, batch_size), np.int8 if order < 128 else np.int64)
    for boundary in boundaries:
        lag += (lag_uniform >= boundary).view(np.int8)
    source = np.arange(order * batch_size, length * batch_size).reshape(steps, batch_size)
    source -= np.multiply(lag, batch_size, dtype=np.int64)

    remainder = token_uniform * vocab_size
    column = remainder.astype(np.int64)
    remainder -= column
    first_cell = column * vocab_size
    if len(keep) > vocab_size**2:  # one table per lag
        first_cell += (lag.astype(np.int64) - 1) * vocab_size**2

    flat = drawn.reshape(-1)
    for step in range(steps):
        cell = flat.take(source[step])
        cell += first_cell[step]
        kept = remainder[step] < keep.take(cell)
        drawn[order + step] = np.where(kept, column[step], other.take(cell))
    tokens[:] = drawn.T
    lags[:, :order] = 0
    lags[:, order:] = lag.T
