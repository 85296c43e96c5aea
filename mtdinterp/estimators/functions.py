"""The quantities of `Evidence` as functions of plain arrays: `(transition, tokens, …)`.

Thin wrappers: they check their arguments, build the evidence and call its methods.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_distribution, as_tokens, as_transition, check_order
from mtdinterp.evidence import evidence_of, lag_rows, mix_rows


def lag_likelihoods(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch step lag"]:
    """c[t, g]: the probability of the token at t if lag g produced it; step 0 is `order`.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.

    Returns:
        Likelihoods of positions order..pos-1.
    """
    return evidence_of(transition, tokens, order).likelihoods


def uniform_weights(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch lag"]:
    """The estimate before any evidence: 1/order for every lag.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.

    Returns:
        Uniform weights for every sequence.
    """
    sequence = as_tokens(tokens, as_transition(transition).shape[0])
    if check_order(order) > sequence.shape[1]:
        raise ValueError(f"order: expected at most the {sequence.shape[1]} tokens, got {order}")
    return torch.full((len(sequence), order), 1 / order, dtype=torch.float64)


def responsibilities(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch step lag"]:
    """γ_t(g): the posterior of lag g at each position under uniform weights.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.

    Returns:
        Responsibilities of positions order..pos-1.
    """
    return evidence_of(transition, tokens, order).responsibilities()


def mean_responsibilities(
    transition: ArrayLike, tokens: ArrayLike, order: int
) -> Float64[Tensor, "batch lag"]:
    """Γ: the mean of γ over positions. One mirror-descent step is softmax(β·Γ).

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.

    Returns:
        Γ of every sequence.
    """
    return evidence_of(transition, tokens, order).mean_responsibilities


def log_likelihood(
    transition: ArrayLike, tokens: ArrayLike, weights: ArrayLike
) -> Float64[Tensor, " batch"]:
    """ℓ(w) of each sequence with its own weights.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        weights: one row of weights per sequence, [batch, lag].

    Returns:
        The log-likelihood of every sequence.
    """
    mixture = as_distribution("weights", weights)
    evidence = evidence_of(transition, tokens, mixture.shape[-1])
    if mixture.shape != (len(evidence), evidence.n_components):
        raise ValueError(
            f"weights: expected shape [{len(evidence)}, lag], got {tuple(mixture.shape)}"
        )
    return evidence.log_likelihood(mixture)


def predict_next(
    transition: ArrayLike, tokens: ArrayLike, weights: ArrayLike
) -> Float64[Tensor, "batch vocab"]:
    """p(next = j) = Σ_g weights[g-1] · transition[token g back, j], the token after the last.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        weights: one row of weights per sequence, [batch, lag].

    Returns:
        The next-token distribution of every sequence.
    """
    matrix = as_transition(transition)
    sequence = as_tokens(tokens, matrix.shape[0])
    mixture = as_distribution("weights", weights)
    order = mixture.shape[-1]
    if mixture.shape != (len(sequence), order):
        raise ValueError(
            f"weights: expected shape [{len(sequence)}, lag], got {tuple(mixture.shape)}"
        )
    if order > sequence.shape[1]:
        raise ValueError(
            f"weights: {order} lags need at least as many tokens, got {sequence.shape[1]}"
        )
    return mix_rows(lag_rows(matrix.expand(order, -1, -1), sequence), mixture)
