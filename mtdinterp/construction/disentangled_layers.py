"""Layers that the constructions on the disentangled transformer share (single head, d_R = m).

Offsets are i - j, and lag g is offset g. Layer l of the paper is attention[l-1].
"""

import torch
from torch import Tensor

from mtdinterp.construction.parts import log_transition
from mtdinterp.models import DisentangledConfig, DisentangledTransformer


def write_responsibilities(
    model: DisentangledTransformer, transition: Tensor, order: int, delta: float
) -> None:
    """Layer 1: attention *is* γ, and the lag block stores it.

    score[i, j] = log π[y_j, y_i] ± δ, with +δ on offsets 1..m, so the softmax over the m lags is
    π[y_{i-g}, y_i] / Σ_h π[y_{i-h}, y_i] = γ_i(g); R_V[g] = e_g writes it to coordinate g.

    Args:
        model: changed in place.
        transition: π [vocab, vocab].
        order: the number of lags m.
        delta: size of the mask's scores.
    """
    attention = model.attention[0]
    attention.W_A[0] = log_transition(transition).T
    attention.R_A[0] = -delta
    attention.R_A[0, 1 : order + 1] = delta
    attention.R_V[0, 1 : order + 1] = torch.eye(order, dtype=torch.float64)


def mask_first_positions(
    model: DisentangledTransformer, layer: int, order: int, delta: float
) -> None:
    """Hide positions 0..m-1, where no transition was observed, from the last position.

    The mask is relative: offsets above T-1-m, by -δ on the token block, whose entries add to one.
    With no other score this is uniform attention over positions m..T-1: layer 2, whose lag block is
    then Γ.

    Args:
        model: changed in place.
        layer: from 1.
        order: the number of lags m.
        delta: size of the mask's scores.
    """
    last_visible = model.config.length - 1 - order
    model.attention[layer - 1].R_A[0, last_visible + 1 :, model.stream["token"]] = -delta


def attend_to_lags(model: DisentangledTransformer, layer: int, order: int, delta: float) -> None:
    """Confine attention to the lags of the next token: its lag g is offset g-1.

    Args:
        model: changed in place.
        layer: from 1.
        order: the number of lags m.
        delta: size of the mask's scores.
    """
    table = model.attention[layer - 1].R_A[0]
    table[:, model.stream["token"]] = -delta
    table[:order, model.stream["token"]] = delta


def read_by_lag(
    model: DisentangledTransformer, layer: int, block: str, order: int, scale: float
) -> None:
    """Add `scale` times coordinate g of a block to the score at offset g-1.

    Args:
        model: changed in place.
        layer: from 1.
        block: name of a block of the stream.
        order: the number of lags m.
        scale: factor of the block's coordinates.
    """
    identity = torch.eye(order, dtype=torch.float64)
    model.attention[layer - 1].R_A[0, :order, model.stream[block]] += scale * identity


def blank_model(
    transition: Tensor, order: int, length: int, n_layers: int
) -> DisentangledTransformer:
    """A float64 model of zeros, single head, d_R = m, bound to its length.

    Args:
        transition: π [vocab, vocab], which sets the vocabulary.
        order: the number of lags m.
        length: the only length that the model accepts.
        n_layers: number of layers.

    Returns:
        The model.
    """
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


def finished(model: DisentangledTransformer, dtype: torch.dtype) -> DisentangledTransformer:
    """The model in its final type, in evaluation mode."""
    return model.to(dtype).eval()
