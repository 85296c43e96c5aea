"""The kernels on NumPy arrays: likelihoods at quadrature nodes and on grids, and the sampler."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from native.corpus.base import Case

from mtdinterp.native import kernels
from mtdinterp.tasks import sampling

Arrays = dict[str, Any]


def fortran(array: np.ndarray) -> np.ndarray:
    """The same numbers in column order."""
    return np.asfortranarray(array)


def misaligned(array: np.ndarray) -> np.ndarray:
    """The same numbers one byte off their usual place in memory."""
    memory = np.zeros(array.nbytes + 1, np.uint8)
    moved = memory[1:].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def with_gaps(array: np.ndarray) -> np.ndarray:
    """The same numbers with gaps between them."""
    large = np.zeros([2 * size for size in array.shape], array.dtype)
    view = large[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


def likelihood_arrays(batch: int = 3, steps: int = 70, order: int = 3, nodes: int = 16) -> Arrays:
    """Random likelihoods and points of the simplex."""
    rng = np.random.default_rng(0)
    return {
        "likelihoods": rng.random((batch, steps, order)) + 0.5,
        "points_by_lag": rng.random((order, nodes)) + 0.1,
        "steps_per_logarithm": 64,
    }


def compare_likelihood(arrays: Arrays) -> float:
    """The kernel against the definition."""
    got = kernels.log_likelihood_at_nodes(**arrays)
    factors = arrays["likelihoods"] @ arrays["points_by_lag"]
    expected = np.log(factors).sum(1)
    return float(np.abs(got - expected).max(initial=0.0))


def grid_arrays(batch: int = 2, steps: int = 70, order: int = 3, nodes: int = 9) -> Arrays:
    """Random likelihoods and a grid of random fractions."""
    rng = np.random.default_rng(0)
    shape = (batch, order - 1, nodes)
    return {
        "likelihoods": rng.random((batch, order, steps)) + 0.5,
        "nodes": np.sort(rng.random(shape), axis=2),
        "weights": rng.random(shape),
        "counts": np.full(shape[:2], nodes),
        "starts": np.full(shape[:2], nodes // 2),
        "negligible": np.zeros(shape[:2]),
    }


def compare_grid(arrays: Arrays) -> float:
    """The kernel against the definition: the largest relative difference of mass and moments."""
    moments, marginals = kernels.stick_grid_moments(**arrays)
    worst = 0.0
    for row in range(len(moments)):
        points, weights = whole_grid(arrays, row)
        mass = weights * np.prod(points @ arrays["likelihoods"][row], axis=1)
        expected = np.array([mass.sum(), *(mass @ points)])
        worst = max(worst, float(np.abs(moments[row] / expected - 1).max()))
        worst = max(worst, float(np.abs(marginals[row].sum(1) / expected[0] - 1).max()))
    return worst


def whole_grid(arrays: Arrays, row: int) -> tuple[np.ndarray, np.ndarray]:
    """All points of a grid and their weights, one stick after the other."""
    points, rest, weights = np.ones((1, 0)), np.ones(1), np.ones(1)
    per_stick = zip(*(arrays[name][row] for name in ("nodes", "weights", "counts")), strict=True)
    for nodes, factors, count in per_stick:
        taken = (rest[:, None] * nodes[:count]).reshape(-1, 1)
        points = np.concatenate([points.repeat(count, 0), taken], axis=1)
        rest = (rest[:, None] * (1 - nodes[:count])).ravel()
        weights = (weights[:, None] * factors[:count]).ravel()
    return np.concatenate([points, rest[:, None]], axis=1), weights


def sampler_arrays(batch: int = 70, order: int = 3, length: int = 9, vocab: int = 5) -> Arrays:
    """Random numbers and alias tables, and arrays for the results."""
    rng = np.random.default_rng(0)
    keep, other = sampling.alias_tables(rng.dirichlet(np.ones(vocab), size=vocab))
    weights = rng.dirichlet(np.ones(order), size=batch)
    tokens, lags = np.full((2, batch, length), -7)
    return {
        "keep": keep.ravel(),
        "other": other.ravel(),
        "vocab_size": vocab,
        "boundaries": np.ascontiguousarray(np.cumsum(weights, axis=1).T[:-1]),
        "lag_uniform": rng.random((length - order, batch)),
        "token_uniform": rng.random((length - order, batch)),
        "first_tokens": rng.integers(vocab, size=(order, batch)),
        "tokens": tokens,
        "lags": lags,
    }


def compare_sampler(arrays: Arrays) -> float:
    """The kernel against NumPy, to the bit."""
    reference = arrays | {name: np.zeros_like(arrays[name]) for name in ("tokens", "lags")}
    kernels.draw_tokens(**arrays)
    sampling.draw_tokens(**reference)
    same = all(np.array_equal(arrays[name], reference[name]) for name in ("tokens", "lags"))
    return 0.0 if same else float("inf")


def changed(make: Callable[..., Arrays], **changes: Callable[[Any], Any]) -> Arrays:
    """Usual arrays with some of them changed."""
    arrays = make()
    return arrays | {name: change(arrays[name]) for name, change in changes.items()}


def with_entry(value: float) -> Callable[[np.ndarray], np.ndarray]:
    """A change of an array's last entry."""

    def change(array: np.ndarray) -> np.ndarray:
        array.flat[-1] = value
        return array

    return change


