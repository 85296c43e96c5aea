"""A disentangled transformer as a sum over edges: what each carries, and runs with some cut.

In a concatenated stream every use of a block is a separate edge (all heads of a layer together):

    L2: token·L1.lag     the part of layer 2's content score due to two blocks, query first
    L2: L1.lag·offset    the part of its position scores that reads one block
    L2: copies L1.lag    the block as layer 2 averages it, under the name L2.L1.lag
    L2: writes lag       the average of its value table, under the name L2.lag
    output: L3.token     the part of the output that is read from one block

`circuit` decides which edges to cut and what they carry instead.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.architectures.disentangled import DisentangledAttention
from mtdinterp.models import DisentangledTransformer, LensTransformer, Stream
from mtdinterp.models.attention import (
    causal_softmax,
    content_scores,
    gather_positions,
    gather_values,
    position_scores,
)
from mtdinterp.readings.concatenated import as_concatenated


@dataclass(frozen=True, order=True)
class Edge:
    """One use of a block. Layers count from 1 as in block names; layer 0 is the output."""

    layer: int
    kind: str
    """content, position, copy, lag or output."""
    block: str
    other: str = ""
    """The block of the key, for a content score."""

    def __str__(self) -> str:
        return {
            "content": f"L{self.layer}: {self.block}·{self.other}",
            "position": f"L{self.layer}: {self.block}·offset",
            "copy": f"L{self.layer}: copies {self.block}",
            "lag": f"L{self.layer}: writes lag",
            "output": f"output: {self.block}",
        }[self.kind]


def with_edges(model: LensTransformer) -> DisentangledTransformer:
    """The model as a sum over edges.

    A standard transformer becomes the disentangled one with the same outputs, so that each of its
    effective circuits is an edge.

    Raises:
        NotApplicable: if its computation is no such sum.
    """
    return as_concatenated(model)


def edges_of(model: DisentangledTransformer) -> list[Edge]:
    """All edges, layer by layer, the output last."""
    edges: list[Edge] = []
    for layer, stream in enumerate(model.streams[:-1], start=1):
        for block in stream:
            edges.append(Edge(layer, "position", block))
            edges += [Edge(layer, "content", block, other) for other in stream]
        edges += [Edge(layer, "copy", block) for block in stream]
        edges.append(Edge(layer, "lag", "lag"))
    edges += [Edge(0, "output", block) for block in model.stream]
    return edges


@torch.no_grad()
def contributions(
    model: DisentangledTransformer, tokens: Int[Tensor, "batch pos"]
) -> Iterator[tuple[Edge, Tensor]]:
    """What every edge carries in a run of the complete model, in the order of `edges_of`.

    Args:
        model: the model to run.
        tokens: token ids [batch, pos].

    Yields:
        Each edge with its contribution in float64: scores [batch, head, query, key], copies and
        lags [batch, pos, head, d], outputs [batch, vocab].
    """
    h = model.embed(tokens).double()
    batch, length, _ = h.shape
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    for layer, attn in enumerate(model.attention, start=1):
        stream = model.streams[layer - 1]
        x = _per_head(h, attn)
        scores = torch.zeros(batch, attn.n_heads, length, length, dtype=torch.float64)
        no_scores = torch.zeros_like(scores)
        for block, columns in stream.items():
            table = attn.R_A[..., columns].double()
            part = position_scores(x[..., columns], table, length) * visible
            yield Edge(layer, "position", block), part
            scores += part
            for other, keys in stream.items():
                matrix = attn.W_A[:, columns, keys].double()
                q = _queries(h[..., columns], matrix)
                part = content_scores(q, x[..., keys], no_scores) * visible
                yield Edge(layer, "content", block, other), part
                scores += part
        copied, lag = _gathered(scores, x, attn)
        for block, columns in stream.items():
            yield Edge(layer, "copy", block), copied[..., columns]
        yield Edge(layer, "lag", "lag"), lag
        h = _appended(h, copied, lag)
    for block, columns in model.stream.items():
        yield Edge(0, "output", block), h[:, -1, columns] @ model.W_U[columns].double()


@torch.no_grad()
def run_edges(
    model: DisentangledTransformer,
    tokens: Int[Tensor, "batch pos"],
    alive: Collection[Edge],
    replacements: Mapping[Edge, Tensor],
) -> Float64[Tensor, "batch vocab"]:
    """Run the model with some edges; each of the others carries its replacement.

    Args:
        model: the model to run.
        tokens: token ids [batch, pos].
        alive: the edges that carry what the model computes.
        replacements: the values that every other edge carries, in a shape that broadcasts to its
            contribution; see `contributions`.

    Returns:
        The predictions at the last position, [batch, vocab].
    """
    h = model.embed(tokens).double()
    for layer, attn in enumerate(model.attention, start=1):
        x = _per_head(h, attn)
        scores = _alive_scores(h, x, attn, _score_masks(model.streams[layer - 1], layer, alive))
        for edge, replacement in replacements.items():
            is_score = edge.layer == layer and edge.kind in ("content", "position")
            if is_score and edge not in alive:
                scores = scores + replacement
        copied, lag = _gathered(scores, x, attn)
        copied = copied.clone()
        for block, columns in model.streams[layer - 1].items():
            edge = Edge(layer, "copy", block)
            if edge not in alive:
                copied[..., columns] = replacements[edge]
        edge = Edge(layer, "lag", "lag")
        if edge not in alive:
            lag = replacements[edge].expand_as(lag)
        h = _appended(h, copied, lag)
    outputs = torch.zeros(len(h), model.config.vocab_size, dtype=torch.float64)
    for block, columns in model.stream.items():
        edge = Edge(0, "output", block)
        if edge in alive:
            outputs = outputs + h[:, -1, columns] @ model.W_U[columns].double()
        else:
            outputs = outputs + replacements[edge]
    return model.to_probabilities(outputs)


@dataclass(frozen=True, eq=False)
class _ScoreMasks:
    """Which entries of a layer's score parameters belong to edges that are alive: 1 or 0."""

    content: Float64[Tensor, "d_query d_key"]
    position: Float64[Tensor, " d_query"]


