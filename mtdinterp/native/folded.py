"""The form in which the whole-model kernel takes a layer, and the checks that all layers fit.

The C++ code trusts these sizes, so `check_model` compares every tensor with its neighbours.
"""

from collections.abc import Sequence
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from mtdinterp.native.operands import check_index_range, check_operand


class FoldedLayer(NamedTuple):
    """A layer without redundant parameters.

    For every head, score[i, j] = h_i·M·h_j + h_i·keys[i-j], content_i = Σ_j A[i, j]·h_j and
    position_i = Σ_j A[i, j]·values[i-j]. Without `mix` the stream becomes concat(h, content,
    position of every head); with it h·skip + Σ_heads (content·mix + position).
    """

    M: Float[Tensor, "head d_in d_in"]
    keys: Float[Tensor, "head length d_in"]
    values: Float[Tensor, "head length d_rel"]
    mix: Float[Tensor, "head d_in d_out"] | None = None
    skip: Float[Tensor, "d_in d_out"] | None = None
    """None is the identity."""

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return self.M.shape[0]

    @property
    def d_in(self) -> int:
        """Width of the stream that the layer reads."""
        return self.M.shape[1]

    @property
    def d_out(self) -> int:
        """Width of the stream after the layer."""
        if self.mix is not None:
            return self.mix.shape[-1]
        return self.d_in + self.n_heads * (self.d_in + self.values.shape[-1])


def check_model(layers: Sequence[FoldedLayer], unembedding: Tensor) -> int:
    """Refuse layers that do not fit each other or the unembedding.

    Args:
        layers: the model's layers, in order.
        unembedding: the linear read-out, [d_model, vocab].

    Returns:
        The width of the widest stream.

    Raises:
        ValueError: if a tensor has another type or shape than its neighbours imply.
    """
    if not layers:
        raise ValueError("layers: expected at least one, got none")
    first = layers[0]
    if first.M.ndim != 3 or first.keys.ndim != 3:
        raise ValueError(
            "M and keys: expected [head, d_in, d_in] and [head, length, d_in], got shapes "
            f"{list(first.M.shape)} and {list(first.keys.shape)}"
        )
    width = widest = first.d_in
    length = first.keys.shape[1]
    for index, layer in enumerate(layers):
        _check_layer(f"layers[{index}]", layer, width, length)
        width = layer.d_out
        widest = max(widest, width)
    check_operand("unembedding", unembedding, (width, *unembedding.shape[-1:]))
    check_index_range("unembedding", *unembedding.shape)
    return widest


def _check_layer(name: str, layer: FoldedLayer, width: int, length: int) -> None:
    """Refuse a layer that does not read a stream of `width` or has tables of another length."""
    heads = layer.M.shape[0] if layer.M.ndim else 0
    d_rel = layer.values.shape[-1:]
    check_operand(f"{name}.M", layer.M, (heads, width, width))
    check_operand(f"{name}.keys", layer.keys, (heads, length, width))
    check_operand(f"{name}.values", layer.values, (heads, length, *d_rel))
    check_index_range(name, max(heads, width), max(width, layer.values.shape[-1]))
    if layer.mix is None:
        if layer.skip is not None:
            raise ValueError(f"{name}.skip: expected None without mix, got a tensor")
        return
    # The gathered positions are added to the stream as they are, so they have its width.
    check_operand(f"{name}.mix", layer.mix, (heads, width, *d_rel))
    if layer.skip is not None:
        check_operand(f"{name}.skip", layer.skip, (width, *d_rel))
    elif layer.d_out != width:
        raise ValueError(
            f"{name}.skip: expected a tensor, because the stream changes its width from {width} "
            f"to {layer.d_out}; got None"
        )
