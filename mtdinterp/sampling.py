"""Draw MTD sequences in bulk with NumPy: the loop runs over positions, never over sequences.

A token is one alias-table draw (Walker 1977): a uniform picks a column k and keeps it with probability
`keep[k, a]`, otherwise takes `other[k, a]`. That is exact for any transition matrix and costs the same
for every alphabet size.
"""

import numpy as np
from jaxtyping import Float64, Int64

CHUNK = 1024
"""Sequences drawn together: enough to drown Python's overhead, few enough to stay in the cache."""


def alias_tables(
    transition: Float64[np.ndarray, "vocab vocab"],
) -> tuple[Float64[np.ndarray, "vocab vocab"], Int64[np.ndarray, "vocab vocab"]]:
    """`keep[column, source]` and `other[column, source]` of the alias method, one table a source token."""
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
    """Tokens and the lags that produced them (0 for the first `order` positions, which are uniform)."""
    batch_size, order = weights.shape
    tokens = np.empty((batch_size, length), np.int64)
    lags = np.zeros((batch_size, length), np.int64)
    keep, other = (table.ravel() for table in alias_tables(transition))
    for start in range(0, batch_size, CHUNK):
        rows = slice(start, start + CHUNK)
        drawn, lag = _draw_chunk(keep, other, len(transition), weights[rows], length, rng)
        tokens[rows] = drawn.T
        lags[rows, order:] = lag.T
    return tokens, lags


def _draw_chunk(
    keep: Float64[np.ndarray, " cells"],
    other: Int64[np.ndarray, " cells"],
    vocab_size: int,
    weights: Float64[np.ndarray, "batch lag"],
    length: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [pos, batch] and lags [pos - order, batch]: position first, so that a step is one row."""
    batch_size, order = weights.shape
    steps = length - order
    tokens = np.empty((length, batch_size), np.int64)
    tokens[:order] = rng.integers(vocab_size, size=(order, batch_size))

    uniform = rng.random((steps, batch_size))
    lag = np.ones((steps, batch_size), np.int8 if order < 128 else np.int64)
    for boundary in np.cumsum(weights, axis=1).T[:-1]:
        lag += (uniform >= boundary).view(np.int8)
    source = np.arange(order * batch_size, length * batch_size).reshape(steps, batch_size)
    source -= np.multiply(lag, batch_size, dtype=np.int64)

    rng.random(out=uniform)
    uniform *= vocab_size
    column = uniform.astype(np.int64)
    uniform -= column
    first_cell = column * vocab_size

    drawn = tokens.reshape(-1)
    for step in range(steps):
        cell = drawn.take(source[step])
        cell += first_cell[step]
        tokens[order + step] = np.where(uniform[step] < keep.take(cell), column[step], other.take(cell))
    return tokens, lag
