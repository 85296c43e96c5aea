"""The training loss of a model: the whole-step kernel if it applies, layer by layer if not."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_option
from mtdinterp.models.lens import LensTransformer
from mtdinterp.models.output_loss import loss_of_outputs
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
