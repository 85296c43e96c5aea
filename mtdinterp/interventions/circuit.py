"""Which edges does the output need? A minimal circuit over named blocks, everything else replaced
by its mean.

In a concatenated stream every use of a block is an edge of its own (all heads of a layer together):

    L2: token·L1.lag     what layer 2's content score makes of two blocks, query first
    L2: L1.lag·offset    what its position scores read from a block
    L2: copies L1.lag    the block as layer 2 carries it on, under the name L2.L1.lag
    L2: writes lag       its value table, under the name L2.lag
    output: L3.token     what the read-out takes from a block

An edge that is cut carries its mean over sequences instead (at every position, or pair of
positions), or in path patching what it carries on other sequences. An edge whose contribution is
the same for every sequence is not changed by its mean at all: such edges are listed apart, as
constant.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from einops import rearrange
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_number
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import FEW_EDGES, NO_GAP
from mtdinterp.explanation import Explanation
from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.models import LensTransformer
from mtdinterp.models.attention import (
    causal_softmax,
    content_scores,
    gather_positions,
    gather_values,
    position_scores,
)
from mtdinterp.pages.blocks import Block, Heading, Table, Text
from mtdinterp.results import Result

CONSTANT = 1e-10
"""Variance over sequences, relative to the square, below which a contribution counts as constant.
"""


@dataclass(frozen=True, order=True)
class Edge:
    """One use of a block. Layers count from 1 as in the blocks' names; layer 0 is the read-out."""

    layer: int
    kind: str
    """content, position, copy, lag, output."""
    block: str
    other: str = ""
    """The key's block of a content score."""

    def __str__(self) -> str:
        return {
            "content": f"L{self.layer}: {self.block}·{self.other}",
            "position": f"L{self.layer}: {self.block}·offset",
            "copy": f"L{self.layer}: copies {self.block}",
            "lag": f"L{self.layer}: writes lag",
            "output": f"output: {self.block}",
        }[self.kind]


@dataclass(frozen=True, kw_only=True, eq=False)
class Circuit(Result):
    """The edges that are enough, and how well they do alone."""

    edges: tuple[Edge, ...]
    constant: tuple[Edge, ...]
    """Edges that carry the same for every sequence; cutting them changes nothing, whatever they do.
    """
    n_edges: int
    """All edges of the model."""
    faithfulness: float
    """1 - KL(model ‖ circuit) / KL(model ‖ nothing but means)."""
    kl: float
    """Mean KL(model ‖ circuit)."""
    effects: dict[Edge, float]
    """Mean KL(model ‖ model without the edge), for every edge that carries anything."""
    wanted: float
    """The faithfulness that was asked for."""
    kl_at_means: float
    """Mean KL(model ‖ all edges at their means)."""
    algorithm: str | None = None
    """The label of the algorithm that explains the model, if an explanation was given."""
    algorithm_kl: float = math.nan
    """Mean KL(model ‖ algorithm) on the same sequences."""

    def summary(self) -> str:
        lines = [
            f"{len(self.edges)} of {self.n_edges} edges keep {self.faithfulness:.1%} of the "
            "model's predictions "
            f"(KL {self.kl:.2e}):"
        ]
        lines += [f"  {edge!s:<32} alone cut: KL {self.effects[edge]:.2e}" for edge in self.edges]
        lines.append("  constant edges: " + (", ".join(map(str, self.constant)) or "none"))
        lines.append(f"  {self.comparison()}")
        return "\n".join(lines)

    def claims(self) -> tuple[Claim, ...]:
        """Whether few edges suffice."""
        reason = ""
        if not self.kl_at_means > NO_GAP:
            reason = (
                "with all edges at their means the predictions are the same, so no edge is needed"
            )
        few = len(self.edges) <= FEW_EDGES * self.n_edges
        control = f"all edges at their means leave KL {self.kl_at_means:.1e}"
        if self.algorithm is not None and math.isfinite(self.algorithm_kl):
            control += f", {self.algorithm} leaves {self.algorithm_kl:.1e}"
        claim = Claim(
            claim=f"Few edges keep {self.wanted:.0%} of what varying edges add to their means",
            status=Status.UNDECIDABLE if reason else decide(few),
            evidence="edges of the smallest circuit that was found, and the KL that it leaves",
            number=f"{len(self.edges)} of {self.n_edges} edges, KL {self.kl:.1e}",
            threshold=f"at most {FEW_EDGES:.0%} of the edges",
            control=control,
            n_sequences=self.n_sequences,
            seed=self.seed,
            reason=reason,
        )
        return (claim,)

    def blocks(self) -> list[Block]:
        """The edges with their effects, and how far the circuit is from the model."""
        kept = (
            f"{len(self.edges)} of {self.n_edges} edges keep {self.faithfulness:.1%} of the way "
            f"from all edges at their means (KL {self.kl_at_means:.1e}) to the model "
            f"({self.n_sequences} sequences)."
        )
        caution = (
            "With all edges at their means the model also loses the last tokens. So a high share "
            "does not show that these edges infer the weights well; the KL that is left does."
        )
        rows = tuple((str(edge), f"{self.effects[edge]:.2e}") for edge in self.edges)
        return [
            Heading("Minimal circuit"),
            Text((kept, self.comparison())),
            Text((caution,), "soft"),
            Table(("edge", "KL if it alone is cut"), rows),
        ]

    def comparison(self) -> str:
        """What the circuit leaves unexplained, compared with what the model's algorithm leaves."""
        left = f"The circuit alone leaves KL {self.kl:.1e} to the model's predictions"
        if self.algorithm is None or not math.isfinite(self.algorithm_kl):
            return f"{left}."
        compared = f"{left}; {self.algorithm} leaves {self.algorithm_kl:.1e}"
        # An exact algorithm leaves rounding, and a ratio to rounding says nothing.
        if self.algorithm_kl < NO_GAP:
            return f"{compared}."
        return f"{compared}, so the circuit leaves {self.kl / self.algorithm_kl:.2g} times as much."


