"""The definition of the loss of a model's outputs against target distributions."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mtdinterp.checks import check_option
from mtdinterp.native.step import LOSSES


def loss_by_row(
    outputs: Float[Tensor, "*batch vocab"], targets: Float[Tensor, "*batch vocab"], loss: str
) -> Float[Tensor, "*batch"]:
    """The loss of every prediction: mean squared error, or cross-entropy of a softmax.

    Args:
        outputs: the model's outputs, [..., vocab].
        targets: target distributions of the same shape.
        loss: "mse" or "cross-entropy".

    Returns:
        The losses, [...].
    """
    targets = targets.to(outputs)
    if check_option("loss", loss, LOSSES) == "mse":
        return F.mse_loss(outputs, targets, reduction="none").mean(-1)
    return -(targets * torch.log_softmax(outputs, dim=-1)).sum(-1)


def loss_of_outputs(
    outputs: Float[Tensor, "*batch vocab"], targets: Float[Tensor, "*batch vocab"], loss: str
) -> Float[Tensor, ""]:
    """The mean of `loss_by_row`.

    Args:
        outputs: the model's outputs, [..., vocab].
        targets: target distributions of the same shape.
        loss: "mse" or "cross-entropy".

    Returns:
        The loss, a scalar.
    """
    if loss == "mse":
        # One reduction instead of two, so that training is the same to the bit.
        return F.mse_loss(outputs, targets.to(outputs))
    return loss_by_row(outputs, targets, loss).mean()
