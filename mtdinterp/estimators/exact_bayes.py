"""The exact posterior mean of the mixture weights (paper, eq. bayes_optimal_predictor_main).

The paper calls it intractable. For a fixed number of lags it is not: the likelihood is a polynomial
in the weights of degree N = length - order, so a Gauss rule on the simplex with (N + 2)/2 nodes
per dimension integrates it exactly, and far fewer are enough for any tolerance above rounding. The
number of nodes is raised until an error estimate meets the tolerance, sequence by sequence.
Evaluating the likelihood at every node is the whole cost; there are two implementations of that,
compiled and in torch.

Such a rule is laid out for the prior, and its nodes per dimension grow as √N while the posterior
narrows. For long sequences or many lags, rules on windows around the posterior (`windowed`) are
cheaper, and are used there.
"""

import math
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mtdinterp.checks import (
    ArrayLike,
    as_concentration,
    check_count,
    check_number,
    check_order,
)
from mtdinterp.errors import CannotCompute, RuleTooLarge
from mtdinterp.estimators.quadrature import SimplexRule, simplex_rule
from mtdinterp.estimators.windowed import nodes_needed, windowed_posterior_mean
from mtdinterp.evidence import Evidence, evidence_of
from mtdinterp.native import kernels, use_kernels

STEPS_PER_LOGARITHM = 64
"""Factors multiplied before a logarithm is taken. Each is scaled to 1 at uniform weights, so it
lies between the smallest weight at a node and the number of lags, and 64 of them stay in range."""

MAX_NODES = 50_000_000
"""The largest rule by default: seconds per sequence."""

BLOCK_ROWS, BLOCK_NODES = 512, 256
"""The matrix product is cut into blocks of this size, which stay in the cache until they are
reduced."""

VALUES_AT_ONCE = 1 << 22
"""Likelihood values (sequences times nodes) held in memory together."""

GROWTH = 1.25
"""The factor by which the nodes per dimension grow from one rule to the next."""

SAFETY, LEAST_RATE = 10.0, 1e-3
"""How far the error estimate trusts the convergence it has seen: see `_error_estimate`."""

PRIOR_NODES = 2.0
"""Nodes per dimension that a rule laid out for the prior finally needs, divided by √steps."""
PRIOR_CYCLES = 0.25
"""Its processor cycles per node, step and lag, with those of the smaller rules before it."""
WINDOW_CYCLES, WINDOW_STEP_CYCLES = 4e5, 900.0
"""Cycles to find the windows of a sequence, and those per step."""
WINDOW_NODE_CYCLES, WINDOW_NODE_STEP_CYCLES = 20.0, 0.4
"""Cycles of rules on windows per node, and those per node and step. All were measured on one
thread, for 2 to 6 lags and 16 to 1984 steps; both kinds are equally accurate."""


def exact_posterior_mean(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    concentration: ArrayLike | float = 1.0,
    tolerance: float = 1e-10,
    max_nodes: int = MAX_NODES,
) -> Float64[Tensor, "batch lag"]:
    """E[weights | tokens] under a Dirichlet prior.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        concentration: α, one number or one per lag.
        tolerance: accuracy of every entry, at least 1e-12.
        max_nodes: the largest rule to use.

    Returns:
        Posterior means of every sequence.

    Raises:
        RuleTooLarge: if a sequence needs a rule of more than `max_nodes` nodes.
    """
    alpha = tuple(as_concentration(concentration, check_order(order)).tolist())
    evidence = evidence_of(transition, tokens, order, alpha)
    return posterior_mean_of(evidence, tolerance, max_nodes)


