"""The peak of the posterior density, by Newton's method."""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.evidence import log_likelihood_at, responsibilities_at, uniform_for


def peak_weights(
    likelihoods: Float64[Tensor, "batch step lag"],
    alpha: Float64[Tensor, " lag"],
    tolerance: float = 1e-3,
    max_steps: int = 50,
) -> Float64[Tensor, "batch lag"]:
    """Weights near the peak of ℓ(w) + Σ_g α_g·log w_g, the posterior density in logits.

    Newton's method with a step x_g = δw_g/w_g relative to the weights: its matrix Σ_t γ_t·γ_tᵀ +
    diag(α) cannot become singular.

    Args:
        likelihoods: c[t, g] of every sequence.
        alpha: the Dirichlet prior.
        tolerance: the Newton decrement at which to stop. Windows need no exact peak.
        max_steps: Newton steps at the most.

    Returns:
        Positive weights that sum to one.
    """
    weights = uniform_for(likelihoods)

    def objective(logits: Tensor) -> Tensor:
        return log_likelihood_at(likelihoods, logits.exp()) + logits @ alpha

    logits = weights.log()
    value = objective(logits)
    for _ in range(max_steps):
        shares = responsibilities_at(likelihoods, logits.exp())
        gradient = shares.sum(1) + alpha
        matrix = shares.mT @ shares + torch.diag(alpha)
        # Solve for the free step and for the direction that keeps the weights' sum, together.
        current = logits.exp()
        free, normal = torch.linalg.solve(matrix, torch.stack([gradient, current], -1)).unbind(-1)
        along = (current * free).sum(-1, keepdim=True) / (current * normal).sum(-1, keepdim=True)
        step = free - along * normal
        decrement = torch.einsum("bg,bgh,bh->b", step, matrix, step)
        if (decrement < tolerance).all():
            break
        stride = torch.ones(len(logits), 1, dtype=torch.float64)
        for _ in range(30):
            trial = (logits + stride * step).log_softmax(-1)
            reached = objective(trial)
            fell = (reached < value)[:, None]
            if not fell.any():
                break
            stride = torch.where(fell, stride / 4, stride)
        kept = (reached >= value)[:, None]
        logits = torch.where(kept, trial, logits)
        value = torch.maximum(reached, value)
    # Where the gradient vanishes, no weight is below its share of the prior.
    least = alpha / (likelihoods.shape[1] + alpha.sum())
    weights = torch.maximum(logits.exp(), least)
    return weights / weights.sum(-1, keepdim=True)
