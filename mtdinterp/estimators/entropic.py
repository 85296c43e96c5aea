"""Entropy-regularised maximum likelihood: max ℓ(w) + s·H(w), and its path over s.

Early-stopped mirror descent follows this path from large s (uniform) to s = 0 (the MLE). The
paper's text writes the opposite sign, which rewards vertices; s < 0 is allowed so that the
difference can be measured.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_number
from mtdinterp.errors import NotConverged
from mtdinterp.estimators.base import Constant, Estimator
from mtdinterp.estimators.maximum_likelihood import COMPARING_TOLERANCE, maximise_likelihood
from mtdinterp.evidence import (
    Evidence,
    evidence_of,
    gradient_at,
    log_likelihood_at,
    mixed_likelihoods,
    uniform_for,
)
from mtdinterp.formatting import counted
from mtdinterp.plugins import register_estimator
from mtdinterp.style import Style


def entropic_map(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    strength: float,
    tolerance: float = 1e-9,
) -> Float64[Tensor, "batch component"]:
    """Weights maximising ℓ(w) + strength·H(w).

    For strength < 0 the objective is not concave; the result is the stationary point reached from
    uniform weights.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        strength: s, the weight of the entropy.
        tolerance: bound on |w·(gradient - its mean)| relative to steps + |strength|.

    Returns:
        Weights of every sequence.

    Raises:
        NotConverged: if some sequence does not reach the tolerance.
    """
    return maximise_regularised(evidence_of(transition, tokens, order), strength, tolerance)


def maximise_regularised(
    evidence: Evidence, strength: float, tolerance: float = 1e-9
) -> Float64[Tensor, "batch component"]:
    """Like `entropic_map`, from evidence.

    Args:
        evidence: the evidence of the sequences.
        strength: s, the weight of the entropy.
        tolerance: see `entropic_map`.

    Returns:
        Weights of every sequence.
    """
    strength = check_number("strength", strength)
    tolerance = check_number("tolerance", tolerance, minimum=0, exclusive=True)
    likelihoods = evidence.likelihoods
    if strength == 0:
        return maximise_likelihood(likelihoods, tolerance)
    climb = _newton if strength > 0 else _ascend
    return climb(likelihoods, uniform_for(likelihoods), strength, tolerance)


def entropic_path(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    strengths: Sequence[float],
    tolerance: float = 1e-9,
) -> Float64[Tensor, "strength batch component"]:
    """`entropic_map` at each strength.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        strengths: values of s.
        tolerance: see `entropic_map`.

    Returns:
        Weights for every strength and sequence.
    """
    evidence = evidence_of(transition, tokens, order)
    return torch.stack([maximise_regularised(evidence, s, tolerance) for s in strengths])


def _newton(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
    strength: float,
    tolerance: float,
    max_steps: int = 200,
) -> Float64[Tensor, "batch component"]:
    """Damped Newton for s > 0: the objective is strictly concave, its maximum inside the simplex.

    The step is taken in the logits, scaled by √w: the Hessian becomes √w·(Σ_t c cᵀ/(w·c)²)·√w +
    s·I, which no vanishing weight can make singular.
    """
    logits = weights.log()
    value = _objective(likelihoods, logits, strength)
    for _ in range(max_steps):
        current = logits.exp()
        gradient = gradient_at(likelihoods, current) - strength * logits
        gradient = gradient - (current * gradient).sum(-1, keepdim=True)
        residual = (current * gradient).abs().amax(-1) / (likelihoods.shape[1] + strength)
        if (residual <= tolerance).all():
            return current
        root = current.sqrt().clamp_min(1e-150)
        mixed = mixed_likelihoods(likelihoods, current)
        scaled = likelihoods * root[:, None, :] / mixed[..., None]
        curvature = torch.einsum("btg,bth->bgh", scaled, scaled)
        curvature = curvature + strength * torch.eye(curvature.shape[-1], dtype=torch.float64)
        # Solve for the free step and for the direction that keeps the weights' sum, together.
        right = torch.stack([root * gradient, root], -1)
        free, normal = torch.linalg.solve(curvature, right).unbind(-1)
        along = (root * free).sum(-1, keepdim=True) / (root * normal).sum(-1, keepdim=True)
        logits, value = _backtrack(
            likelihoods, logits, (free - along * normal) / root, value, strength
        )
    unfinished = counted(int((residual > tolerance).sum()), "sequence")
    raise NotConverged(
        f"entropic_map: {unfinished} did not reach tolerance "
        f"{tolerance:g} at strength {strength:g} in {max_steps} steps"
    )


def _backtrack(
    likelihoods: Float64[Tensor, "batch step component"],
    logits: Float64[Tensor, "batch component"],
    direction: Float64[Tensor, "batch component"],
    value: Float64[Tensor, " batch"],
    strength: float,
) -> tuple[Float64[Tensor, "batch component"], Float64[Tensor, " batch"]]:
    """The longest of the steps 1, 1/2, 1/4, … after which the objective has not fallen.

    A fall within rounding does not count. Every sequence has its own step.
    """
    stride = torch.ones(len(logits), 1, dtype=torch.float64)
    floor = value - 1e-13 * (1 + value.abs())
    for _ in range(60):
        trial = (logits + stride * direction).log_softmax(-1)
        reached = _objective(likelihoods, trial, strength)
        fell = (reached < floor)[:, None]
        if not fell.any():
            break
        stride = torch.where(fell, stride / 2, stride)
    return trial, reached


def _ascend(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
    strength: float,
    tolerance: float,
    max_steps: int = 20_000,
) -> Float64[Tensor, "batch component"]:
    """Mirror ascent with one step size per sequence: cut if the objective falls, else grown."""
    logits = weights.log()
    rate = torch.full(
        (len(weights), 1), 1 / (likelihoods.shape[1] + abs(strength)), dtype=torch.float64
    )
    value = _objective(likelihoods, logits, strength)
    active = torch.arange(len(weights))
    for _ in range(max_steps):
        if not len(active):
            return logits.softmax(-1)
        here = logits[active]
        current = here.softmax(-1)
        direction = gradient_at(likelihoods[active], current) - strength * here
        direction = direction - (current * direction).sum(-1, keepdim=True)
        trial = (here + rate[active] * direction).log_softmax(-1)
        reached = _objective(likelihoods[active], trial, strength)
        # At the optimum the objective only moves by rounding: that must not count as a fall.
        slack = 1e-14 * (1 + value[active].abs())
        accepted = (reached >= value[active] - slack)[:, None]
        logits[active] = torch.where(accepted, trial, here)
        value[active] = torch.where(accepted[:, 0], reached, value[active])
        rate[active] = rate[active] * torch.where(accepted, 1.3, 0.4)
        residual = (current * direction).abs().amax(-1) / (likelihoods.shape[1] - strength)
        active = active[residual > tolerance]
    raise NotConverged(
        f"entropic_map: {counted(len(active), 'sequence')} did not reach tolerance {tolerance:g} "
        f"at strength {strength:g} in {max_steps} steps"
    )


def _objective(
    likelihoods: Float64[Tensor, "batch step component"],
    logits: Float64[Tensor, "batch component"],
    strength: float,
) -> Float64[Tensor, " batch"]:
    weights = logits.softmax(-1)
    entropy = -(weights * logits.log_softmax(-1)).sum(-1)
    return log_likelihood_at(likelihoods, weights) + strength * entropy


@register_estimator
class Entropic(Estimator):
    """Maximum likelihood with an entropy bonus of strength s."""

    name, label = "entropic", "entropy-regularised maximum likelihood"
    constants = (Constant("strength", "s", low=0.05, high=200),)
    rank = 31
    style = Style("#4ade80", "P", "-")
    grid_points = 13
    tolerance = 1e-2

    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        return maximise_regularised(evidence, constants["strength"], COMPARING_TOLERANCE)