def minimal_circuit(
    model: LensTransformer,
    tokens: ArrayLike,
    faithfulness: float = 0.99,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    explanation: Explanation | None = None,
) -> Circuit:
    """The smallest set of edges found that keeps this share of the predictions, on these sequences.

    Edges are cut from the least to the most important alone, as long as the rest is faithful
    enough, and every edge that is left is then tried once more. `progress` is called with edges
    done and to do. With an explanation, the result also says what its algorithm leaves.
    """
    if not 0 <= check_number("faithfulness", faithfulness) <= 1:
        raise ValueError(f"faithfulness: expected a share of 0..1, got {faithfulness}")
    runner = _Runner(model, model.check_tokens(tokens))
    if len(runner.tokens.unique(dim=0)) < 8:
        raise ValueError(
            f"tokens: expected at least 8 different sequences to take means over, got "
            f"{len(runner.tokens.unique(dim=0))}"
        )
    target = clip_to_distribution(runner.outputs(runner.edges))[0]

    def divergence(kept: Iterable[Edge]) -> float:
        return kl_divergence(target, clip_to_distribution(runner.outputs(kept))[0]).mean().item()

    everything = divergence(())
    varying = [
        edge for edge in runner.edges if edge not in runner.constant and edge not in runner.silent
    ]
    effects = {}
    for index, edge in enumerate(varying):
        effects[edge] = divergence(other for other in runner.edges if other != edge)
        progress(index + 1, 2 * len(varying))
    allowed = (1 - faithfulness) * everything
    kept = sorted(varying, key=effects.__getitem__)
    cut = _longest_prefix(len(kept), lambda n: divergence(kept[n:]) <= allowed)
    kept = kept[cut:]
    for index, edge in enumerate(list(kept)):
        without = [other for other in kept if other != edge]
        if divergence(without) <= allowed:
            kept = without
        progress(len(varying) + cut + index + 1, 2 * len(varying))
    reached = divergence(kept)
    return Circuit(
        edges=tuple(sorted(kept, key=lambda edge: (edge.layer or 99, edge))),
        constant=tuple(sorted(runner.constant)),
        n_edges=len(runner.edges),
        faithfulness=1 - reached / everything if everything > 0 else math.nan,
        kl=reached,
        effects=effects,
        wanted=faithfulness,
        kl_at_means=everything,
        algorithm=None if explanation is None else explanation.algorithm.label,
        algorithm_kl=_algorithm_kl(explanation, runner.tokens, target),
        n_sequences=len(runner.tokens),
        seed=None,
    )


