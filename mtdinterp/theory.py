"""What the paper proves about one-step mirror descent, as numbers that can be checked.

First-order equivalence with the posterior mean (Theorem first_order_equivalence), relative
smoothness at the uniform point (Theorem L_and_eta_uniform, with sharper constants), linear growth
of the gradient (Lemma score_asymptotics).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import (
    ArrayLike,
    as_concentration,
    as_float,
    check_count,
    check_number,
    check_order,
)
from mtdinterp.estimators.likelihood import gradient_at, lag_likelihoods, uniform_for
from mtdinterp.task import MTDTask


def gradient_at_uniform(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch lag"]:
    """g = ∇ℓ at uniform weights, which is order·Σ_t γ_t."""
    likelihoods = lag_likelihoods(transition, tokens, order)
    return gradient_at(likelihoods, uniform_for(likelihoods))


def hessian_at(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, "batch lag lag"]:
    """∇²(-ℓ) = Σ_t c_t c_tᵀ / (w·c_t)² (paper, eq. hessian_f_decomp): positive semi-definite."""
    scaled = likelihoods / torch.einsum("btg,bg->bt", likelihoods, weights)[..., None]
    return torch.einsum("btg,bth->bgh", scaled, scaled)


def equivalent_learning_rate(order: int, concentration: float = 1.0) -> float:
    """The η at which one-step mirror descent and the posterior mean agree to first order: 1/(α·m +
    1).

    A prior with a different concentration for every lag has no such η: its mean is not uniform.
    """
    return 1 / (
        check_number("concentration", concentration, minimum=0, exclusive=True) * check_order(order)
        + 1
    )


def theory_beta(order: int, length: int, concentration: float = 1.0) -> float:
    """β = η·m·(T-m) at the equivalent learning rate."""
    check_order(order, length)
    return equivalent_learning_rate(order, concentration) * order * (length - order)


def first_order_mirror_descent(
    gradient: ArrayLike, learning_rate: float
) -> Float64[Tensor, "batch lag"]:
    """softmax(η·g) to first order in g: 1/m + (η/m)·(g - mean g) (Proposition md_taylor)."""
    g = as_float("gradient", gradient)
    order = g.shape[-1]
    return 1 / order + learning_rate / order * (g - g.mean(-1, keepdim=True))


def first_order_posterior_mean(
    gradient: ArrayLike, concentration: ArrayLike | float = 1.0
) -> Float64[Tensor, "batch lag"]:
    """The posterior mean to first order in g: prior mean + prior covariance · g (Proposition
    bayes_taylor)."""
    g = as_float("gradient", gradient)
    alpha = as_concentration(concentration, g.shape[-1])
    mean = alpha / alpha.sum()
    covariance = (torch.diag(mean) - torch.outer(mean, mean)) / (alpha.sum() + 1)
    return mean + g @ covariance


@dataclass(frozen=True)
class Smoothness:
    """Relative smoothness of -ℓ against the entropy potential at uniform weights, and its bounds.

    `full` and `tangent` are the measured constants of each sequence in the full space and on the
    simplex's tangent space, where the iterates live. At the uniform point ∇²Ψ = m·I. Bounds,
    loosest first: the paper's (T-m)·m², which drops that factor m; the full space's (T-m)·m; the
    tangent space's (T-m)·(m-1). `hessian_bound` is the paper's bound (T-m)·m/c_min² on ‖∇²ℓ‖ over
    the whole simplex, infinite where a transition in use has probability zero.
    """

    full: Float64[Tensor, " batch"]
    tangent: Float64[Tensor, " batch"]
    paper_bound: float
    full_bound: float
    tangent_bound: float
    hessian_bound: Float64[Tensor, " batch"]


def smoothness_at_uniform(transition: ArrayLike, tokens: ArrayLike, order: int) -> Smoothness:
    """Measure the relative-smoothness constant of each sequence at uniform weights."""
    likelihoods = lag_likelihoods(transition, tokens, order)
    _, steps, order = likelihoods.shape
    relative = hessian_at(likelihoods, uniform_for(likelihoods)) / order
    project = torch.eye(order, dtype=torch.float64) - 1 / order
    return Smoothness(
        full=torch.linalg.eigvalsh(relative)[:, -1],
        tangent=torch.linalg.eigvalsh(project @ relative @ project)[:, -1],
        paper_bound=float(steps * order**2),
        full_bound=float(steps * order),
        tangent_bound=float(steps * (order - 1)),
        hessian_bound=steps * order / likelihoods.flatten(1).amin(1) ** 2,
    )


@dataclass(frozen=True)
class GradientGrowth:
    """The mean gradient at uniform weights against the number of observed transitions N = T - m.

    `slope` is the least-squares slope of each lag's gradient in N, `r_squared` how linear it is.
    """

    steps: Float64[Tensor, " length"]
    gradient: Float64[Tensor, "length lag"]
    stderr: Float64[Tensor, "length lag"]
    slope: Float64[Tensor, " lag"]
    r_squared: Float64[Tensor, " lag"]


def gradient_growth(
    task: MTDTask, weights: ArrayLike, lengths: Sequence[int], n_sequences: int = 500, seed: int = 0
) -> GradientGrowth:
    """Measure how the expected gradient grows with the length for sequences of the given true
    weights."""
    if len(lengths) < 2:
        raise ValueError(f"lengths: expected at least two, got {list(lengths)}")
    data = task.sample(
        check_count("n_sequences", n_sequences, minimum=2), max(lengths), seed, weights=weights
    )
    gradients = torch.stack(
        [
            gradient_at_uniform(task.transition, data.tokens[:, :length], task.order)
            for length in lengths
        ]
    )
    steps = torch.tensor([float(length - task.order) for length in lengths], dtype=torch.float64)
    mean, stderr = gradients.mean(1), gradients.std(1) / n_sequences**0.5
    design = torch.stack([steps, torch.ones_like(steps)], dim=1)
    solution = torch.linalg.lstsq(design, mean).solution
    residual = (mean - design @ solution).square().sum(0)
    spread = (mean - mean.mean(0)).square().sum(0)
    return GradientGrowth(steps, mean, stderr, solution[0], 1 - residual / spread)
