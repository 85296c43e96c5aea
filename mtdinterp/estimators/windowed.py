"""The posterior mean by rules on windows, with more and more nodes until they agree.

A rule that is laid out for the prior needs more and more nodes as the posterior narrows. Here the
nodes lie where the mass is (`window_posterior`), and the rules converge fast at any length.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from mtdinterp.errors import RuleTooLarge
from mtdinterp.estimators.window_posterior import WindowPosterior

NODES_AT_ONE, NODES_PER_DIGIT, NODES_PER_DOUBLING = 9.5, 1.2, 1.5
"""Nodes per fraction that a tolerance of 1 needs, roughly, and additional nodes per decimal digit
and per doubling of `SHORT` steps."""
SHORT = 64
"""Steps up to which the number of nodes does not depend on them."""
SHARES = (0.5, 0.72)
"""The shares of them that the first two rules have."""
STEPS = (1.1, 1.45)
"""The smallest and the largest factor by which a rule grows after that."""
POWER, SPREAD, SAFETY = 1.25, 0.3, 10.0
"""How the error falls with the number of nodes, see `expected_error`, and the factor on it."""
VALUES_AT_ONCE = 1 << 23
"""Likelihoods of steps and lags that are worked on together."""


def windowed_posterior_mean(
    likelihoods: Float64[Tensor, "batch step lag"],
    alpha: tuple[float, ...],
    tolerance: float,
    max_nodes: int,
) -> Float64[Tensor, "batch lag"]:
    """Posterior means by rules on windows.

    Args:
        likelihoods: c[t, g] of every sequence, with at least two lags.
        alpha: the Dirichlet prior.
        tolerance: accuracy of every entry.
        max_nodes: the largest rule to use.

    Returns:
        Posterior means of every sequence.

    Raises:
        RuleTooLarge: if a sequence needs a rule of more than `max_nodes` nodes.
    """
    if len(likelihoods) == 0:
        return likelihoods.new_empty(0, likelihoods.shape[2])
    _check_least_rule(likelihoods, tolerance, max_nodes)
    at_once = max(1, VALUES_AT_ONCE // likelihoods[0].numel())
    means = []
    for some in likelihoods.split(at_once):
        posterior = WindowPosterior(some, alpha, tolerance)
        means.append(_to_tolerance(posterior, max_nodes))
    return torch.cat(means)


def nodes_needed(tolerance: float, n_steps: int) -> float:
    """About how many nodes per fraction a rule on windows needs."""
    doublings = math.log2(max(n_steps, SHORT) / SHORT)
    nodes_for_digits = NODES_AT_ONE - NODES_PER_DIGIT * math.log10(tolerance)
    return nodes_for_digits + NODES_PER_DOUBLING * doublings


def least_sizes(tolerance: float, n_steps: int) -> tuple[int, int, int]:
    """Nodes per fraction of the first two rules, and at least of the third.

    An error estimate takes three rules, so no sequence needs fewer.
    """
    needed = nodes_needed(tolerance, n_steps)
    first, second = (math.ceil(share * needed) for share in SHARES)
    return first, second, math.ceil(STEPS[0] * second)


def _check_least_rule(
    likelihoods: Float64[Tensor, "batch step lag"], tolerance: float, max_nodes: int
) -> None:
    """Refuse before any work what no rule within the limit can integrate."""
    n_rows, n_steps, n_lags = likelihoods.shape
    least = least_sizes(tolerance, n_steps)[-1] ** (n_lags - 1)
    if least > max_nodes:
        size = f"{n_lags} components and {n_steps} steps"
        needed = f"{n_rows} of {n_rows} sequences need at least {least:,} nodes"
        raise _too_large(size, needed, tolerance, max_nodes)


def _too_large(size: str, needed: str, tolerance: float, max_nodes: int) -> RuleTooLarge:
    """The error for sequences that need too many nodes."""
    return RuleTooLarge(
        f"{size} are too many for exact integration: {needed} for tolerance {tolerance:g}, and "
        f"max_nodes is {max_nodes:,}; in Python, mtdinterp.estimators.posterior_mean estimates the "
        "posterior mean by sampling"
    )


def _to_tolerance(posterior: WindowPosterior, max_nodes: int) -> Float64[Tensor, "batch lag"]:
    """Posterior means with rules of growing size, until every error estimate is small."""
    tolerance = posterior.tolerance
    n_rows, n_sticks = posterior.fractions.shape
    result = torch.empty(n_rows, n_sticks + 1, dtype=torch.float64)
    active = np.arange(n_rows)
    estimates: list[Estimate] = []
    error = np.full(n_rows, math.inf)
    first, second, _ = least_sizes(tolerance, posterior.scaled.shape[2])
    most = math.floor(max_nodes ** (1 / n_sticks) + 1e-9)
    n_nodes = np.full(n_rows, first)
    while len(active):
        if float(n_nodes.max()) ** n_sticks > max_nodes:
            size = f"{n_sticks + 1} components and {posterior.scaled.shape[2]} steps"
            least = int(n_nodes.max()) ** n_sticks
            needed = f"{len(active)} of {n_rows} sequences need up to {least:,} nodes or more"
            raise _too_large(size, needed, tolerance, max_nodes)
        grid = posterior.grid(n_nodes, active)
        sums = posterior.sums(grid, active)
        means = posterior.means(sums, active)
        result[active] = means
        estimates = [*estimates[-2:], Estimate(n_nodes, means)]
        expected = expected_error(estimates)
        rule_error = SAFETY * expected if len(estimates) == 3 else np.full(len(active), math.inf)
        edges = posterior.outside(grid, sums, active)
        error = rule_error + edges.total
        unfinished = ~(error <= tolerance)  # written so that NaN is unfinished
        # Only now: with few nodes, the mass outside is bounded only roughly.
        lacking = unfinished & (rule_error <= tolerance / 2)
        posterior.widen(active[lacking], edges.of(lacking), tolerance / (4 * n_sticks))
        if len(estimates) == 1:
            n_nodes = np.full(n_rows, second)
        else:
            wanted = next_size(n_nodes, expected, tolerance)
            # A smaller rule than the one that is wanted may do if that one is too large.
            n_nodes = np.where((wanted > most) & (n_nodes < most), most, wanted)
        active, error, n_nodes = active[unfinished], error[unfinished], n_nodes[unfinished]
        estimates = [estimate.of(unfinished) for estimate in estimates]
    return result


@dataclass(frozen=True, eq=False)
class Estimate:
    """Posterior means by one rule."""

    n_nodes: Int64[np.ndarray, " row"]
    """Nodes per fraction, for every sequence."""
    means: Float64[Tensor, "row lag"]

    def of(self, rows: Bool[np.ndarray, " row"]) -> "Estimate":
        """The estimate for some sequences."""
        return Estimate(self.n_nodes[rows], self.means[torch.from_numpy(rows)])


def expected_error(estimates: list[Estimate]) -> Float64[np.ndarray, " row"]:
    """The error of the last of two or three estimates, from how far the others are from it.

    On a window, a rule with n nodes has an error of about SPREAD·exp(-k·n^POWER); each of the
    earlier rules says what k is at least, and the smaller one counts. On 600,000 triples of rules
    for 9,000 sequences (2 to 4 lags, 16 to 1985 steps, concentrations 0.1 to 3, rows down to
    Dirichlet(0.05)) with at most 1.45 times as many nodes as before, there was one case in which
    `SAFETY` times this estimate met the tolerance and was half the true error.
    """
    last = estimates[-1]
    worst = np.zeros(len(last.means))
    for estimate in estimates[:-1]:
        difference = (last.means - estimate.means).abs().amax(-1).numpy()
        growth = (last.n_nodes / estimate.n_nodes) ** POWER
        worst = np.maximum(worst, SPREAD * np.minimum(difference / SPREAD, 1.0) ** growth)
    return worst if len(estimates) > 1 else np.full_like(worst, math.inf)


def next_size(
    n_nodes: Int64[np.ndarray, " row"], error: Float64[np.ndarray, " row"], tolerance: float
) -> Int64[np.ndarray, " row"]:
    """The smallest rule that should meet the tolerance, within the factors of `STEPS`.

    Args:
        n_nodes: the size of the last rule.
        error: its expected error.
        tolerance: the accuracy that is asked for.

    Returns:
        A larger size for every sequence.
    """
    wanted = math.log(SAFETY * SPREAD / tolerance)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = (wanted / np.log(SPREAD / error)) ** (1 / POWER)
    low, high = STEPS
    factor = np.where(np.isfinite(factor), factor, high).clip(low, high)
    return np.ceil(factor * n_nodes).astype(np.int64)