def _algorithm_kl(
    explanation: Explanation | None,
    tokens: Int[Tensor, "batch pos"],
    predictions: Float64[Tensor, "batch vocab"],
) -> float:
    """Mean KL(predictions ‖ the explanation's algorithm); NaN without an explanation."""
    if explanation is None:
        return math.nan
    evidence = explanation.task.evidence(tokens)
    weights = explanation.algorithm.weights(evidence, **explanation.constants)
    return evidence.divergence(predictions, weights).mean().item()


def ablate_edges(
    model: LensTransformer, tokens: ArrayLike, kept: Iterable[Edge]
) -> Float64[Tensor, "batch vocab"]:
    """Outputs at the last position with only these edges, the rest at their means over the
    sequences."""
    runner = _Runner(model, model.check_tokens(tokens))
    return runner.outputs(_existing(runner, kept))


def patch_paths(
    model: LensTransformer, tokens: ArrayLike, source: ArrayLike, edges: Iterable[Edge]
) -> Float64[Tensor, "batch vocab"]:
    """Outputs at the last position when these edges carry what they carry on the source sequences,
    and no other does.

    Path patching: what comes after an edge follows from what it then carries.
    """
    sequence, other = model.check_tokens(tokens), model.check_tokens(source)
    if sequence.shape != other.shape:
        raise ValueError(
            f"source: expected the tokens' shape {list(sequence.shape)}, got {list(other.shape)}"
        )
    giver = _Runner(model, other, wanted=set(edges))
    patched = _existing(giver, giver.wanted or ())
    runner = _Runner(model, sequence, wanted=())
    runner.carried = giver.carried
    return runner.outputs([edge for edge in runner.edges if edge not in patched])


def _existing(runner: "_Runner", edges: Iterable[Edge]) -> list[Edge]:
    wanted = list(edges)
    for edge in wanted:
        if edge not in runner.edges:
            raise ValueError(
                f"edge: there is no {edge}; the model has {', '.join(map(str, runner.edges))}"
            )
    return wanted


def _longest_prefix(count: int, holds: Callable[[int], bool]) -> int:
    """The largest n for which `holds`, by bisection: cutting more is never better."""
    low, high = 0, count
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


