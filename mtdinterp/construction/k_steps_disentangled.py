"""Any number of mirror-descent steps as weights of the disentangled transformer."""

import torch

from mtdinterp.algorithms.k_steps import KStepConstants, check_constants
from mtdinterp.checks import ArrayLike
from mtdinterp.construction.disentangled_layers import (
    attend_to_lags,
    blank_model,
    finished,
    mask_first_positions,
    read_by_lag,
    write_responsibilities,
)
from mtdinterp.construction.parts import check_mask, check_problem
from mtdinterp.models import DisentangledTransformer


def k_step(
    transition: ArrayLike,
    order: int,
    length: int,
    constants: KStepConstants,
    delta: float = 100.0,
    dtype: torch.dtype = torch.float32,
) -> DisentangledTransformer:
    """2k+1 layers: at the last position the output is Σ_g w^k_g·π[y_{T-g}].

    Layer 1 writes γ and layer 2 averages it. Every further step has two layers: an odd one attends
    with the weights so far and writes that attention, and an even one averages γ again, with less
    weight where those weights explain it well. See `mtdinterp.algorithms.k_steps`.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        order: the number of lags m.
        length: the only length at which the model is exact.
        constants: sharpnesses and reads; their number decides k.
        delta: size of the masks' scores.
        dtype: data type of the weights.

    Returns:
        The model.
    """
    matrix, order, length, delta = check_problem(transition, order, length, delta)
    sharpness, reads = check_constants(constants)
    # The scores of a layer that averages again lie between -a and 0, and its mask is -δ.
    check_mask(delta, max(map(abs, sharpness), default=0.0))
    model = blank_model(matrix, order, length, n_layers=2 * len(reads) + 1)
    with torch.no_grad():
        write_responsibilities(model, matrix, order, delta)
        mask_first_positions(model, 2, order, delta)
        for step, row in enumerate(reads, start=1):
            layer = 2 * step + 1
            attend_to_lags(model, layer, order, delta)
            for average, scale in enumerate(row, start=1):
                read_by_lag(model, layer, f"L{2 * average}.L1.lag", order, scale)
            if step < len(reads):
                _average_again(model, layer, order, sharpness[step - 1])
                mask_first_positions(model, layer + 1, order, delta)
        model.W_U[model.stream[f"L{2 * len(reads) + 1}.token"]] = matrix
    return finished(model, dtype)


def _average_again(
    model: DisentangledTransformer, layer: int, order: int, sharpness: float
) -> None:
    """Let a layer write its weights, and the next one turn away from what they explain.

    Args:
        model: changed in place.
        layer: the layer whose attention is the weights so far, from 1.
        order: the number of lags m.
        sharpness: a.
    """
    identity = torch.eye(order, dtype=torch.float64)
    model.attention[layer - 1].R_V[0, :order] = identity
    reads = model.streams[layer]
    model.attention[layer].W_A[0, reads[f"L{layer}.lag"], reads["L1.lag"]] = -sharpness * identity
