"""The C functions as Python calls on NumPy arrays.

Types and shapes are checked here, because a wrong one would make the C++ code read other memory.
Ranges of values are checked by the kernels themselves.
"""

import ctypes
import time

import numpy as np
from jaxtyping import Float64, Int64

from mtdinterp.checks import check_count, check_order
from mtdinterp.native.build import required_library
from mtdinterp.native.calls import run_kernel
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


def _call(name: str, *arguments: np.ndarray | int) -> bool:
    return run_kernel(name, *map(_c_argument, arguments))


def _operand(name: str, array: np.ndarray, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """The array in C order and aligned, which copies it only if necessary."""
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(
            f"{name}: expected {np.dtype(dtype)} of shape {list(shape)}, "
            f"got {array.dtype} of shape {list(array.shape)}"
        )
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


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
    if likelihoods.ndim != 3 or points_by_lag.ndim != 2:
        raise ValueError(
            "likelihoods and points_by_lag: expected [batch, step, lag] and [lag, node], got "
            f"shapes {list(likelihoods.shape)} and {list(points_by_lag.shape)}"
        )
    batch_size, steps, order = likelihoods.shape
    nodes = points_by_lag.shape[1]
    if nodes % NODES:
        raise ValueError(f"points_by_lag: expected a multiple of {NODES} nodes, got {nodes}")
    check_count("steps_per_logarithm", steps_per_logarithm)
    out = np.empty((batch_size, nodes))
    _call(
        "log_likelihood_at_nodes",
        out,
        _operand("likelihoods", likelihoods, np.float64, (batch_size, steps, order)),
        _operand("points_by_lag", points_by_lag, np.float64, (order, nodes)),
        batch_size,
        steps,
        order,
        nodes,
        steps_per_logarithm,
        kernel_threads(),
    )
    return out


def stick_grid_moments(
    likelihoods: Float64[np.ndarray, "batch lag step"],
    nodes: Float64[np.ndarray, "batch stick node"],
    weights: Float64[np.ndarray, "batch stick node"],
    counts: Int64[np.ndarray, "batch stick"],
    starts: Int64[np.ndarray, "batch stick"],
    negligible: Float64[np.ndarray, "batch stick"],
) -> tuple[Float64[np.ndarray, "batch moment"], Float64[np.ndarray, "batch stick node"]]:
    """Sums of a likelihood over product grids in the fractions of a stick.

    Args:
        likelihoods: c of every sequence, [batch, lag, step], with at least two lags.
        nodes: the nodes of every fraction, one fewer than lags.
        weights: the quadrature weight of every node.
        counts: how many of the nodes of every fraction are used, the first ones.
        starts: the node at which the walk along every fraction begins.
        negligible: the mass below which a walk along a fraction may end.

    Returns:
        The mass and the mass times each mixture weight, [batch, 1 + lag], and the mass at every
        node of every fraction.
    """
    if likelihoods.ndim != 3 or nodes.ndim != 3:
        raise ValueError(
            "likelihoods and nodes: expected [batch, lag, step] and [batch, stick, node], got "
            f"shapes {list(likelihoods.shape)} and {list(nodes.shape)}"
        )
    batch_size, order, steps = likelihoods.shape
    sticks, n_nodes = order - 1, nodes.shape[2]
    if sticks < 1 or n_nodes < 1:
        raise ValueError(f"expected at least 2 lags and 1 node, got {order} and {n_nodes}")
    per_node = (batch_size, sticks, n_nodes)
    used = _operand("counts", counts, np.int64, (batch_size, sticks))
    first = _operand("starts", starts, np.int64, (batch_size, sticks))
    if (first < 0).any() or (first >= used).any() or (used > n_nodes).any():
        raise ValueError(f"starts and counts: expected 0 <= start < count <= {n_nodes}")
    padding = ((0, 0), (0, 0), (0, -n_nodes % NODES))
    padded = [
        np.pad(_operand(name, array, np.float64, per_node), padding, mode="edge")
        for name, array in (("nodes", nodes), ("weights", weights))
    ]
    stride = padded[0].shape[2]
    # Parts are added up here, in one order, whichever thread has computed them.
    parts = stride // NODES if sticks == 1 else n_nodes
    moments = np.zeros((batch_size, parts, 1 + order))
    marginals = np.zeros((batch_size, parts, sticks, stride))
    _call(
        "stick_grid_moments",
        moments,
        marginals,
        _operand("likelihoods", likelihoods, np.float64, (batch_size, order, steps)),
        *padded,
        used,
        first,
        _operand("negligible", negligible, np.float64, (batch_size, sticks)),
        batch_size,
        steps,
        sticks,
        stride,
        parts,
        kernel_threads(),
    )
    return moments.sum(1), marginals.sum(1)[..., :n_nodes]


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
    if first_tokens.ndim != 2 or tokens.ndim != 2:
        raise ValueError(
            "first_tokens and tokens: expected [lag, batch] and [batch, pos], got shapes "
            f"{list(first_tokens.shape)} and {list(tokens.shape)}"
        )
    order, batch_size = first_tokens.shape
    length = tokens.shape[1]
    check_order(order)
    check_count("vocab_size", vocab_size)
    if length < order:
        raise ValueError(f"tokens: expected at least {order} positions, got {length}")
    _check_results(tokens, lags, (batch_size, length))
    random = (length - order, batch_size)
    in_range = _call(
        "draw_tokens",
        tokens,
        lags,
        _operand("keep", keep, np.float64, (vocab_size**2,)),
        _operand("other", other, np.int64, (vocab_size**2,)),
        vocab_size,
        _operand("boundaries", boundaries, np.float64, (order - 1, batch_size)),
        _operand("lag_uniform", lag_uniform, np.float64, random),
        _operand("token_uniform", token_uniform, np.float64, random),
        _operand("first_tokens", first_tokens, np.int64, (order, batch_size)),
        batch_size,
        order,
        length,
        tokens.strides[0] // tokens.itemsize,
        kernel_threads(),
    )
    if not in_range:
        raise ValueError(
            f"expected tokens in 0..{vocab_size - 1} in first_tokens and other, and numbers in "
            "[0, 1) in token_uniform; got others"
        )


def _check_results(tokens: np.ndarray, lags: np.ndarray, shape: tuple[int, int]) -> None:
    """Refuse arrays that the kernel cannot fill: rows must be contiguous and equally far apart."""
    for name, array in (("tokens", tokens), ("lags", lags)):
        if array.dtype != np.int64 or array.shape != shape:
            raise ValueError(
                f"{name}: expected int64 of shape {list(shape)}, "
                f"got {array.dtype} of shape {list(array.shape)}"
            )
        by_row = array.strides[1] == array.itemsize or shape[1] <= 1 or array.size == 0
        if not (by_row and array.flags.aligned and array.flags.writeable):
            raise ValueError(f"{name}: expected a writable array with contiguous rows")
    if tokens.strides[0] != lags.strides[0] and shape[0] > 1:
        raise ValueError(
            f"lags: expected rows {tokens.strides[0]} bytes apart like those of tokens, "
            f"got {lags.strides[0]}"
        )


def machine_rates(seconds: float = 0.2) -> tuple[float, float]:
    """Fused multiply-adds and exponentials per second, on as many threads as torch uses."""
    threads = kernel_threads()
    library = required_library()

    def rate(name: str, each: int) -> float:
        rounds = 1000
        taken = 0.0
        while taken < seconds:
            rounds *= 2
            start = time.perf_counter()
            getattr(library, name)(ctypes.c_int64(rounds), ctypes.c_int32(threads))
            taken = time.perf_counter() - start
        return rounds * each * threads / taken

    return rate("multiply_add_rounds", 10 * VECTOR), rate("exponential_rounds", 512)