def to(value: Any) -> Callable[[Any], Any]:
    """A change of an argument to a fixed value."""
    return lambda _: value


def shorter(array: np.ndarray) -> np.ndarray:
    """The array without its last row."""
    return array[:-1]


def read_only(array: np.ndarray) -> np.ndarray:
    """The array as one that cannot be written."""
    array.flags.writeable = False
    return array


def cast(kind: Any) -> Callable[[np.ndarray], np.ndarray]:
    """A change of an array's type."""
    return lambda array: array.astype(kind)


LIKELIHOODS: dict[str, Callable[[], Arrays]] = {
    "no sequences": partial(likelihood_arrays, batch=0),
    "no steps": partial(likelihood_arrays, steps=0),
    "no nodes": partial(likelihood_arrays, nodes=0),
    "a logarithm per step": lambda: likelihood_arrays() | {"steps_per_logarithm": 1},
    "one logarithm": lambda: likelihood_arrays() | {"steps_per_logarithm": 1000},
}
for order in range(1, 9):
    LIKELIHOODS[f"order {order}"] = partial(likelihood_arrays, order=order)
for steps in (1, 63, 64, 65, 128):
    LIKELIHOODS[f"{steps} steps"] = partial(likelihood_arrays, steps=steps)
for change in (fortran, misaligned, with_gaps):
    LIKELIHOODS[change.__name__] = partial(
        changed, likelihood_arrays, likelihoods=change, points_by_lag=change
    )

of_likelihood = partial(partial, changed, likelihood_arrays)
WRONG_LIKELIHOODS: dict[str, tuple[Callable[[], Arrays], str]] = {
    "7 nodes": (partial(likelihood_arrays, nodes=7), "a multiple of 8 nodes, got 7"),
    "9 nodes": (partial(likelihood_arrays, nodes=9), "a multiple of 8 nodes, got 9"),
    "other lags": (of_likelihood(points_by_lag=shorter), "points_by_lag: expected float64"),
    "two axes": (of_likelihood(likelihoods=lambda x: x[0]), "expected .batch, step, lag"),
    "no logarithm": (of_likelihood(steps_per_logarithm=to(0)), "steps_per_logarithm: expected"),
    "float32": (of_likelihood(likelihoods=cast(np.float32)), "got float32"),
    "float16": (of_likelihood(points_by_lag=cast(np.float16)), "got float16"),
    "other byte order": (of_likelihood(likelihoods=cast(">f8")), "got >f8"),
}

GRIDS: dict[str, Callable[[], Arrays]] = {
    "no sequences": partial(grid_arrays, batch=0),
    "no steps": partial(grid_arrays, steps=0),
    "one node": partial(grid_arrays, nodes=1),
    "other sizes per fraction": partial(
        changed, grid_arrays, counts=to(np.array([[9, 3], [5, 8]])), starts=np.zeros_like
    ),
    "from the last node": partial(changed, grid_arrays, starts=to(np.full((2, 2), 8))),
}
for order in range(2, 6):
    GRIDS[f"{order} lags"] = partial(grid_arrays, order=order, nodes=6)
