"""The C functions as Python calls on NumPy arrays; shapes are checked by the callers."""

import ctypes
import time

import numpy as np
from jaxtyping import Float64, Int64

from mtdinterp.native.build import required_library
from mtdinterp.native.threads import kernel_threads

VECTOR = 8
"""Floats per vector in the kernels."""
NODES = 8
"""Nodes that the posterior kernel takes at a time; their number must be a multiple of it."""


def _c_argument(value: np.ndarray | int) -> ctypes.c_void_p | ctypes.c_int64:
    """An array as a pointer, a number as a 64-bit integer."""
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int64(value)


def _call(name: str, *arguments: np.ndarray | int) -> None:
    function = getattr(required_library(), name)
    function(*map(_c_argument, arguments))


def log_likelihood_at_nodes(
    likelihoods: Float64[np.ndarray, "batch step lag"],
    points_by_lag: Float64[np.ndarray, "lag node"],
    steps_per_logarithm: int,
) -> Float64[np.ndarray, "batch node"]:
    """Σ_t log Σ_g w_g·c[t, g] at every node.

    Args:
        likelihoods: c, [batch, step, lag].
        points_by_lag: the weights w of every node, [lag, node]; a multiple of `NODES` nodes.
        steps_per_logarithm: how many factors are multiplied before a logarithm is taken.

    Returns:
        Log-likelihoods [batch, node].
    """
    batch_size, steps, order = likelihoods.shape
    out = np.empty((batch_size, points_by_lag.shape[1]))
    _call(
        "log_likelihood_at_nodes",
        out,
        np.ascontiguousarray(likelihoods),
        np.ascontiguousarray(points_by_lag),
        batch_size,
        steps,
        order,
        out.shape[1],
        steps_per_logarithm,
        kernel_threads(),
    )
    return out


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
    """Fill `tokens` and `lags` of one chunk from its uniform random numbers.

    Args:
        keep: acceptance probabilities of the alias tables, one table per source token.
        other: the alternative token of every cell of the alias tables.
        vocab_size: number of tokens.
        boundaries: cumulative mixture weights without the last, [lag - 1, batch].
        lag_uniform: uniform numbers that choose the lags, [step, batch].
        token_uniform: uniform numbers that choose the tokens, [step, batch].
        first_tokens: the first tokens of every sequence, [lag, batch].
        tokens: the result, [batch, pos], filled in place.
        lags: the latent lags, [batch, pos], filled in place.
    """
    order, batch_size = first_tokens.shape
    _call(
        "draw_tokens",
        tokens,
        lags,
        keep,
        other,
        vocab_size,
        boundaries,
        lag_uniform,
        token_uniform,
        first_tokens,
        batch_size,
        order,
        tokens.shape[1],
        tokens.strides[0] // 8,
        kernel_threads(),
    )


def machine_rates(seconds: float = 0.2) -> tuple[float, float]:
    """Fused multiply-adds and exponentials per second, on as many threads as torch uses."""
    threads = kernel_threads()

    def rate(name: str, each: int) -> float:
        rounds = 1000
        taken = 0.0
        while taken < seconds:
            rounds *= 2
            start = time.perf_counter()
            _call(name, rounds, threads)
            taken = time.perf_counter() - start
        return rounds * each * threads / taken

    return rate("multiply_add_rounds", 10 * VECTOR), rate("exponential_rounds", 512)
