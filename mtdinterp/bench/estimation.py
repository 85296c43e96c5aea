"""Benchmarks of sampling and of the exact posterior mean."""

from itertools import product

from torch import Tensor

from mtdinterp.bench.measure import Measurement, interleaved_seconds
from mtdinterp.bench.setting import bench_task
from mtdinterp.estimators import exact_posterior_mean, gibbs_posterior_mean

PROBLEMS = tuple(product((3, 4, 5), (64, 256, 1984)))
"""Order and length."""
QUICK_PROBLEMS = ((3, 64), (4, 64))
AIMS = {
    (3, 64): 20.0,
    (4, 64): 20.0,
    (3, 1984): 20.0,
    (4, 1984): 20.0,
    (5, 256): 5.0,
    (5, 1984): 5.0,
}
"""How many times faster than Gibbs sampling the posterior mean should be, by order and length."""
BATCH_SIZE = 16
TOLERANCE = 1e-8
FINE_TOLERANCE = 1e-11


def sampler(quick: bool) -> list[Measurement]:
    """Tokens per second of `MTDTask.sample`, latent lags and true distributions included."""
    task = bench_task()
    batch_size, length = 4096, 64
    actions = {"sample": lambda: task.sample(batch_size, length, seed=1)}
    seconds = interleaved_seconds(actions, repeats=10 if quick else 40)
    rate = batch_size * length / seconds["sample"] / 1e6
    return [Measurement("sampler, batch 4096, T = 64", rate, "million tokens/s", aim=50)]


def posterior(quick: bool) -> list[Measurement]:
    """The exact posterior mean against the paper's Gibbs sampler (200 + 2000), on one batch."""
    lines = []
    for order, length in QUICK_PROBLEMS if quick else PROBLEMS:
        lines += _posterior_at(order, length, repeats=2 if quick else 3)
    return lines


def _posterior_at(order: int, length: int, repeats: int) -> list[Measurement]:
    task = bench_task(order)
    tokens = task.sample(BATCH_SIZE, length, seed=1).tokens
    problem = (task.transition, tokens, order)
    found: dict[str, Tensor] = {}

    def exact() -> None:
        found["exact"] = exact_posterior_mean(*problem, tolerance=TOLERANCE)

    def gibbs() -> None:
        found["gibbs"] = gibbs_posterior_mean(*problem)

    seconds = interleaved_seconds({"exact": exact, "gibbs": gibbs}, repeats)
    truth = exact_posterior_mean(*problem, tolerance=FINE_TOLERANCE)

    where = f"m = {order}, T = {length}"
    exact_ms = seconds["exact"] / BATCH_SIZE * 1e3
    gibbs_ms = seconds["gibbs"] / BATCH_SIZE * 1e3
    speedup = seconds["gibbs"] / seconds["exact"]
    aim = AIMS.get((order, length))
    exact_error = _largest_error(found["exact"], truth)
    gibbs_error = _largest_error(found["gibbs"], truth)
    return [
        Measurement(f"posterior mean, {where}", exact_ms, "ms/sequence"),
        Measurement(f"Gibbs 200+2000, {where}", gibbs_ms, "ms/sequence"),
        Measurement(f"posterior mean over Gibbs, {where}", speedup, "× faster", aim),
        Measurement(f"posterior mean against tolerance 1e-11, {where}", exact_error, ""),
        Measurement(f"largest error of Gibbs, {where}", gibbs_error, ""),
    ]


def _largest_error(estimate: Tensor, truth: Tensor) -> float:
    return (estimate - truth).abs().max().item()