def _score_masks(stream: Stream, layer: int, alive: Collection[Edge]) -> _ScoreMasks:
    content = torch.zeros(stream.width, stream.width, dtype=torch.float64)
    position = torch.zeros(stream.width, dtype=torch.float64)
    for edge in alive:
        if edge.layer == layer and edge.kind == "content":
            content[stream[edge.block], stream[edge.other]] = 1
        elif edge.layer == layer and edge.kind == "position":
            position[stream[edge.block]] = 1
    return _ScoreMasks(content, position)


def _alive_scores(
    h: Float64[Tensor, "batch pos d"],
    x: Float64[Tensor, "batch pos head d"],
    attn: DisentangledAttention,
    masks: _ScoreMasks,
) -> Float64[Tensor, "batch head query key"]:
    """The scores of all edges that are alive, in one product instead of one per edge."""
    q = _queries(h, attn.W_A.double() * masks.content)
    table = attn.R_A.double() * masks.position
    return content_scores(q, x, position_scores(x, table, h.shape[1]))


def _per_head(
    h: Float64[Tensor, "batch pos d"], attn: DisentangledAttention
) -> Float64[Tensor, "batch pos head d"]:
    """The stream as every head reads it."""
    return h[:, :, None].expand(-1, -1, attn.n_heads, -1)


def _queries(
    h: Float64[Tensor, "batch pos d_query"], matrix: Float64[Tensor, "head d_query d_key"]
) -> Float64[Tensor, "batch pos head d_key"]:
    """h·W_A for every head."""
    return torch.einsum("bpd,hde->bphe", h, matrix)


def _gathered(
    scores: Float64[Tensor, "batch head query key"],
    x: Float64[Tensor, "batch pos head d"],
    attn: DisentangledAttention,
) -> tuple[Float64[Tensor, "batch pos head d"], Float64[Tensor, "batch pos head d_rel"]]:
    """What the heads gather from the stream and from their value tables."""
    pattern = causal_softmax(scores)
    return gather_values(pattern, x), gather_positions(pattern, attn.R_V.double())


def _appended(
    h: Float64[Tensor, "batch pos d"],
    copied: Float64[Tensor, "batch pos head d"],
    lag: Float64[Tensor, "batch pos head d_rel"],
) -> Float64[Tensor, "batch pos d_after"]:
    """The stream with every head's copies and lags appended."""
    written = torch.cat([copied, lag], dim=-1)
    return torch.cat([h, rearrange(written, "batch pos head d -> batch pos (head d)")], dim=-1)
