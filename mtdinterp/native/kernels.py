"""The C functions as Python calls on NumPy arrays; callers check shapes, these only pass
pointers."""

import ctypes
import time

import numpy as np
from jaxtyping import Float64, Int64

from mtdinterp.native.build import required_library
from mtdinterp.native.threads import kernel_threads

VECTOR = 8
"""Floats in a vector of the kernels."""
NODES = 8
"""Nodes the posterior kernel takes at a time; it wants a multiple."""


def _pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _call(name: str, *arguments: np.ndarray | int) -> None:
    getattr(required_library(), name)(
        *(
            _pointer(value) if isinstance(value, np.ndarray) else ctypes.c_int64(value)
            for value in arguments
        )
    )


def log_likelihood_at_nodes(
    likelihoods: Float64[np.ndarray, "batch step lag"],
    points_by_lag: Float64[np.ndarray, "lag node"],
    steps_per_logarithm: int,
) -> Float64[np.ndarray, "batch node"]:
    """Σ_t log Σ_g w_g c[t, g] at every node; the number of nodes is a multiple of `NODES`."""
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
    """Fill `tokens` and `lags` of one chunk from its uniforms."""
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
    """Fused multiply-adds and exponentials a second, on as many threads as torch uses."""
    threads = kernel_threads()

    def rate(name: str, each: int) -> float:
        rounds, taken = 1000, 0.0
        while taken < seconds:
            rounds *= 2
            start = time.perf_counter()
            _call(name, rounds, threads)
            taken = time.perf_counter() - start
        return rounds * each * threads / taken

    return rate("multiply_add_rounds", 10 * VECTOR), rate("exponential_rounds", 512)
