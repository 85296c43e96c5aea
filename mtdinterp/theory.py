"""What the paper proves about one-step mirror descent, as numbers that can be checked.

First-order equivalence with the posterior mean (Theorem first_order_equivalence), relative
smoothness at the uniform point (Theorem L_and_eta_uniform, with sharper constants), and linear
growth of the gradient (Lemma score_asymptotics). Likelihoods and gradients come from
`mtdinterp.evidence`.
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
from mtdinterp.estimators.mirror_descent import theory_beta as beta_of_steps
from mtdinterp.evidence import evidence_of, mixed_likelihoods
from mtdinterp.tasks import Task


def gradient_at_uniform(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch lag"]:
    """g = ∇ℓ at uniform weights, which is m·Σ_t γ_t.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags m.

    Returns:
        The gradient of every sequence.
    """
    evidence = evidence_of(transition, tokens, order)
    return evidence.gradient(evidence.uniform)


def hessian_at(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, "batch lag lag"]:
    """∇²(-ℓ) = Σ_t c_t c_tᵀ / (w·c_t)² (paper, eq. hessian_f_decomp): positive semi-definite."""
    scaled = likelihoods / mixed_likelihoods(likelihoods, weights)[..., None]
    return torch.einsum("btg,bth->bgh", scaled, scaled)


def equivalent_learning_rate(order: int, concentration: float = 1.0) -> float:
    """η = 1/(α·m + 1), at which one step agrees with the posterior mean to first order.

    A prior with a different concentration for every lag has no such η: its mean is not uniform.
    """
    alpha = check_number("concentration", concentration, minimum=0, exclusive=True)
    return 1 / (alpha * check_order(order) + 1)


def theory_beta(order: int, length: int, concentration: float = 1.0) -> float:
    """β = η·m·(T-m) at the equivalent learning rate.

    Args:
        order: the number of lags m.
        length: tokens per sequence T.
        concentration: α of a symmetric Dirichlet prior.

    Returns:
        β.
    """
    alpha = check_number("concentration", concentration, minimum=0, exclusive=True)
    order = check_order(order, length)
    return beta_of_steps(order, length - order, alpha)


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
    """The posterior mean to first order in g: prior mean + prior covariance · g.

    The paper's Proposition bayes_taylor. The covariance of a Dirichlet prior with mean p and total
    concentration α₀ is (diag(p) - p·pᵀ)/(α₀ + 1).
    """
    g = as_float("gradient", gradient)
    alpha = as_concentration(concentration, g.shape[-1])
    mean = alpha / alpha.sum()
    covariance = (torch.diag(mean) - torch.outer(mean, mean)) / (alpha.sum() + 1)
    return mean + g @ covariance


@dataclass(frozen=True)
class Smoothness:
    """Relative smoothness of -ℓ with respect to the entropy at uniform weights, and its bounds.

    At uniform weights the potential has ∇²Ψ = m·I. The bounds are, from loose to tight, the
    paper's (T-m)·m², which does not use that factor m; (T-m)·m in the full space; and (T-m)·(m-1)
    on the tangent space of the simplex, in which the iterates move.
    """

    full: Float64[Tensor, " batch"]
    """The measured constant of every sequence in the full space."""
    tangent: Float64[Tensor, " batch"]
    """The measured constant of every sequence on the tangent space."""
    paper_bound: float
    full_bound: float
    tangent_bound: float
    hessian_bound: Float64[Tensor, " batch"]
    """The paper's bound (T-m)·m/c_min² on ‖∇²ℓ‖ over the whole simplex; infinite if some c is 0."""


def smoothness_at_uniform(transition: ArrayLike, tokens: ArrayLike, order: int) -> Smoothness:
    """Measure the relative-smoothness constant of every sequence at uniform weights.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags m.

    Returns:
        The measured constants and the bounds on them.
    """
    evidence = evidence_of(transition, tokens, order)
    steps = evidence.n_steps
    order = evidence.n_components
    # Dividing by ∇²Ψ = m·I makes the Hessian's largest eigenvalue the constant.
    relative = hessian_at(evidence.likelihoods, evidence.uniform) / order
    project = torch.eye(order, dtype=torch.float64) - 1 / order
    smallest_likelihood = evidence.likelihoods.flatten(1).amin(1)
    return Smoothness(
        full=torch.linalg.eigvalsh(relative)[:, -1],
        tangent=torch.linalg.eigvalsh(project @ relative @ project)[:, -1],
        paper_bound=float(steps * order**2),
        full_bound=float(steps * order),
        tangent_bound=float(steps * (order - 1)),
        hessian_bound=steps * order / smallest_likelihood**2,
    )


@dataclass(frozen=True)
class GradientGrowth:
    """The mean gradient at uniform weights as a function of the number of observed steps N."""

    steps: Float64[Tensor, " length"]
    """N = T - m for every length."""
    gradient: Float64[Tensor, "length lag"]
    stderr: Float64[Tensor, "length lag"]
    slope: Float64[Tensor, " lag"]
    """Least-squares slope of each lag's gradient in N."""
    r_squared: Float64[Tensor, " lag"]
    """How linear the growth is."""


def gradient_growth(
    task: Task, weights: ArrayLike, lengths: Sequence[int], n_sequences: int = 500, seed: int = 0
) -> GradientGrowth:
    """Measure how the expected gradient grows with the length.

    Args:
        task: the task to draw sequences from.
        weights: their true mixture weights [component].
        lengths: at least two lengths.
        n_sequences: number of sequences; the shorter ones are prefixes of the longest.
        seed: seed for drawing the sequences.

    Returns:
        The mean gradient at every length, and a line through it for every lag.
    """
    if len(lengths) < 2:
        raise ValueError(f"lengths: expected at least two, got {list(lengths)}")
    n_sequences = check_count("n_sequences", n_sequences, minimum=2)
    tokens = task.sample(n_sequences, max(lengths), seed, weights=weights).tokens
    gradients = []
    n_steps = []
    for length in lengths:
        evidence = task.evidence(tokens[:, :length])
        gradients.append(evidence.gradient(evidence.uniform))
        n_steps.append(float(evidence.n_steps))
    stacked = torch.stack(gradients)
    mean = stacked.mean(1)
    stderr = stacked.std(1) / n_sequences**0.5
    steps = torch.tensor(n_steps, dtype=torch.float64)
    design = torch.stack([steps, torch.ones_like(steps)], dim=1)
    solution = torch.linalg.lstsq(design, mean).solution
    residual = (mean - design @ solution).square().sum(0)
    spread = (mean - mean.mean(0)).square().sum(0)
    return GradientGrowth(steps, mean, stderr, solution[0], 1 - residual / spread)
