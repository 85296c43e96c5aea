"""Copies of a lag code in the stream, and what later layers make of them in lag space.

A head with a value table writes a code for each lag: layer 1 for the lags of every token, a later
layer for the lags of the next token. Later layers copy and average these codes. A vector Σ_g x_g·
code_g of such a copy stands for the point x of *lag space*, and every product of the model's
matrices with codes is a matrix over lags. In a disentangled transformer each copy is a block of the
stream. In a standard transformer all copies share the stream, and the code of a copy is what the
value and output matrices on its way make of the first one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.errors import NotApplicable
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.models.lens import LensTransformer
from mtdinterp.native.folded import FoldedLayer
from mtdinterp.readings.effective import Patterns
from mtdinterp.readings.regression import NO_SLOPE, Slope, centred, fit_slope

MOST_COPIES = 3
"""A code is followed through at most this many layers that copy it."""


@dataclass(frozen=True, eq=False)
class LagBlock:
    """One copy of a lag code."""

    name: str
    """The name of the block in a disentangled transformer, such as "L4.L2.L1.lag"."""
    layers: tuple[int, ...]
    """The layer that wrote the code, then those that copied it; from 1."""
    code: Float64[Tensor, "component d"]
    """The vector of the stream that stands for each lag."""
    values: Float64[Tensor, "batch pos component"]
    """Its point in lag space, at every position."""

    @property
    def averaged(self) -> bool:
        """Whether it is an average of layer 1's code over positions."""
        return self.layers[0] == 1 and len(self.layers) > 1

    @property
    def says_weights(self) -> bool:
        """Whether it tells the last query something about the mixture weights: an average, or the
        attention of a later layer to the lags of the next token."""
        return self.averaged or self.layers[0] > 1


def folded_of(model: LensTransformer) -> list[FoldedLayer]:
    """The model as layers of one form, in float64.

    Args:
        model: any hooked model.

    Returns:
        One layer per layer of the model.

    Raises:
        NotApplicable: if its architecture has no such form.
    """
    try:
        with torch.no_grad():
            layers = model.folded_layers()
    except NotImplementedError as error:
        raise NotApplicable(
            f"The {model.config.architecture} architecture has no folded form, so its weights "
            "cannot be read in lag space"
        ) from error
    return [_as_double(layer) for layer in layers]


def _as_double(layer: FoldedLayer) -> FoldedLayer:
    mix = None if layer.mix is None else _double(layer.mix)
    skip = None if layer.skip is None else _double(layer.skip)
    return FoldedLayer(
        _double(layer.M), _double(layer.keys), _double(layer.values), mix=mix, skip=skip
    )


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def lag_blocks(
    model: LensTransformer, patterns: Patterns, heads: tuple[int, ...], offsets: list[int]
) -> list[LagBlock]:
    """Every copy of a lag code before the last layer, in the order in which layers write them.

    Args:
        model: any hooked model.
        patterns: attention of all layers before the last.
        heads: the head of every layer, from 0.
        offsets: where the last query reads each component.

    Returns:
        The blocks. Layer l reads those whose last layer is before l.
    """
    blocks: list[LagBlock] = []
    for number, layer in enumerate(folded_of(model)[:-1], start=1):
        head = heads[number - 1]
        label = f"L{number}" if layer.n_heads == 1 else f"L{number}.H{head + 1}"
        pattern = patterns[number - 1][:, head].double()
        copies = []
        for block in blocks:
            if len(block.layers) > MOST_COPIES:
                continue
            copies.append(
                LagBlock(
                    name=f"{label}.{block.name}",
                    layers=(*block.layers, number),
                    code=_copied(layer, head, block.code),
                    values=torch.einsum("bqk,bkg->bqg", pattern, block.values),
                )
            )
        # Layer 1 attends to the lags of the token at hand, later layers to those of the next one.
        sources = [offset + 1 for offset in offsets] if number == 1 else offsets
        by_offset = attention_by_offset(pattern[:, None])[:, 0]
        written = LagBlock(
            name=f"{label}.lag",
            layers=(number,),
            code=_written(layer, head, sources),
            values=by_offset[..., sources],
        )
        blocks = [*blocks, *copies, written]
    return blocks


def _written(layer: FoldedLayer, head: int, sources: list[int]) -> Float64[Tensor, "component d"]:
    """What a head's value table adds to the stream for attention at each of these offsets."""
    code = layer.values[head, sources]
    if layer.mix is not None:
        return code
    # The position part comes after the copied stream in the head's columns.
    return F.pad(code, (_first_column(layer, head) + layer.d_in, 0))


def _copied(
    layer: FoldedLayer, head: int, code: Float64[Tensor, "component d"]
) -> Float64[Tensor, "component d_out"]:
    """What a head adds to the stream if it attends to a vector of the code."""
    widened = _widened(code, layer.d_in)
    if layer.mix is not None:
        return widened @ layer.mix[head]
    return F.pad(widened, (_first_column(layer, head), 0))


def _first_column(layer: FoldedLayer, head: int) -> int:
    """Where a head's output begins in a concatenated stream."""
    return layer.d_in + head * (layer.d_in + layer.values.shape[-1])


def _widened(code: Float64[Tensor, "component d"], width: int) -> Tensor:
    """The code in a stream that later layers have made wider."""
    return F.pad(code, (0, width - code.shape[-1]))


def content_scores_of(
    layer: FoldedLayer, head: int, query: LagBlock, key: LagBlock
) -> Float64[Tensor, "query_component key_component"]:
    """The content score of a block at the query with a block at the key, in lag space.

    Args:
        layer: the layer that scores.
        head: its head, from 0.
        query: a block that it reads.
        key: a block that it reads.

    Returns:
        The score of every lag with every lag, double-centred: a constant per query lag or key lag
        does not compare the two.
    """
    queries = _widened(query.code, layer.d_in)
    keys = _widened(key.code, layer.d_in)
    return double_centred(queries @ layer.M[head] @ keys.T)


def position_scores_of(
    layer: FoldedLayer, head: int, block: LagBlock, offsets: Sequence[int]
) -> Float64[Tensor, "read_component component"]:
    """The score that a block at the query gives to each lag of the next token, in lag space.

    Args:
        layer: the layer that scores.
        head: its head, from 0.
        block: a block that it reads.
        offsets: where the query reads each component.

    Returns:
        Row g holds the score of lag g's offset for every lag of the code, double-centred.
    """
    rows = layer.keys[head, list(offsets)]
    return double_centred(rows @ _widened(block.code, layer.d_in).T)


def double_centred(
    matrix: Float64[Tensor, "row column"],
) -> Float64[Tensor, "row column"]:
    """Subtract the means of rows and of columns."""
    return centred(centred(matrix).T).T


def identity_share(matrix: Float64[Tensor, "component component"]) -> Slope:
    """The slope of a double-centred matrix on I - 11ᵀ/m.

    Args:
        matrix: a matrix in lag space.

    Returns:
        The slope, with R² the share of the matrix's squares that it explains; NaN with one lag.
    """
    size = len(matrix)
    if size < 2:
        return NO_SLOPE
    ideal = torch.eye(size, dtype=torch.float64) - 1 / size
    return fit_slope(ideal, matrix)
