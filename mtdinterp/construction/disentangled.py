"""One and two steps of mirror descent as weights of the disentangled transformer (single head, d_R
= m).

Offsets are i - j, and lag g is offset g. Layer l of the paper is attention[l-1].
"""

import torch
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_number
from mtdinterp.construction.parts import check_mask, check_problem, log_transition
from mtdinterp.models import DisentangledConfig, DisentangledTransformer


def one_step(
    transition: ArrayLike,
    order: int,
    length: int,
    beta: float,
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> DisentangledTransformer:
    """Three layers: at the last position the output is Σ_g softmax(β·Γ)_g·π[y_{T-g}].

    The paper's Proposition transformer_implementation, with its off-by-one put right: the output at
    the last position T-1 is the distribution of the token that comes next.
    """
    matrix, order, length, delta = check_problem(transition, order, length, delta)
    beta = check_number("beta", beta)
    model = _blank(matrix, order, length, n_layers=3)
    with torch.no_grad():
        _layer_of_responsibilities(model, matrix, order, delta)
        _mask_first_positions(model, 2, order, delta)
        _attend_to_lags(model, 3, order, delta)
        _read_by_lag(model, 3, "L2.L1.lag", order, beta)
        model.W_U[model.stream["L3.token"]] = matrix
    return _finished(model, dtype)


def two_step(
    transition: ArrayLike,
    order: int,
    length: int,
    beta_first: float,
    sharpness: float,
    beta_mean: float,
    beta_reweighted: float,
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> DisentangledTransformer:
    """Five layers: the output is Σ_g softmax(c₁·Γ + c₂·Γ²)_g·π[y_{T-g}], two steps of mirror
    descent.

    Γ² = Σ_i softmax_i(-a·w¹·γ_i)·γ_i with w¹ = softmax(β₁·Γ); see `estimators.reweighted` for why.
    `beta_first`, `sharpness`, `beta_mean`, `beta_reweighted` are β₁, a, c₁, c₂.
    """
    matrix, order, length, delta = check_problem(transition, order, length, delta)
    names = ("beta_first", "sharpness", "beta_mean", "beta_reweighted")
    values = (beta_first, sharpness, beta_mean, beta_reweighted)
    beta_first, sharpness, beta_mean, beta_reweighted = map(check_number, names, values)
    # Layer 4's scores lie between -a and 0 (above 0 for a < 0) and its mask is -δ.
    check_mask(delta, abs(sharpness))
    model = _blank(matrix, order, length, n_layers=5)
    with torch.no_grad():
        _layer_of_responsibilities(model, matrix, order, delta)
        _mask_first_positions(model, 2, order, delta)
        # Layer 3 attends with w¹ = softmax(β₁·Γ) and writes that attention into its lag block.
        _attend_to_lags(model, 3, order, delta)
        _read_by_lag(model, 3, "L2.L1.lag", order, beta_first)
        model.attention[2].R_V[0, :order] = torch.eye(order, dtype=torch.float64)
        # Layer 4: the last position's w¹ against every position's γ, falling with how well w¹
        # explains it.
        reads = model.streams[3]
        model.attention[3].W_A[0, reads["L3.lag"], reads["L1.lag"]] = -sharpness * torch.eye(
            order, dtype=torch.float64
        )
        _mask_first_positions(model, 4, order, delta)
        # Layer 5 mixes the plain and the re-weighted average.
        _attend_to_lags(model, 5, order, delta)
        _read_by_lag(model, 5, "L2.L1.lag", order, beta_mean)
        _read_by_lag(model, 5, "L4.L1.lag", order, beta_reweighted)
        model.W_U[model.stream["L5.token"]] = matrix
    return _finished(model, dtype)


def _layer_of_responsibilities(
    model: DisentangledTransformer, transition: Tensor, order: int, delta: float
) -> None:
    """Layer 1: attention *is* γ, and the lag block stores it.

    score[i, j] = log π[y_j, y_i] ± δ, with +δ on offsets 1..m, so the softmax over the m lags is
    π[y_{i-g}, y_i] / Σ_h π[y_{i-h}, y_i] = γ_i(g); R_V[g] = e_g writes it to coordinate g.
    """
    attention = model.attention[0]
    attention.W_A[0] = log_transition(transition).T
    attention.R_A[0] = -delta
    attention.R_A[0, 1 : order + 1] = delta
    attention.R_V[0, 1 : order + 1] = torch.eye(order, dtype=torch.float64)


def _mask_first_positions(
    model: DisentangledTransformer, layer: int, order: int, delta: float
) -> None:
    """Hide positions 0..m-1, where no transition was observed, from the last position.

    The mask is relative: offsets above T-1-m, by -δ on the token block, whose entries add to one.
    With no other score this is uniform attention over positions m..T-1: layer 2, whose lag block is
    then Γ.
    """
    last_visible = model.config.length - 1 - order
    model.attention[layer - 1].R_A[0, last_visible + 1 :, model.stream["token"]] = -delta


def _attend_to_lags(model: DisentangledTransformer, layer: int, order: int, delta: float) -> None:
    """Confine attention to the m tokens that the next one can come from: lag g of it is offset
    g-1."""
    table = model.attention[layer - 1].R_A[0]
    table[:, model.stream["token"]] = -delta
    table[:order, model.stream["token"]] = delta


def _read_by_lag(
    model: DisentangledTransformer, layer: int, block: str, order: int, scale: float
) -> None:
    """Add `scale` times coordinate g of a block to the score at offset g-1."""
    identity = torch.eye(order, dtype=torch.float64)
    model.attention[layer - 1].R_A[0, :order, model.stream[block]] += scale * identity


def _blank(transition: Tensor, order: int, length: int, n_layers: int) -> DisentangledTransformer:
    """A float64 model of zeros, single head, d_R = m, bound to its length."""
    config = DisentangledConfig(
        vocab_size=transition.shape[0],
        length=length,
        n_layers=n_layers,
        d_rel=order,
        exact_length=True,
    )
    model = DisentangledTransformer(config).double()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def _finished(model: DisentangledTransformer, dtype: torch.dtype) -> DisentangledTransformer:
    return model.to(dtype).eval()