for nodes in (7, 8, 9, 16, 17):
    GRIDS[f"{nodes} nodes"] = partial(grid_arrays, nodes=nodes)
for steps in (1, 3, 4, 63, 64, 65, 129):
    GRIDS[f"{steps} steps"] = partial(grid_arrays, steps=steps)
for change in (fortran, misaligned, with_gaps):
    GRIDS[change.__name__] = partial(
        changed, grid_arrays, **dict.fromkeys(("likelihoods", "nodes", "weights"), change)
    )

of_grid = partial(partial, changed, grid_arrays)
WRONG_GRIDS: dict[str, tuple[Callable[[], Arrays], str]] = {
    "one lag": (of_grid(likelihoods=lambda x: x[:, :1]), "expected at least 2 lags"),
    "no nodes": (of_grid(nodes=lambda x: x[..., :0]), "expected at least 2 lags and 1 node"),
    "two axes": (of_grid(nodes=lambda x: x[0]), "expected .batch, lag, step"),
    "a start too far": (of_grid(starts=with_entry(9)), "expected 0 <= start < count <= 9"),
    "a negative start": (of_grid(starts=with_entry(-1)), "expected 0 <= start < count"),
    "a count too large": (of_grid(counts=with_entry(10)), "expected 0 <= start < count <= 9"),
    "no count": (of_grid(counts=with_entry(0)), "expected 0 <= start < count"),
    "fewer sticks": (of_grid(weights=lambda x: x[:, :1]), "weights: expected float64"),
    "nodes of 4 bytes": (of_grid(nodes=cast(np.float32)), "nodes: expected .*got float32"),
    "starts of 4 bytes": (of_grid(starts=cast(np.int32)), "starts: expected .*got int32"),
    "counts of 4 bytes": (of_grid(counts=cast(np.int32)), "counts: expected .*got int32"),
    "a mass for each sequence": (of_grid(negligible=lambda x: x[:, 0]), "negligible: expected"),
}

SAMPLES: dict[str, Callable[[], Arrays]] = {
    "one lag": partial(sampler_arrays, order=1),
    "as many lags as possible": partial(sampler_arrays, order=8),
    "nothing to draw": partial(sampler_arrays, order=9),
    "one token": partial(sampler_arrays, order=1, length=1),
    "one kind of token": partial(sampler_arrays, vocab=1),
    "17 kinds of token": partial(sampler_arrays, vocab=17),
    "smallest numbers": partial(
        changed, sampler_arrays, token_uniform=np.zeros_like, lag_uniform=np.zeros_like
    ),
    "largest numbers": partial(
        changed,
        sampler_arrays,
        token_uniform=lambda x: np.full_like(x, np.nextafter(1, 0)),
        lag_uniform=lambda x: np.full_like(x, np.nextafter(1, 0)),
    ),
    "no number for a lag": partial(changed, sampler_arrays, lag_uniform=with_entry(np.nan)),
    "rows apart": lambda: (
        sampler_arrays()
        | dict(zip(("tokens", "lags"), np.zeros((2, 70, 12), np.int64)[..., 1:10], strict=True))
    ),
    "last row first": partial(
        changed, sampler_arrays, tokens=lambda x: x[::-1], lags=lambda x: x[::-1]
    ),
}
for batch in (0, 1, 63, 64, 65, 129):
    SAMPLES[f"{batch} sequences"] = partial(sampler_arrays, batch=batch)
INPUTS = ("keep", "other", "boundaries", "lag_uniform", "token_uniform", "first_tokens")
for change in (fortran, misaligned, with_gaps):
    SAMPLES[change.__name__] = partial(changed, sampler_arrays, **dict.fromkeys(INPUTS, change))

