"""Expectation-maximisation: w ← the mean responsibility at w; its limit is the maximum-likelihood
weights.

EM converges linearly, and slowly where two lags explain a sequence almost equally well. A cycle is
therefore two updates, a leap along their common direction (squared extrapolation, Varadhan and
Roland 2008) and an update from there, kept only where the likelihood does not fall: the ascent
stays monotone.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_count, check_number
from mtdinterp.estimators.likelihood import (
    gradient_at,
    lag_likelihoods,
    log_likelihood_at,
    responsibilities_at,
    uniform_for,
)


def em_step(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, "batch lag"]:
    """One EM update; the likelihood never falls."""
    return responsibilities_at(likelihoods, weights).mean(1)


def expectation_maximization(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    steps: int | None = None,
    tolerance: float = 1e-9,
    max_cycles: int = 20_000,
) -> Float64[Tensor, "batch lag"]:
    """Maximum-likelihood weights from uniform ones, or the plain EM iterate after `steps` updates.

    Without `steps` it runs until every sequence meets the optimality conditions of the concave
    problem to `tolerance`: the mean gradient is 1 on the lags in use and at most 1 on the others.
    """
    likelihoods = lag_likelihoods(transition, tokens, order)
    weights = uniform_for(likelihoods)
    if steps is not None:
        for _ in range(check_count("steps", steps, minimum=0)):
            weights = em_step(likelihoods, weights)
        return weights

    tolerance = check_number("tolerance", tolerance, minimum=0, exclusive=True)
    active = torch.arange(len(weights))
    for _ in range(check_count("max_cycles", max_cycles)):
        weights[active] = _accelerated_cycle(likelihoods[active], weights[active])
        gap = optimality_gap(likelihoods[active], weights[active])
        active, gap = active[gap > tolerance], gap[gap > tolerance]
        if not len(active):
            return weights
    raise RuntimeError(
        f"expectation_maximization: {len(active)} of {len(weights)} sequences did not reach "
        f"tolerance {tolerance:g} in {max_cycles} cycles (worst gap {gap.max():.2g})"
    )


def optimality_gap(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, " batch"]:
    """How far w is from satisfying the optimality conditions of max ℓ(w) over the simplex.

    With v = ∇ℓ(w)/steps the optimum has v ≤ 1 with equality where w > 0. The gap adds what v
    exceeds 1 by to the fixed-point residual |w·(v - 1)|, which also catches a lag that is leaving
    but not yet gone.
    """
    slack = gradient_at(likelihoods, weights) / likelihoods.shape[1] - 1
    return torch.maximum(slack.clamp_min(0).amax(-1), (weights * slack).abs().amax(-1))


def _accelerated_cycle(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, "batch lag"]:
    first = em_step(likelihoods, weights)
    second = em_step(likelihoods, first)
    velocity = first - weights
    acceleration = second - first - velocity
    stride = velocity.norm(dim=-1) / acceleration.norm(dim=-1).clamp_min(1e-300)
    stride = stride.clamp(1.0, 1e6)[:, None]
    leap = weights + 2 * stride * velocity + stride**2 * acceleration
    # Never down to zero, from which EM cannot return.
    leap = torch.maximum(leap, 1e-3 * second)
    leap = em_step(likelihoods, leap / leap.sum(-1, keepdim=True))
    better = log_likelihood_at(likelihoods, leap) >= log_likelihood_at(likelihoods, second)
    return torch.where(better[:, None], leap, second)
