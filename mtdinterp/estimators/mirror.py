"""Mirror descent with the entropy potential: the exponentiated gradient (paper, eq. eg_update)."""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_count, check_number, check_order
from mtdinterp.estimators.likelihood import gradient_at, lag_likelihoods


def beta_from_learning_rate(learning_rate: float, order: int, length: int) -> float:
    """β = η·m·(T-m): at uniform weights the gradient is m·(T-m)·Γ."""
    check_order(order, length)
    return learning_rate * order * (length - order)


def learning_rate_from_beta(beta: float, order: int, length: int) -> float:
    """The inverse of `beta_from_learning_rate`."""
    check_order(order, length)
    return beta / (order * (length - order))


def mirror_descent(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    learning_rate: float,
    steps: int = 1,
) -> Float64[Tensor, "batch lag"]:
    """`steps` updates w ← w·exp(η·∇ℓ(w)), normalised, from uniform weights."""
    steps = check_count("steps", steps, minimum=0)
    learning_rate = check_number("learning_rate", learning_rate, minimum=0)
    return descend(lag_likelihoods(transition, tokens, order), learning_rate, steps)


def descend(
    likelihoods: Float64[Tensor, "batch step lag"], learning_rate: float, steps: int
) -> Float64[Tensor, "batch lag"]:
    """Mirror descent from the likelihoods, for callers that try many learning rates on one
    batch."""
    batch_size, _, order = likelihoods.shape
    # Weights live as logits: a product of exponentials would overflow, a sum does not.
    logits = torch.zeros(batch_size, order, dtype=torch.float64)
    for _ in range(steps):
        logits = logits + learning_rate * gradient_at(likelihoods, logits.softmax(-1))
        logits = logits - logits.max(-1, keepdim=True).values
    return logits.softmax(-1)
