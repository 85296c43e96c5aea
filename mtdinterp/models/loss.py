"""The training loss of a model: fused into one call where nobody watches, step by step
otherwise."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_option
from mtdinterp.models.lens import LensTransformer
from mtdinterp.native import use_kernels
from mtdinterp.native.step import LOSSES, can_step, fused_loss


def prediction_loss(
    model: LensTransformer,
    tokens: ArrayLike,
    targets: ArrayLike,
    loss: str = "mse",
) -> Float[Tensor, ""]:
    """Mean loss of the model's outputs against target distributions.

    Targets [batch, vocab] are for the last position, which is then all that the last layer
    computes; targets [batch, pos, vocab] are for every position. `mse` takes the outputs as they
    are, `cross-entropy` their softmax.
    """
    check_option("loss", loss, LOSSES)
    sequence = model.check_tokens(tokens)
    if not isinstance(targets, Tensor):
        targets = torch.as_tensor(np.asarray(targets), dtype=model.W_U.dtype)
    last_only = targets.ndim == 2
    wanted = (len(sequence), *(() if last_only else (sequence.shape[1],)), model.config.vocab_size)
    if tuple(targets.shape) != wanted:
        raise ValueError(f"targets: expected shape {list(wanted)}, got {list(targets.shape)}")
    # What the kernel cannot give: a look inside, a hidden layer, gradients of the targets.
    if use_kernels() and not (model.is_watched or model.unembed.d_mlp or targets.requires_grad):
        layers = model.folded_layers()
        if can_step(layers, model.W_U, sequence, last_only):
            return fused_loss(
                layers, model.W_U, sequence, targets[:, None] if last_only else targets, loss
            )
    return loss_of_outputs(model(sequence, last_only=last_only), targets, loss)


def loss_of_outputs(
    outputs: Float[Tensor, "*batch vocab"], targets: Float[Tensor, "*batch vocab"], loss: str
) -> Float[Tensor, ""]:
    """The definition: mean squared error over everything, or mean cross-entropy of a softmax."""
    targets = targets.to(outputs)
    if check_option("loss", loss, LOSSES) == "mse":
        return F.mse_loss(outputs, targets)
    return -(targets * torch.log_softmax(outputs, dim=-1)).sum(-1).mean()
