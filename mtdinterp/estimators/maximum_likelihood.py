"""Maximum-likelihood weights by expectation-maximisation: w ← the mean responsibility at w.

EM converges linearly, and slowly if two components explain a sequence almost equally well. A cycle
is therefore two updates, an extrapolation along their common direction (squared extrapolation,
Varadhan and Roland 2008) and an update from there. The extrapolation is kept only if the
likelihood does not fall, so that the ascent stays monotone.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_count, check_number
from mtdinterp.errors import NotConverged
from mtdinterp.estimators.base import Estimator
from mtdinterp.evidence import (
    Evidence,
    evidence_of,
    gradient_at,
    log_likelihood_at,
    responsibilities_at,
    uniform_for,
)
from mtdinterp.formatting import counted
from mtdinterp.plugins import register_estimator
from mtdinterp.style import Style

COMPARING_TOLERANCE = 1e-6
"""Accuracy of the weights when estimators are compared: finer than any difference that counts."""


def em_step(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
) -> Float64[Tensor, "batch component"]:
    """One EM update; the likelihood never falls."""
    return responsibilities_at(likelihoods, weights).mean(1)


def expectation_maximization(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    steps: int | None = None,
    tolerance: float = 1e-9,
    max_cycles: int = 20_000,
) -> Float64[Tensor, "batch component"]:
    """Maximum-likelihood weights, or the plain EM iterate after `steps` updates from uniform.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        steps: plain EM updates to take; runs to convergence if None.
        tolerance: how closely every sequence must meet the optimality conditions.
        max_cycles: accelerated cycles before giving up.

    Returns:
        Weights of every sequence.

    Raises:
        NotConverged: if some sequence does not reach the tolerance.
    """
    likelihoods = evidence_of(transition, tokens, order).likelihoods
    if steps is None:
        return maximise_likelihood(likelihoods, tolerance, max_cycles)
    weights = uniform_for(likelihoods)
    for _ in range(check_count("steps", steps, minimum=0)):
        weights = em_step(likelihoods, weights)
    return weights


def maximise_likelihood(
    likelihoods: Float64[Tensor, "batch step component"],
    tolerance: float = 1e-9,
    max_cycles: int = 20_000,
) -> Float64[Tensor, "batch component"]:
    """Maximum-likelihood weights of every sequence.

    The problem is concave. At its optimum the mean gradient is 1 for every component in use and at
    most 1 for the others; see `optimality_gap`.

    Args:
        likelihoods: c[t, g] of every sequence.
        tolerance: how closely every sequence must meet the optimality conditions.
        max_cycles: accelerated cycles before giving up.

    Returns:
        Weights of every sequence.
    """
    tolerance = check_number("tolerance", tolerance, minimum=0, exclusive=True)
    weights = uniform_for(likelihoods)
    active = torch.arange(len(weights))
    for _ in range(check_count("max_cycles", max_cycles)):
        weights[active] = _accelerated_cycle(likelihoods[active], weights[active])
        gap = optimality_gap(likelihoods[active], weights[active])
        unfinished = gap > tolerance
        active = active[unfinished]
        gap = gap[unfinished]
        if not len(active):
            return weights
    number = f"{len(active)} of {counted(len(weights), 'sequence')}"
    raise NotConverged(
        f"expectation_maximization: {number} did not reach "
        f"tolerance {tolerance:g} in {max_cycles} cycles (worst gap {gap.max():.2g})"
    )


def optimality_gap(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
) -> Float64[Tensor, " batch"]:
    """How far w is from satisfying the optimality conditions of max ℓ(w) over the simplex.

    With v = ∇ℓ(w)/steps the optimum has v ≤ 1 with equality where w > 0. The gap is the largest
    excess of v over 1. It bounds the violation of equality too: Σ_g w_g·v_g = 1 for all weights,
    so Σ_g w_g·(v_g - 1) = 0, and no |w_g·(v_g - 1)| exceeds the largest excess.
    """
    excess = gradient_at(likelihoods, weights) / likelihoods.shape[1] - 1
    return excess.clamp_min(0).amax(-1)


def _accelerated_cycle(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
) -> Float64[Tensor, "batch component"]:
    """Two EM updates, an extrapolation along them, and an update from there."""
    first = em_step(likelihoods, weights)
    second = em_step(likelihoods, first)
    velocity = first - weights
    acceleration = second - first - velocity
    stride = velocity.norm(dim=-1) / acceleration.norm(dim=-1).clamp_min(1e-300)
    stride = stride.clamp(1.0, 1e6)[:, None]
    leap = weights + 2 * stride * velocity + stride**2 * acceleration
    # EM cannot leave a weight of zero and leaves a tiny one slowly, so no leap may go there.
    leap = torch.maximum(leap, 1e-3 * second)
    leap = em_step(likelihoods, leap / leap.sum(-1, keepdim=True))
    better = log_likelihood_at(likelihoods, leap) >= log_likelihood_at(likelihoods, second)
    return torch.where(better[:, None], leap, second)


@register_estimator
class MaximumLikelihood(Estimator):
    """The weights under which the sequence is most probable."""

    name, label = "maximum_likelihood", "maximum likelihood"
    rank = 30
    style = Style("#15803d", "X", ":")

    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        return maximise_likelihood(evidence.likelihoods, COMPARING_TOLERANCE)