class _Runner:
    """The model as a sum over edges, with the mean of each over sequences; of `wanted` ones all
    that they carry."""

    def __init__(
        self,
        model: LensTransformer,
        tokens: Int[Tensor, "batch pos"],
        wanted: Collection[Edge] | None = None,
    ) -> None:
        if not hasattr(model, "streams"):
            raise ValueError(
                "model: circuits are over the blocks of a concatenated stream; in an additive one "
                "a block "
                "is written by several layers, and an edge has no content of its own"
            )
        if model.config.d_mlp:
            raise ValueError(
                "model: its hidden layer before the output mixes all blocks, so the read-out has "
                "no "
                "edges; circuits are for models without one"
            )
        self.model, self.tokens, self.wanted = model, tokens, wanted
        self.streams = cast(Any, model).streams
        self.edges: list[Edge] = []
        self.constant: set[Edge] = set()
        self.silent: set[Edge] = set()
        """Edges whose weights are zero."""
        self.carried: dict[Edge, Tensor] = {}
        """What an edge that is cut carries instead of its own."""
        with torch.no_grad():
            self._measure()

    def outputs(self, kept: Iterable[Edge]) -> Float64[Tensor, "batch vocab"]:
        """Outputs at the last position with these edges (and the constant ones), the others at
        their means."""
        alive = set(kept) | self.constant
        with torch.no_grad():
            h = cast(Any, self.model).embed(self.tokens).double()
            for layer in range(1, len(self.model.blocks) + 1):
                h = torch.cat([h, self._written(h, layer, alive)], dim=-1)
            final, total = (
                h[:, -1],
                torch.zeros(len(h), self.model.config.vocab_size, dtype=torch.float64),
            )
            for block, columns in self.model.stream.items():
                edge = Edge(0, "output", block)
                total = total + (
                    final[:, columns] @ self.model.W_U[columns].double()
                    if edge in alive
                    else self.carried[edge]
                )
        return self.model.to_probabilities(total)

    def _written(
        self, h: Tensor, layer: int, alive: set[Edge]
    ) -> Float64[Tensor, "batch pos written"]:
        attn = cast(Any, self.model.blocks[layer - 1]).attn
        reads = self.streams[layer - 1]
        masks = self._masks(layer, alive)
        q = torch.einsum("bpd,hde->bphe", h, attn.W_A.double() * masks["content"])
        table = attn.R_A.double() * masks["position"]
        x = h[:, :, None].expand(-1, -1, attn.n_heads, -1)
        scores = content_scores(q, x, position_scores(x, table, h.shape[1]))
        for edge, carried in self.carried.items():
            if edge.layer == layer and edge.kind in ("content", "position") and edge not in alive:
                scores = scores + carried
        pattern = causal_softmax(scores)
        copied = gather_values(pattern, x).clone()
        for block, columns in reads.items():
            edge = Edge(layer, "copy", block)
            if edge not in alive:
                copied[..., columns] = self.carried[edge]
        lag = gather_positions(pattern, attn.R_V.double())
        edge = Edge(layer, "lag", "lag")
        if edge not in alive:
            lag = self.carried[edge].expand_as(lag)
        return rearrange(torch.cat([copied, lag], dim=-1), "batch pos head d -> batch pos (head d)")

    def _masks(self, layer: int, alive: set[Edge]) -> dict[str, Tensor]:
        """Which entries of the score parameters belong to edges that are alive."""
        reads = self.streams[layer - 1]
        content = torch.zeros(reads.width, reads.width, dtype=torch.float64)
        position = torch.zeros(reads.width, dtype=torch.float64)
        for edge in alive:
            if edge.layer == layer and edge.kind == "content":
                content[reads[edge.block], reads[edge.other]] = 1
            elif edge.layer == layer and edge.kind == "position":
                position[reads[edge.block]] = 1
        return {"content": content, "position": position}

    def _measure(self) -> None:
        """List the edges, layer by layer, with the mean of each and whether it varies at all."""
        h = cast(Any, self.model).embed(self.tokens).double()
        for layer, entry in enumerate(self.model.blocks, start=1):
            attn, reads = cast(Any, entry).attn, self.streams[layer - 1]
            x = h[:, :, None].expand(-1, -1, attn.n_heads, -1)
            visible = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).tril()
            scores = torch.zeros(len(h), attn.n_heads, h.shape[1], h.shape[1], dtype=torch.float64)
            for block, columns in reads.items():
                part = position_scores(x[..., columns], attn.R_A[..., columns].double(), h.shape[1])
                scores += self._note(Edge(layer, "position", block), part * visible)
                for other, keys in reads.items():
                    q = torch.einsum(
                        "bpd,hde->bphe", h[..., columns], attn.W_A[:, columns, keys].double()
                    )
                    part = content_scores(q, x[..., keys], torch.zeros_like(scores))
                    scores += self._note(Edge(layer, "content", block, other), part * visible)
            pattern = causal_softmax(scores)
            copied = gather_values(pattern, x)
            for block, columns in reads.items():
                self._note(Edge(layer, "copy", block), copied[..., columns])
            lag = self._note(
                Edge(layer, "lag", "lag"), gather_positions(pattern, attn.R_V.double())
            )
            h = torch.cat(
                [h, rearrange(torch.cat([copied, lag], dim=-1), "b p h d -> b p (h d)")], dim=-1
            )
        for block, columns in self.model.stream.items():
            self._note(
                Edge(0, "output", block), h[:, -1, columns] @ self.model.W_U[columns].double()
            )

    def _note(self, edge: Edge, contribution: Tensor) -> Tensor:
        """Remember an edge; its contribution is handed back."""
        self.edges.append(edge)
        if self.wanted is not None:
            if edge in self.wanted:
                self.carried[edge] = contribution
            return contribution
        mean = contribution.mean(0, keepdim=True)
        self.carried[edge] = mean
        square = contribution.square().mean().item()
        if square == 0:
            self.silent.add(edge)
        elif (contribution - mean).square().mean().item() <= CONSTANT * square:
            self.constant.add(edge)
        return contribution
