"""Minimal circuits: the edges that the output needs, with all others replaced by their means.

`edges` defines what an edge is. Cutting an edge replaces its values with their mean over sequences
(at every position, or pair of positions), or, in path patching, with its values on other sequences.
Cutting an edge that has the same values for every sequence has no effect; such edges are listed
separately, as constant.
"""

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_number
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import CONSTANT_EDGE, FEW_EDGES, NO_GAP
from mtdinterp.explanation import Explanation
from mtdinterp.formatting import counted
from mtdinterp.interventions.edges import Edge, contributions, edges_of, run_edges, with_edges
from mtdinterp.metrics import kl_divergence, to_distribution
from mtdinterp.models import DisentangledTransformer, LensTransformer
from mtdinterp.pages.blocks import Block, Heading, Table, Text
from mtdinterp.results import Result

FEWEST_SEQUENCES = 8
"""Means over fewer different sequences say little about what an edge usually carries."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Circuit(Result):
    """The edges that suffice, and how well they do alone."""

    edges: tuple[Edge, ...]
    constant: tuple[Edge, ...]
    """Edges that carry the same values for every sequence."""
    n_edges: int
    """The total number of edges in the model."""
    faithfulness: float
    """1 - KL(model ‖ circuit) / KL(model ‖ all edges at their means)."""
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
        """The edges with their effects, one per line."""
        lines = [
            f"{len(self.edges)} of {self.n_edges} edges close {self._share()} of the gap to the "
            f"model's predictions (KL {self.kl:.2e}):"
        ]
        for edge in self.edges:
            lines.append(f"  {edge!s:<32} KL {self.effects[edge]:.2e} if only this edge is cut")
        constant = ", ".join(map(str, self.constant)) or "none"
        lines.append(f"  constant edges: {constant}")
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
        control = f"all edges at their means: KL {self.kl_at_means:.1e}"
        if self.algorithm is not None and math.isfinite(self.algorithm_kl):
            control += f"; {self.algorithm}: KL {self.algorithm_kl:.1e}"
        claim = Claim(
            claim=f"At most {FEW_EDGES:.0%} of the edges close {self.wanted:.0%} of the KL gap "
            "between all edges at their means and the model",
            status=Status.UNDECIDABLE if reason else decide(few),
            evidence="Edges in the smallest circuit found, and its KL to the model",
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
            f"{len(self.edges)} of {self.n_edges} edges close {self._share()} of the KL gap "
            f"between all edges at their means (KL {self.kl_at_means:.1e}) and the model "
            f"({counted(self.n_sequences, 'sequence')})."
        )
        caution = (
            "With all edges at their means, the model also loses the last tokens. A high share "
            "therefore does not show that these edges infer the weights well; the remaining KL "
            "does."
        )
        rows = tuple((str(edge), f"{self.effects[edge]:.2e}") for edge in self.edges)
        return [
            Heading("Minimal circuit"),
            Text((kept, self.comparison())),
            Text((caution,), "soft"),
            Table(("edge", "KL if only this edge is cut"), rows),
        ]

    def _share(self) -> str:
        """The faithfulness in words; without varying edges there is nothing to lose."""
        return f"{self.faithfulness:.1%}" if math.isfinite(self.faithfulness) else "all"

    def comparison(self) -> str:
        """The circuit's KL to the model, compared with that of the model's algorithm."""
        left = f"The circuit alone has KL {self.kl:.1e} to the model's predictions"
        if self.algorithm is None or not math.isfinite(self.algorithm_kl):
            return f"{left}."
        compared = f"{left}; {self.algorithm} has {self.algorithm_kl:.1e}"
        # An exact algorithm has a KL of rounding error, to which a ratio is meaningless.
        if self.algorithm_kl < NO_GAP:
            return f"{compared}."
        return f"{compared}, so the circuit is {self.kl / self.algorithm_kl:.2g} times as far away."


def _no_progress(done: int, total: int) -> None:
    pass


def minimal_circuit(
    model: LensTransformer,
    tokens: ArrayLike,
    faithfulness: float = 0.99,
    progress: Callable[[int, int], None] = _no_progress,
    *,
    explanation: Explanation | None = None,
) -> Circuit:
    """Search for the smallest set of edges with a given faithfulness.

    Edges are cut in order of their effect alone, smallest first, as long as the remaining circuit
    is faithful enough. Then each remaining edge is tried once more.

    Args:
        model: a disentangled transformer without a hidden layer before the output.
        tokens: token ids [batch, pos], with at least 8 different sequences.
        faithfulness: the required faithfulness, from 0 to 1; see `Circuit.faithfulness`.
        progress: called with the number of finished and of all tries.
        explanation: the explanation of the model; if given, the result includes the KL of its
            algorithm.

    Returns:
        The circuit that was found.
    """
    if not 0 <= check_number("faithfulness", faithfulness) <= 1:
        raise ValueError(f"faithfulness: expected a share in 0..1, got {faithfulness}")
    network = with_edges(model)
    sequences = network.check_tokens(tokens)
    n_different = len(sequences.unique(dim=0))
    if n_different < FEWEST_SEQUENCES:
        raise ValueError(
            f"tokens: expected at least {FEWEST_SEQUENCES} different sequences for the means, got "
            f"{n_different}"
        )
    means = _edge_means(network, sequences)
    edges = edges_of(network)
    target = to_distribution(means.outputs(edges))

    def divergence(kept: Collection[Edge]) -> float:
        found = to_distribution(means.outputs(kept))
        return kl_divergence(target, found).mean().item()

    varying = [edge for edge in edges if edge not in means.constant and edge not in means.silent]
    n_tries = 2 * len(varying)
    effects: dict[Edge, float] = {}
    for number, edge in enumerate(varying, start=1):
        effects[edge] = divergence([other for other in edges if other != edge])
        progress(number, n_tries)

    at_means = divergence(())
    allowed = (1 - faithfulness) * at_means
    by_effect = sorted(varying, key=effects.__getitem__)
    n_cut = _longest_prefix(len(varying), lambda n: divergence(by_effect[n:]) <= allowed)
    kept = by_effect[n_cut:]
    for number, edge in enumerate(by_effect[n_cut:], start=1):
        without = [other for other in kept if other != edge]
        if divergence(without) <= allowed:
            kept = without
        progress(len(varying) + n_cut + number, n_tries)

    reached = divergence(kept)
    return Circuit(
        edges=tuple(sorted(kept, key=_output_last)),
        constant=tuple(sorted(means.constant)),
        n_edges=len(edges),
        faithfulness=1 - reached / at_means if at_means > 0 else math.nan,
        kl=reached,
        effects=effects,
        wanted=faithfulness,
        kl_at_means=at_means,
        algorithm=None if explanation is None else explanation.algorithm.label,
        algorithm_kl=_algorithm_kl(explanation, sequences, target),
        n_sequences=len(sequences),
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
    """Run a model with only some edges, all others at their means over the sequences.

    Args:
        model: a disentangled transformer without a hidden layer before the output.
        tokens: token ids [batch, pos].
        kept: the edges to keep; constant edges are kept in any case.

    Returns:
        The predictions at the last position, [batch, vocab].
    """
    network = with_edges(model)
    means = _edge_means(network, network.check_tokens(tokens))
    return means.outputs(_checked(network, kept))


def patch_paths(
    model: LensTransformer, tokens: ArrayLike, source: ArrayLike, edges: Iterable[Edge]
) -> Float64[Tensor, "batch vocab"]:
    """Run a model in which some edges carry what they carry on other sequences (path patching).

    Everything downstream of a patched edge is computed from its patched value.

    Args:
        model: a disentangled transformer without a hidden layer before the output.
        tokens: token ids [batch, pos] of the run.
        source: token ids [batch, pos] that the patched edges take their contributions from.
        edges: the edges to patch.

    Returns:
        The predictions at the last position, [batch, vocab].
    """
    network = with_edges(model)
    sequences = network.check_tokens(tokens)
    source_sequences = network.check_tokens(source)
    if sequences.shape != source_sequences.shape:
        raise ValueError(
            f"source: expected the tokens' shape {list(sequences.shape)}, got "
            f"{list(source_sequences.shape)}"
        )
    patched = set(_checked(network, edges))
    replacements: dict[Edge, Tensor] = {}
    for edge, contribution in contributions(network, source_sequences):
        if edge in patched:
            replacements[edge] = contribution
    alive = set(edges_of(network)) - patched
    return run_edges(network, sequences, alive, replacements)


@dataclass(frozen=True, eq=False)
class _EdgeMeans:
    """A model on some sequences, ready to run with edges replaced by their means over them."""

    model: DisentangledTransformer
    tokens: Int[Tensor, "batch pos"]
    means: dict[Edge, Tensor]
    constant: set[Edge]
    silent: set[Edge]
    """Edges that carry nothing."""

    def outputs(self, kept: Iterable[Edge]) -> Float64[Tensor, "batch vocab"]:
        """Predictions at the last position with these edges and the constant ones."""
        alive = self.constant.union(kept)
        return run_edges(self.model, self.tokens, alive, self.means)


def _edge_means(model: DisentangledTransformer, tokens: Int[Tensor, "batch pos"]) -> _EdgeMeans:
    """Measure every edge: its mean over sequences, and whether it varies at all."""
    found = _EdgeMeans(model, tokens, means={}, constant=set(), silent=set())
    for edge, contribution in contributions(model, tokens):
        mean = contribution.mean(0, keepdim=True)
        found.means[edge] = mean
        mean_square = contribution.square().mean().item()
        variance = (contribution - mean).square().mean().item()
        if mean_square == 0:
            found.silent.add(edge)
        elif variance <= CONSTANT_EDGE * mean_square:
            found.constant.add(edge)
    return found


def _checked(model: DisentangledTransformer, edges: Iterable[Edge]) -> list[Edge]:
    """The edges as a list; raises ValueError if the model does not have one of them."""
    existing = edges_of(model)
    wanted = list(edges)
    for edge in wanted:
        if edge not in existing:
            names = ", ".join(map(str, existing))
            raise ValueError(f"edge: this model has no edge {edge}; its edges are {names}")
    return wanted


def _output_last(edge: Edge) -> tuple[bool, Edge]:
    """A sort key that puts the output, which is layer 0, after all layers."""
    return edge.layer == 0, edge


def _longest_prefix(count: int, holds: Callable[[int], bool]) -> int:
    """The largest n in 0..count for which `holds`, by bisection: it fails from some n on."""
    low = 0
    high = count
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