def posterior_mean_of(
    evidence: Evidence, tolerance: float = 1e-10, max_nodes: int = MAX_NODES
) -> Float64[Tensor, "batch component"]:
    """The posterior mean under the evidence's own prior.

    Args:
        evidence: the evidence of the sequences.
        tolerance: accuracy of every entry, at least 1e-12.
        max_nodes: the largest rule to use.

    Returns:
        Posterior means of every sequence.

    Raises:
        RuleTooLarge: if a sequence needs a rule of more than `max_nodes` nodes.
    """
    tolerance = check_number("tolerance", tolerance, minimum=1e-12)
    max_nodes = check_count("max_nodes", max_nodes)
    alpha = tuple(as_concentration(evidence.concentration, evidence.n_components).tolist())
    if _windows_are_cheaper(evidence, tolerance):
        return windowed_posterior_mean(evidence.likelihoods, alpha, tolerance, max_nodes)
    return _PosteriorMean(evidence.likelihoods, alpha).to_tolerance(tolerance, max_nodes)


def _windows_are_cheaper(evidence: Evidence, tolerance: float) -> bool:
    """Whether a rule on windows costs less than one that is laid out for the prior."""
    steps, order = evidence.n_steps, evidence.n_components
    if order == 1 or steps == 0:
        return False
    nodes_for_prior = min(PRIOR_NODES * math.sqrt(steps), (steps + 3) // 2) ** (order - 1)
    for_prior = nodes_for_prior * steps * order * PRIOR_CYCLES
    nodes_on_windows = nodes_needed(tolerance, steps) ** (order - 1)
    on_windows = WINDOW_CYCLES + steps * WINDOW_STEP_CYCLES
    on_windows += nodes_on_windows * (WINDOW_NODE_CYCLES + steps * WINDOW_NODE_STEP_CYCLES)
    return on_windows < for_prior


class _PosteriorMean:
    """Posterior means of one batch under rules of growing size."""

    def __init__(
        self, likelihoods: Float64[Tensor, "batch step component"], alpha: tuple[float, ...]
    ) -> None:
        self.alpha = alpha
        self.order = len(alpha)
        self.batch_size, self.steps, _ = likelihoods.shape
        # Every factor Σ_g w_g c[t, g] is scaled to 1 at uniform weights, which changes the
        # likelihood by one constant per sequence.
        scaled = likelihoods / likelihoods.mean(-1, keepdim=True)
        self.likelihood: _Likelihood = (
            _CompiledLikelihood(scaled) if use_kernels() else _GroupedLikelihood(scaled)
        )

    @property
    def exact_nodes(self) -> int:
        """Nodes per dimension at which the rule is exact: the integrand has degree steps + 1."""
        return (self.steps + 2 + 1) // 2

    @property
    def first_nodes(self) -> int:
        """Nodes per dimension of the first rule.

        The posterior narrows as 1/√steps, and the nodes it takes to see it grow as √steps.
        """
        return min(math.ceil(math.sqrt(self.steps)), self.exact_nodes)

    def nodes_after(self, nodes: int) -> int:
        """Nodes per dimension of the rule that follows one with so many."""
        return min(math.ceil(nodes * GROWTH), self.exact_nodes)

    def to_tolerance(self, tolerance: float, max_nodes: int) -> Float64[Tensor, "batch lag"]:
        """Posterior means with rules of growing size, until every error estimate is small."""
        result = torch.empty(self.batch_size, self.order, dtype=torch.float64)
        active = torch.arange(self.batch_size)
        nodes = self.first_nodes
        # An error estimate takes three rules, so a third rule that is too large is refused before
        # any work.
        third = self.nodes_after(self.nodes_after(nodes))
        if third ** (self.order - 1) > max_nodes:
            raise self._too_large(third, self.batch_size, math.inf, tolerance, max_nodes)
        estimates: list[Tensor] = []
        error = torch.full((self.batch_size,), math.inf)
        while len(active):
            if nodes ** (self.order - 1) > max_nodes:
                raise self._too_large(nodes, len(active), error.max().item(), tolerance, max_nodes)
            estimates.append(self.with_rule(simplex_rule(self.alpha, nodes), active))
            result[active] = estimates[-1]
            if nodes == self.exact_nodes:
                break
            error = _error_estimate(estimates)
            unfinished = ~(error <= tolerance)  # written so that NaN is unfinished
            active, error = active[unfinished], error[unfinished]
            estimates = [estimate[unfinished] for estimate in estimates[-2:]]
            nodes = self.nodes_after(nodes)
        if not result.isfinite().all():
            raise CannotCompute(
                "the posterior mean cannot be integrated in double precision for a concentration "
                f"of {self.alpha}; try one nearer to 1"
            )
        return result

    def _too_large(
        self, nodes: int, n_active: int, error: float, tolerance: float, max_nodes: int
    ) -> RuleTooLarge:
        reached = f" (error estimate so far {error:.1g})" if error < math.inf else ""
        least = nodes ** (self.order - 1)
        enough = self.exact_nodes ** (self.order - 1)
        return RuleTooLarge(
            f"{self.order} components and {self.steps} steps are too many for exact integration: "
            f"{n_active} of {self.batch_size} sequences need between {least:,} and {enough:,} "
            f"nodes for tolerance {tolerance:g}{reached}, and max_nodes is {max_nodes:,}; in "
            "Python, mtdinterp.estimators.posterior_mean estimates the posterior mean by sampling"
        )

    def with_rule(
        self, rule: SimplexRule, rows: Int64[Tensor, " row"]
    ) -> Float64[Tensor, "row lag"]:
        """The posterior means of some sequences with one rule."""
        parts = []
        for some in rows.split(max(1, VALUES_AT_ONCE // len(rule.points))):
            log_density = self.likelihood.at_points(rule.points, some) + rule.log_weights
            parts.append(log_density.softmax(-1) @ rule.points)
        return torch.cat(parts)


class _Likelihood(Protocol):
    """ℓ of some sequences at points of the simplex, up to one constant per sequence."""

    def at_points(
        self, points: Float64[Tensor, "node lag"], rows: Int64[Tensor, " row"]
    ) -> Float64[Tensor, "row node"]: ...


class _CompiledLikelihood:
    """The product over steps, straight from the definition, in a compiled kernel."""

    def __init__(self, scaled: Float64[Tensor, "batch step component"]) -> None:
        self.scaled = scaled.numpy()

    def at_points(
        self, points: Float64[Tensor, "node lag"], rows: Int64[Tensor, " row"]
    ) -> Float64[Tensor, "row node"]:
        padding = -len(points) % kernels.NODES
        by_lag = np.pad(points.numpy().T, ((0, 0), (0, padding)), mode="edge")
        values = kernels.log_likelihood_at_nodes(
            self.scaled[rows.numpy()], by_lag, STEPS_PER_LOGARITHM
        )
        return torch.from_numpy(values)[:, : len(points)]


class _GroupedLikelihood:
    """The product in torch: consecutive factors are multiplied out, two or three at a time.

    The work becomes one matrix product between the monomials at the points and the coefficients of
    the sequences, and a few multiplications.
    """

    def __init__(self, scaled: Float64[Tensor, "batch step component"]) -> None:
        self.degree = 3 if scaled.shape[-1] <= 4 else 2
        self.coefficients = _grouped_coefficients(scaled, self.degree)

    def at_points(
        self, points: Float64[Tensor, "node lag"], rows: Int64[Tensor, " row"]
    ) -> Float64[Tensor, "row node"]:
        monomials = _monomials(points, self.degree)
        # At most STEPS_PER_LOGARITHM / degree groups, so that this is never 0.
        at_once = BLOCK_ROWS // self.coefficients.shape[1]
        return torch.cat([self._at_monomials(monomials, some) for some in rows.split(at_once)])

    def _at_monomials(
        self, monomials: Float64[Tensor, "monomial node"], rows: Int64[Tensor, " row"]
    ) -> Float64[Tensor, "row node"]:
        coefficients = self.coefficients[:, :, rows].flatten(1, 2)
        total = torch.zeros(len(rows), monomials.shape[1], dtype=torch.float64)
        # One buffer for all blocks: fresh memory for each would cost more than the product itself.
        buffer = torch.empty(coefficients.shape[1] * BLOCK_NODES, dtype=torch.float64)
        for start in range(0, monomials.shape[1], BLOCK_NODES):
            block = monomials[:, start : start + BLOCK_NODES]
            values = buffer[: coefficients.shape[1] * block.shape[1]].view(-1, block.shape[1])
            for chunk in coefficients:
                torch.mm(chunk, block, out=values)
                product = _product_over_first(values.view(-1, len(rows), block.shape[1]))
                total[:, start : start + BLOCK_NODES] += product.log_()
        return total


def _error_estimate(estimates: list[Float64[Tensor, "row lag"]]) -> Float64[Tensor, " row"]:
    """The error of the last of three estimates, from the two differences between them.

    Gauss rules converge faster than geometrically in the number of nodes, so the next difference
    would be below last·rate. Two differences can also be small by accident; so only the square root
    of the rate is counted on, no difference is taken to be below `LEAST_RATE` of the one before it,
    and the result is multiplied by `SAFETY`. On some 60,000 sequences (2 to 4 lags, concentrations
    0.1 to 3) the true error was at most 0.06 of the tolerance; this rule was chosen among several
    on those same sequences, and the bolder ones missed the tolerance there, by up to 76 times. For
    nearly deterministic rows it can miss too: by 7.6 times at a tolerance of 1e-5 and 3.1 times at
    1e-4 with rows drawn from Dirichlet(0.05); at 1e-6 and below it did not.
    """
    if len(estimates) < 3:
        return torch.full((len(estimates[-1]),), math.inf, dtype=torch.float64)
    previous = (estimates[-2] - estimates[-3]).abs().amax(-1)
    last = (estimates[-1] - estimates[-2]).abs().amax(-1)
    rate = (last / previous.clamp_min(1e-16)).clamp(LEAST_RATE, 1)
    return SAFETY * torch.maximum(last, LEAST_RATE * previous) * rate.sqrt()


def _product_over_first(values: Float64[Tensor, "group row node"]) -> Float64[Tensor, "row node"]:
    """The product over the leading axis by halves, in place: one long sweep at a time."""
    while len(values) > 1:
        half = (len(values) + 1) // 2
        values[: len(values) - half].mul_(values[half:])
        values = values[:half]
    return values[0]


@lru_cache(maxsize=32)
def _exponents(order: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """The monomials of one degree in `order` variables, as sorted tuples of variable indices."""
    return tuple(combinations_with_replacement(range(order), degree))


def _monomials(
    points: Float64[Tensor, "node lag"], degree: int
) -> Float64[Tensor, "monomial node"]:
    columns = [points[:, list(factors)].prod(-1) for factors in _exponents(points.shape[1], degree)]
    return torch.stack(columns)


def _grouped_coefficients(
    scaled: Float64[Tensor, "batch step component"], degree: int
) -> Float64[Tensor, "chunk group batch monomial"]:
    """Coefficients of the products of `degree` consecutive factors, grouped by logarithm.

    Steps are padded with the factor Σ_g w_g·1, which is 1 on the simplex.
    """
    batch_size, steps, order = scaled.shape
    chunks = math.ceil(steps / STEPS_PER_LOGARITHM)
    groups = math.ceil(steps / (chunks * degree))
    padding = chunks * groups * degree - steps
    scaled = torch.cat([scaled, torch.ones(batch_size, padding, order, dtype=torch.float64)], dim=1)
    factors = scaled.view(batch_size, chunks, groups, degree, order).permute(3, 1, 2, 0, 4)

    product = factors[0]
    for power in range(1, degree):
        index = {factor: position for position, factor in enumerate(_exponents(order, power + 1))}
        longer = torch.zeros(*product.shape[:-1], len(index), dtype=torch.float64)
        for position, monomial in enumerate(_exponents(order, power)):
            for lag in range(order):
                target = index[tuple(sorted((*monomial, lag)))]
                longer[..., target] += product[..., position] * factors[power][..., lag]
        product = longer
    return product.contiguous()
