"""Draw MTD sequences in bulk: NumPy, with a loop over positions and never over sequences, or a
compiled kernel.

Both give the same tokens from the same seed, to the last one.

A token is one alias-table draw (Walker 1977): a uniform picks a column k and keeps it with
probability `keep[k, a]`, otherwise takes `other[k, a]`. That is exact for any transition matrix and
costs the same for every alphabet size.
"""

import numpy as np
from jaxtyping import Float64, Int64

from mtdinterp.native import kernels, use_kernels

CHUNK = 1024
"""Sequences drawn together: enough to drown Python's overhead, few enough to stay in the cache."""


def alias_tables(
    transition: Float64[np.ndarray, "vocab vocab"],
) -> tuple[Float64[np.ndarray, "vocab vocab"], Int64[np.ndarray, "vocab vocab"]]:
    """`keep[column, source]` and `other[column, source]` of the alias method, one table a source
    token."""
    vocab_size = len(transition)
    keep = np.ones((vocab_size, vocab_size))
    other = np.tile(np.arange(vocab_size)[:, None], (1, vocab_size))
    for source, row in enumerate(transition):
        mass = row * vocab_size
        under = [k for k in range(vocab_size) if mass[k] < 1]
        over = [k for k in range(vocab_size) if mass[k] >= 1]
        while under and over:
            small, large = under.pop(), over.pop()
            keep[small, source], other[small, source] = mass[small], large
            mass[large] -= 1 - mass[small]
            (under if mass[large] < 1 else over).append(large)
        # Columns still in a list are full up to rounding, and keep themselves.
    return keep, other


def draw_sequences(
    transition: Float64[np.ndarray, "vocab vocab"],
    weights: Float64[np.ndarray, "batch lag"],
    length: int,
    rng: np.random.Generator,
) -> tuple[Int64[np.ndarray, "batch pos"], Int64[np.ndarray, "batch pos"]]:
    """Tokens and the lags that produced them (0 for the first `order` positions, which are
    uniform).

    Random numbers are drawn in the same order whichever implementation turns them into tokens.
    """
    batch_size, order = weights.shape
    vocab_size, steps = len(transition), length - order
    # One piece of memory for both: the larger it is, the fewer pages the system hands out for it.
    tokens, lags = np.empty((2, batch_size, length), np.int64)
    keep, other = (table.ravel() for table in alias_tables(transition))
    draw = kernels.draw_tokens if use_kernels() else draw_tokens
    for start in range(0, batch_size, CHUNK):
        rows = slice(start, start + CHUNK)
        size = len(weights[rows])
        boundaries = np.ascontiguousarray(np.cumsum(weights[rows], axis=1).T[:-1])
        first_tokens = rng.integers(vocab_size, size=(order, size))
        lag_uniform, token_uniform = rng.random((steps, size)), rng.random((steps, size))
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
    """Fill `tokens` and `lags` of one chunk from its uniforms; position first inside, so that a
    step is one row."""
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

    flat = drawn.reshape(-1)
    for step in range(steps):
        cell = flat.take(source[step])
        cell += first_cell[step]
        drawn[order + step] = np.where(
            remainder[step] < keep.take(cell), column[step], other.take(cell)
        )
    tokens[:] = drawn.T
    lags[:, :order], lags[:, order:] = 0, lag.T
