"""Growing a model: the same weights for longer sequences, as a start for training.

The rows of the relative tables that exist are copied, and the new, far offsets get the mean of the
last quarter of the old rows. Where a layer attends to the lags, more far positions would take more
attention away from them; the architecture lowers their scores so that they keep the share that
they had.
"""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.architectures import architecture_of
from mtdinterp.models import LensTransformer

AVERAGED = 0.25
"""The share of the old rows, counted from the far end, whose mean new rows get."""


def grow(model: LensTransformer, length: int, n_components: int | None = None) -> LensTransformer:
    """A model for longer sequences with the weights of a shorter one.

    Args:
        model: the model to grow; left unchanged.
        length: the new longest sequence, at least the old one.
        n_components: the number of lags of the model's task; if None, what the architecture
            infers from its configuration. A standard model does not show it, and keeps its scores.

    Returns:
        A new model; a copy if the length is the same.

    Raises:
        ValueError: if the length is shorter than the model's.
    """
    shorter = model.config.length
    if length < shorter:
        raise ValueError(f"length: expected at least the model's {shorter}, got {length}")
    architecture = architecture_of(model)
    grown = architecture.build(replace(model.config, length=length))
    grown.to(next(model.parameters()).dtype)
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name, parameter in grown.named_parameters():
            old = weights[name].detach()
            is_table = name.split(".")[-1] in architecture.tables
            parameter.copy_(extended(old, length) if is_table else old)
        if length > shorter:
            architecture.keep_far_attention(grown, shorter, n_components)
    return grown


def extended(
    table: Float[Tensor, "head offset width"], length: int
) -> Float[Tensor, "head longer width"]:
    """A table with further rows, each the mean of the last quarter of the old ones."""
    n_rows = table.shape[1]
    n_averaged = max(1, round(AVERAGED * n_rows))
    far = table[:, n_rows - n_averaged :].mean(dim=1, keepdim=True)
    return torch.cat([table, far.expand(-1, length - n_rows, -1)], dim=1)
