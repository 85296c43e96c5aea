"""One step of mirror descent whose layers 1 and 2 differ from the plain construction's.

Trained models leak: layer 1 attends to positions off the lags, and layer 2 makes up for it. They
also weigh positions by their token. The models here do so by known amounts. They are the positive
controls for what the probes say about such models.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_float, as_tokens, check_number, check_option
from mtdinterp.construction.one_step_disentangled import one_step
from mtdinterp.construction.one_step_standard import one_step_standard
from mtdinterp.construction.parts import check_problem
from mtdinterp.models import DisentangledTransformer, StandardTransformer
from mtdinterp.models.lens import LensTransformer

BUILDERS: dict[str, Callable[..., LensTransformer]] = {
    "disentangled": one_step,
    "standard": one_step_standard,
}
"""The plain construction of each architecture."""


def leaky_one_step(
    transition: ArrayLike,
    order: int,
    length: int,
    beta: float,
    leak: float,
    lag_mass: ArrayLike,
    architecture: str = "disentangled",
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> LensTransformer:
    """Layer 1 attends partly off the lags, and layer 2 makes up for the mean loss.

    Layer 1 of the plain construction has score log π[y_j, y_i] on the lags and masks all other
    positions. Here other positions have the score log π[y_j, y_i] + log(leak). So the attention on
    the lags at position i is γ_i times the lag mass

        M_i = Σ_lags π[y_j, y_i] / (Σ_lags π[y_j, y_i] + leak · Σ_others π[y_j, y_i]).

    Layer 2 attends to position i in proportion to 1 / lag_mass[i]. If that is the mean of M_i, the
    product of both is the same at every position on average. Layer 3 divides β by the size of
    this product, so the model stays near one step at β.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        order: the number of lags m.
        length: the only length that the model accepts.
        beta: β.
        leak: weight of a position off the lags, relative to one on the lags; above 0.
        lag_mass: the mean lag mass at positions m..T-1; see `leaky_lag_mass`.
        architecture: "disentangled" or "standard".
        delta: size of the masks' scores.
        dtype: data type of the weights.

    Returns:
        The model.
    """
    matrix, order, length, delta = check_problem(transition, order, length, delta)
    leak = check_number("leak", leak, minimum=0, exclusive=True)
    mass = as_float("lag_mass", lag_mass)
    if mass.shape != (length - order,):
        raise ValueError(
            f"lag_mass: expected one value for each of the {length - order} positions with "
            f"evidence, got shape {tuple(mass.shape)}"
        )
    if not ((mass > 0) & (mass <= 1)).all():
        raise ValueError("lag_mass: expected values above 0 and at most 1")
    # Layer 2 attends to position i with h / (N·lag_mass[i]), where h is the harmonic mean.
    harmonic_mean = 1 / (1 / mass).mean().item()
    model = _plain(architecture, matrix, order, length, beta / harmonic_mean, delta)

    off_lags = torch.ones(length, dtype=torch.bool)
    off_lags[1 : order + 1] = False
    # The plain construction has +δ on the lags and -δ elsewhere.
    leaking = off_lags.double() * (2 * delta + math.log(leak))
    # Position i is at offset T-1-i of the last query.
    making_up = torch.zeros(length, dtype=torch.float64)
    making_up[: length - order] = -mass.flip(0).log()
    with torch.no_grad():
        _add_by_offset(model, 1, leaking)
        _add_by_offset(model, 2, making_up)
    return model.to(dtype).eval()


def leaky_lag_mass(
    transition: ArrayLike, tokens: ArrayLike, order: int, leak: float
) -> Float64[Tensor, "batch step"]:
    """Layer 1's attention on the lags in `leaky_one_step`, at positions m..T-1.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags m.
        leak: weight of a position off the lags, relative to one on the lags.

    Returns:
        M_i of every sequence; its mean over sequences is the `lag_mass` of `leaky_one_step`.
    """
    matrix, order, _, _ = check_problem(transition, order, order + 1, 1.0)
    sequence: Int[Tensor, "batch pos"] = as_tokens(tokens, matrix.shape[0]).cpu()
    length = sequence.shape[1]
    positions = torch.arange(length)
    offsets = positions[:, None] - positions
    explained = matrix[sequence[:, None, :], sequence[:, :, None]]  # [batch, query, key]
    on_lags = (explained * ((offsets >= 1) & (offsets <= order))).sum(-1)
    visible = (explained * (offsets >= 0)).sum(-1)
    mass = on_lags / (on_lags + leak * (visible - on_lags))
    return mass[:, order:]


def token_weighted_one_step(
    transition: ArrayLike,
    order: int,
    length: int,
    beta: float,
    token_weights: ArrayLike,
    architecture: str = "disentangled",
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> LensTransformer:
    """Layer 2 weighs each position by its token: the last weights are softmax(β·Σ_i v_i·γ_i).

    v_i = ω[y_i] / Σ_j ω[y_j] over positions m..T-1. The score of layer 2 is log ω of the key's
    token, for every query.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        order: the number of lags m.
        length: the only length at which the model is exact.
        beta: β.
        token_weights: ω [vocab], all above 0.
        architecture: "disentangled" or "standard".
        delta: size of the masks' scores.
        dtype: data type of the weights.

    Returns:
        The model.
    """
    matrix, order, length, delta = check_problem(transition, order, length, delta)
    weights = as_float("token_weights", token_weights)
    if weights.shape != (matrix.shape[0],):
        raise ValueError(
            f"token_weights: expected one value for each of the {matrix.shape[0]} tokens, got "
            f"shape {tuple(weights.shape)}"
        )
    if not (weights > 0).all():
        raise ValueError("token_weights: expected values above 0")
    model = _plain(architecture, matrix, order, length, beta, delta)
    with torch.no_grad():
        _add_by_token(model, weights.log())
    return model.to(dtype).eval()


def _plain(
    architecture: str, matrix: Tensor, order: int, length: int, beta: float, delta: float
) -> LensTransformer:
    """The plain construction in float64."""
    build = BUILDERS[check_option("architecture", architecture, BUILDERS)]
    return build(matrix, order, length, beta, delta=delta, dtype=torch.float64)


def _add_by_offset(model: LensTransformer, layer: int, scores: Float64[Tensor, " length"]) -> None:
    """Add a score to every offset of layer 1 or 2, for every query token.

    Args:
        model: a plain construction, changed in place.
        layer: 1 or 2.
        scores: what is added, by offset.
    """
    if isinstance(model, DisentangledTransformer):
        # The token block of a query is one-hot, so its entries add to one.
        model.attention[layer - 1].R_A[0, :, model.stream["token"]] += scores[:, None]
    elif isinstance(model, StandardTransformer):
        # The dimension of the query that holds a constant; see `one_step_standard`.
        constant = model.config.vocab_size if layer == 1 else 0
        model.attention[layer - 1].R_K[0, :, constant] += scores


def _add_by_token(model: LensTransformer, scores: Float64[Tensor, " vocab"]) -> None:
    """Add a score to every key token in layer 2, for every query token.

    Args:
        model: a plain construction, changed in place.
        scores: what is added, by the key's token.
    """
    token = model.stream["token"]
    if isinstance(model, DisentangledTransformer):
        model.attention[1].W_A[0, token, token] += scores
    elif isinstance(model, StandardTransformer):
        # Dimension 0 of layer 2's head holds the constant of its mask; dimension 1 is unused.
        second = model.attention[1]
        second.W_Q[0, token, 1] = second.d_head**0.5
        second.W_K[0, token, 1] = scores
