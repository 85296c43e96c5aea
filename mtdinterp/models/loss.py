"""The training loss of a model: the whole-step kernel if it applies, layer by layer if not."""

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_option
from mtdinterp.models.lens import LensTransformer
from mtdinterp.native.step import LOSSES, fused_loss


def prediction_loss(
    model: LensTransformer,
    tokens: ArrayLike,
    targets: ArrayLike,
    loss: str = "mse",
) -> Float[Tensor, ""]:
    """Mean loss of the model's outputs against target distributions.

    Args:
        model: a model of any architecture.
        tokens: integer tokens, [batch, pos].
        targets: distributions [batch, vocab] for the last position, which is then the only one
            that the last layer computes, or [batch, pos, vocab] for every position.
        loss: "mse" of the outputs as they are, or "cross-entropy" of their softmax.

    Returns:
        The loss, a scalar.
    """
    check_option("loss", loss, LOSSES)
    sequence = model.check_tokens(tokens)
    if not isinstance(targets, Tensor):
        targets = torch.as_tensor(np.asarray(targets), dtype=model.W_U.dtype)
    last_only = targets.ndim == 2
    batch, length = sequence.shape
    vocab_size = model.config.vocab_size
    expected = [batch, vocab_size] if last_only else [batch, length, vocab_size]
    if list(targets.shape) != expected:
        raise ValueError(f"targets: expected shape {expected}, got {list(targets.shape)}")
    whole = model.attention_path(training=True).name == "whole step"
    # The kernel has no gradient for the targets, and nothing to average over an empty batch.
    if whole and batch and not targets.requires_grad:
        by_query = targets[:, None] if last_only else targets
        return fused_loss(model.folded_layers(), model.W_U, sequence, by_query, loss)
    return loss_of_outputs(model(sequence, last_only=last_only), targets, loss)


def loss_of_outputs(
    outputs: Float[Tensor, "*batch vocab"], targets: Float[Tensor, "*batch vocab"], loss: str
) -> Float[Tensor, ""]:
    """The definition of the loss: mean squared error, or mean cross-entropy of a softmax.

    Args:
        outputs: the model's outputs, [..., vocab].
        targets: target distributions of the same shape.
        loss: "mse" or "cross-entropy".

    Returns:
        The loss, a scalar.
    """
    targets = targets.to(outputs)
    if check_option("loss", loss, LOSSES) == "mse":
        return F.mse_loss(outputs, targets)
    return -(targets * torch.log_softmax(outputs, dim=-1)).sum(-1).mean()