of_sampler = partial(partial, changed, sampler_arrays)
OTHERS = "expected tokens in 0..4 .* got others"
WRONG_SAMPLES: dict[str, tuple[Callable[[], Arrays], str]] = {
    "a number of one": (of_sampler(token_uniform=with_entry(1.0)), OTHERS),
    "a negative number": (of_sampler(token_uniform=with_entry(-1e-300)), OTHERS),
    "no number": (of_sampler(token_uniform=with_entry(np.nan)), OTHERS),
    "an infinite number": (of_sampler(token_uniform=with_entry(np.inf)), OTHERS),
    "a first token too large": (of_sampler(first_tokens=with_entry(5)), OTHERS),
    "a negative first token": (of_sampler(first_tokens=with_entry(-1)), OTHERS),
    "a first token beyond 32 bits": (of_sampler(first_tokens=with_entry(2**40)), OTHERS),
    "another token too large": (of_sampler(other=with_entry(5)), OTHERS),
    "a negative other token": (of_sampler(other=with_entry(-1)), OTHERS),
    "two tables": (of_sampler(keep=lambda x: np.tile(x, 2)), "keep: expected float64"),
    "another vocabulary": (of_sampler(vocab_size=to(6)), "keep: expected float64 of shape .36"),
    "no vocabulary": (of_sampler(vocab_size=to(0)), "vocab_size: expected an integer"),
    "fewer positions than lags": (
        of_sampler(tokens=lambda x: x[:, :2].copy(), lags=lambda x: x[:, :2].copy()),
        "tokens: expected at least 3 positions",
    ),
    "no lags": (of_sampler(first_tokens=lambda x: x[:0]), "order: expected"),
    "one axis": (of_sampler(first_tokens=np.ravel), "expected .lag, batch"),
    "tokens by column": (of_sampler(tokens=fortran), "tokens: expected a writable array"),
    "lags by column": (of_sampler(lags=fortran), "lags: expected a writable array"),
    "lags with gaps": (of_sampler(lags=with_gaps), "lags: expected a writable array"),
    "misaligned tokens": (of_sampler(tokens=misaligned), "tokens: expected a writable array"),
    "tokens that cannot be written": (of_sampler(tokens=read_only), "tokens: expected a writable"),
    "lags in other rows": (
        of_sampler(lags=lambda x: np.zeros((70, 12), np.int64)[:, :9]),
        "lags: expected rows 72 bytes apart",
    ),
    "fewer rows of lags": (of_sampler(lags=shorter), "lags: expected int64 of shape"),
}
for name in ("boundaries", "lag_uniform", "token_uniform", "keep", "other"):
    WRONG_SAMPLES[f"{name} too short"] = (of_sampler(**{name: shorter}), f"{name}: expected")
    WRONG_SAMPLES[f"{name} of 4 bytes"] = (
        of_sampler(**{name: cast(np.float32)}),
        f"{name}: expected .*got float32",
    )
for name in ("tokens", "lags", "first_tokens"):
    WRONG_SAMPLES[f"{name} of 4 bytes"] = (
        of_sampler(**{name: cast(np.int32)}),
        f"{name}: expected .*got int32",
    )


def run(compare: Callable[[Arrays], float], make: Callable[[], Arrays]) -> float:
    """Make the arrays when the case runs, because some are changed by it."""
    return compare(make())


def cases(
    title: str,
    compare: Callable[[Arrays], float],
    right: dict[str, Callable[[], Arrays]],
    wrong: dict[str, tuple[Callable[[], Arrays], str]],
) -> list[Case]:
    """The cases of one kernel."""
    accepted = [
        Case(f"{title}: {name}", partial(run, compare, make)) for name, make in right.items()
    ]
    refused = [
        Case(f"{title} refuses: {name}", partial(run, compare, make), refusal)
        for name, (make, refusal) in wrong.items()
    ]
    return accepted + refused


ARRAY_CASES = (
    *cases("likelihood", compare_likelihood, LIKELIHOODS, WRONG_LIKELIHOODS),
    *cases("grid", compare_grid, GRIDS, WRONG_GRIDS),
    *cases("sampler", compare_sampler, SAMPLES, WRONG_SAMPLES),
)
