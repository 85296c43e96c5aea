"""The likelihood of mixture weights, and what follows from it in closed form.

c[t, g] = π[y_{t-g}, y_t] for positions t = order..length-1; the log-likelihood of weights w is
ℓ(w) = Σ_t log Σ_g w_g c[t, g]. Every estimator starts from c.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_distribution, as_tokens, as_transition, check_order

SMALLEST_WEIGHT = 1e-300
"""A weight that underflowed still explains a token that no other lag can: keep the division finite.
"""


def lag_likelihoods(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch step lag"]:
    """c[t, g], the probability of the token at t if lag g produced it; step 0 is position
    `order`."""
    matrix = as_transition(transition)
    sequence = as_tokens(tokens, matrix.shape[0])
    order = check_order(order, sequence.shape[1])
    # Window t holds the `order` tokens before position t, oldest first: reversed, index g-1 is lag
    # g.
    sources = sequence[:, :-1].unfold(1, order, 1).flip(-1)
    likelihoods = matrix[sources, sequence[:, order:, None]]
    impossible = (likelihoods.sum(-1) == 0).nonzero()
    if len(impossible):
        row, step = impossible[0].tolist()
        raise ValueError(
            f"tokens: sequence {row} is impossible under this transition matrix: no lag of "
            f"1..{order} can produce its token at position {order + step}"
        )
    return likelihoods


def uniform_for(likelihoods: Float64[Tensor, "batch step lag"]) -> Float64[Tensor, "batch lag"]:
    """Uniform weights for every sequence: where every estimator starts."""
    batch_size, _, order = likelihoods.shape
    return torch.full((batch_size, order), 1 / order, dtype=torch.float64)


def responsibilities_at(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, "batch step lag"]:
    """The posterior of each step's lag given the weights: w_g c[t, g] / Σ_h w_h c[t, h]."""
    joint = likelihoods * weights.clamp_min(SMALLEST_WEIGHT)[:, None, :]
    return joint / joint.sum(-1, keepdim=True)


def log_likelihood_at(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, " batch"]:
    """ℓ(w) = Σ_t log Σ_g w_g c[t, g]."""
    return torch.einsum("btg,bg->bt", likelihoods, weights.clamp_min(SMALLEST_WEIGHT)).log().sum(-1)


def gradient_at(
    likelihoods: Float64[Tensor, "batch step lag"], weights: Float64[Tensor, "batch lag"]
) -> Float64[Tensor, "batch lag"]:
    """∇ℓ(w)_g = Σ_t c[t, g] / Σ_h w_h c[t, h]."""
    mixed = torch.einsum("btg,bg->bt", likelihoods, weights.clamp_min(SMALLEST_WEIGHT))
    return torch.einsum("btg,bt->bg", likelihoods, 1 / mixed)


def uniform_weights(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch lag"]:
    """The estimate before any evidence: 1/order for every lag."""
    sequence = as_tokens(tokens, as_transition(transition).shape[0])
    if check_order(order) > sequence.shape[1]:
        raise ValueError(f"order: expected at most the {sequence.shape[1]} tokens, got {order}")
    return torch.full((len(sequence), order), 1 / order, dtype=torch.float64)


def responsibilities(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch step lag"]:
    """γ_t(g): the posterior of lag g at each position order..length-1 under uniform weights."""
    likelihoods = lag_likelihoods(transition, tokens, order)
    return likelihoods / likelihoods.sum(-1, keepdim=True)


def mean_responsibilities(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch lag"]:
    """Γ: the average of γ over positions. One mirror-descent step is softmax(β·Γ)."""
    return responsibilities(transition, tokens, order).mean(1)


def log_likelihood(
    transition: ArrayLike, tokens: ArrayLike, weights: ArrayLike
) -> Float64[Tensor, " batch"]:
    """ℓ(w) of each sequence's own weights."""
    mixture = as_distribution("weights", weights)
    likelihoods = lag_likelihoods(transition, tokens, mixture.shape[-1])
    if mixture.shape != (len(likelihoods), likelihoods.shape[-1]):
        raise ValueError(
            f"weights: expected shape [{len(likelihoods)}, lag], got {tuple(mixture.shape)}"
        )
    return log_likelihood_at(likelihoods, mixture)
