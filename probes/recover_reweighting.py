"""Does a layer average again, with other weights for positions that an average explains badly?

A second step of mirror descent needs that. In the five-layer construction layer 4 compares the
first weights w¹ at the last position with γ_i at every position: its score is -a·w¹·γ_i. Trained
models may compare something else, such as the average Γ̃, or do it in more than one layer. In lag
space every such score is a matrix over lags, and -a·(I - 11ᵀ/m) if it re-weights.
"""

from collections import defaultdict
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import AVERAGES, REWEIGHTS, REWEIGHTS_R2
from mtdinterp.errors import NotApplicable
from mtdinterp.formatting import counted, fixed, listed
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.models.lens import LensTransformer
from mtdinterp.native.folded import FoldedLayer
from mtdinterp.pages.blocks import Block, Map, Maps, Table, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import attention_of, centred, probe_sequences, readable_sequences, varying
from mtdinterp.readings.effective import carrying_heads
from mtdinterp.readings.lag_blocks import (
    LagBlock,
    content_scores_of,
    folded_of,
    identity_share,
    lag_blocks,
    position_scores_of,
)
from mtdinterp.readings.mechanism import lag_offsets
from mtdinterp.results import Result
from mtdinterp.tasks import Task

MOST_ROWS = 6
"""Scores that the summary and the report show for each layer, those with the largest effect."""
LEAST_EFFECT = 1e-3
"""Scores with a smaller effect are not shown."""
FEWER = (
    f"Up to {MOST_ROWS} scores of each layer are shown, if their effect is at least "
    f"{LEAST_EFFECT:g} nats."
)
"""What is said of the scores that are not shown."""


@dataclass(frozen=True, eq=False)
class ScoreReading:
    """A content score of a block at the last query with a block at every position."""

    layer: int
    """The layer that scores, from 1."""
    head: int
    """Its head, from 1."""
    query: str
    """The block that the query reads."""
    key: str
    """The block that the key reads."""
    reweights: bool
    """Whether the query's block tells something about the weights and the key's block is the
    lag code of the position itself, as re-weighting needs."""
    sharpness: float
    """a of the nearest -a·(I - 11ᵀ/m): positive if positions that the query's block explains
    count less. In a mirrored model γ has the opposite sign, and a is corrected for it."""
    r2: float
    """The share of the score's squares that it explains."""
    effect: float
    """The standard deviation of this score over positions, in nats; mean over sequences."""
    on_lags: float
    """The share of the head's attention at the last query that is on the lags of the next token; a
    layer with much of it there does not average."""
    scores: Float64[Tensor, "query_component key_component"]
    """The score in lag space, double-centred."""

    @property
    def name(self) -> str:
        """Both blocks."""
        return f"{self.query} × {self.key}"

    @property
    def is_pass(self) -> bool:
        """Whether the layer re-weights by this score, with either sign."""
        large = self.r2 >= REWEIGHTS_R2 and self.effect >= REWEIGHTS
        return self.reweights and large and self.on_lags < AVERAGES


@dataclass(frozen=True)
class ReadReading:
    """How the last layer reads a block to weigh the lags of the next token."""

    block: str
    layers: tuple[int, ...]
    """The layer that wrote the block's code, then those that copied it; from 1."""
    strength: float
    """c of the nearest c·(I - 11ᵀ/m)."""
    r2: float
    effect: float
    """The standard deviation of what it adds to the log-attention on the lags, over lags and
    sequences, in nats."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReweightingRecovery(Result):
    """Every score between a block about the weights and a lag block, and the last layer's reads."""

    rows: tuple[ScoreReading, ...]
    """By layer, the largest effect first."""
    reads: tuple[ReadReading, ...]
    """Reads of the last layer, the largest effect first."""
    branch: str
    """"direct", "mirrored" or "undecided", by the heads of layers 1 and 2."""
    n_layers: int
    n_components: int
    heads: tuple[int, ...]
    """The head of every layer whose blocks were followed, from 1."""
    n_heads: int
    """The largest number of heads of a layer."""
    no_rows: str
    """Why no layer can re-weight, in one sentence; empty if one can."""

    @property
    def passes(self) -> tuple[ScoreReading, ...]:
        """The score by which each layer that re-weights does so most."""
        found: dict[int, ScoreReading] = {}
        for row in self.rows:
            if row.is_pass and row.layer not in found:
                found[row.layer] = row
        return tuple(found.values())

    @property
    def kind(self) -> str:
        """The circuit in a few words.

        "not computed", "none", "one pass in layer 4", "passes in layers 3 and 4" and so on, or
        "other" if a sign is wrong or the last layer reads none of the new averages.
        """
        if self.no_rows:
            return "not computed"
        if not self.passes:
            return "none"
        if self._wrong_signs() or not self._is_read():
            return "other"
        layers = [str(row.layer) for row in self.passes]
        if len(layers) == 1:
            return f"one pass in layer {layers[0]}"
        return f"passes in layers {listed(layers)}"

    @property
    def circuit(self) -> str:
        """The circuit in one sentence."""
        if self.no_rows:
            return f"Not computed: {self.no_rows}"
        if not self.passes:
            return (
                "No re-weighting: no layer gives positions other weights because of how well an "
                f"average explains them.{self._not_averaging()}"
            )
        found = []
        for row in self.passes:
            found.append(
                f"layer {row.layer} by {row.name} (a = {fixed(row.sharpness, 1)}, R² "
                f"{fixed(row.r2)}, {fixed(row.effect)} nats)"
            )
        shown = listed(found)
        if self._wrong_signs():
            layers = listed([str(row.layer) for row in self._wrong_signs()])
            return (
                f"Other: {shown}. The sign in layer {layers} is that of a step back: positions "
                "that are explained well count more."
            )
        if not self._is_read():
            return f"Other: {shown}, but no clear read of the last layer includes a new average."
        kind = self.kind[0].upper() + self.kind[1:]
        return f"{kind}: {shown}.{self._not_averaging()}"

    def _not_averaging(self) -> str:
        """Which layers attend to the lags instead of averaging; empty if there are none."""
        passing = {row.layer for row in self.passes}
        found: dict[int, float] = {}
        for row in self.rows:
            if row.on_lags >= AVERAGES and row.layer not in passing:
                found[row.layer] = max(row.on_lags, found.get(row.layer, 0.0))
        sentences = []
        for layer, share in found.items():
            sentences.append(
                f" Layer {layer} does not average: {share:.0%} of its attention is on the lags of "
                "the next token."
            )
        return "".join(sentences)

    def _wrong_signs(self) -> list[ScoreReading]:
        return [row for row in self.passes if row.sharpness < 0]

    def _is_read(self) -> bool:
        """Whether the last layer reads an average that some re-weighting layer made."""
        wanted = {row.layer for row in self.passes}
        for read in self.reads:
            clear = read.r2 >= REWEIGHTS_R2 and read.effect >= REWEIGHTS
            if clear and read.layers[0] == 1 and wanted.intersection(read.layers[1:]):
                return True
        return False

    def summary(self) -> str:
        lines = ["Re-weighting, by weights in lag space", f"  {self.circuit}"]
        for layer, rows in self._shown_rows().items():
            lines.append(f"  layer {layer}: score of query × key      a       R²    effect (nats)")
            for row in rows:
                lines.append(
                    f"    {_named(row, self.n_heads):<32} {fixed(row.sharpness, 1):>7} "
                    f"{fixed(row.r2):>7} {fixed(row.effect, 3):>9}"
                )
        lines.append(f"  layer {self.n_layers}: reads of               c       R²    effect (nats)")
        for read in self._shown_reads():
            lines.append(
                f"    {read.block:<32} {fixed(read.strength, 1):>7} {fixed(read.r2):>7} "
                f"{fixed(read.effect, 3):>9}"
            )
        lines.append(f"  {FEWER}")
        if self.head_sentence():
            lines.append(f"  {self.head_sentence()}")
        return "\n".join(lines)

    def _shown_rows(self) -> dict[int, list[ScoreReading]]:
        """The rows with the largest effects, by layer."""
        shown: dict[int, list[ScoreReading]] = defaultdict(list)
        for row in self.rows:
            if row.effect >= LEAST_EFFECT and len(shown[row.layer]) < MOST_ROWS:
                shown[row.layer].append(row)
        return dict(shown)

    def _shown_reads(self) -> list[ReadReading]:
        """The reads with the largest effects."""
        return [read for read in self.reads if read.effect >= LEAST_EFFECT][:MOST_ROWS]

    def head_sentence(self) -> str:
        """Which heads were followed; empty if every layer has one."""
        if self.n_heads == 1:
            return ""
        shown = ", ".join(f"L{layer}.H{head}" for layer, head in enumerate(self.heads, start=1))
        return f"Blocks are those of the heads that carry the lags: {shown}."

    def claims(self) -> tuple[Claim, ...]:
        if self.no_rows:
            return ()
        candidates = [row for row in self.rows if row.reweights]
        strongest = max(candidates, key=lambda row: row.effect, default=None)
        shown = self.passes[0] if self.passes else strongest
        number = "—"
        if shown is not None:
            number = (
                f"a = {fixed(shown.sharpness, 1)} (R² {fixed(shown.r2)}, {fixed(shown.effect, 3)} "
                f"nats, layer {shown.layer}, {shown.name})"
            )
        reason = self._undecidable()
        status = decide(self.kind not in ("none", "other"))
        return (
            Claim(
                claim=(
                    "A layer re-weights positions by how badly an average explains them (R² ≥ "
                    f"{REWEIGHTS_R2:g})"
                ),
                status=Status.UNDECIDABLE if reason else status,
                evidence="Largest score -a·(I - 11ᵀ/m) of a block about the weights with γ",
                number=number,
                threshold=(
                    f"a > 0, R² ≥ {REWEIGHTS_R2:g}, effect ≥ {REWEIGHTS:g} nats, less than "
                    f"{AVERAGES:.0%} of the attention on the lags"
                ),
                control=f"R² of a random score {_chance_r2(self.n_components)}",
                n_sequences=self.n_sequences,
                seed=self.seed,
                reason=reason,
            ),
        )

    def _undecidable(self) -> str:
        """Why the claim cannot be decided; empty if it can."""
        if self.n_components <= 2:
            lags = counted(self.n_components, "lag")
            return f"with {lags}, every score is a multiple of I - 11ᵀ/m"
        if self.branch == "undecided" and self.passes:
            return "the branch of layer 1 is undecided, so the sign of a is not known"
        return ""

    def blocks(self) -> list[Block]:
        blocks: list[Block] = [Text((self.circuit,))]
        rows = []
        for found in self._shown_rows().values():
            for row in found:
                rows.append(
                    (
                        f"layer {row.layer}",
                        _named(row, self.n_heads),
                        fixed(row.sharpness, 1),
                        fixed(row.r2),
                        fixed(row.effect, 3),
                        "yes" if row.is_pass else "no",
                    )
                )
        if rows:
            header = ("score", "query × key", "a", "R²", "effect (nats)", "re-weights")
            blocks.append(Table(header, tuple(rows)))
        blocks += self._score_maps()
        read_rows = []
        for read in self._shown_reads():
            cells = (fixed(read.strength, 1), fixed(read.r2), fixed(read.effect, 3))
            read_rows.append((f"layer {self.n_layers}", read.block, *cells))
        if read_rows:
            columns = ("read", "block", "c", "R²", "effect (nats)")
            blocks.append(Table(columns, tuple(read_rows)))
        blocks.append(Text((FEWER,), "soft"))
        if self.head_sentence():
            blocks.append(Text((self.head_sentence(),), "soft"))
        return blocks

    def _score_maps(self) -> list[Block]:
        """The score of every pass in lag space."""
        panels = []
        largest = 0.0
        for row in self.passes:
            title = f"layer {row.layer}: {row.name}"
            panels.append(Map(title, row.scores, first_row=1, first_column=1))
            largest = max(largest, row.scores.abs().max().item())
        if not panels:
            return []
        return [
            Maps(
                "Scores in lag space",
                tuple(panels),
                largest,
                "lag of the query's block",
                "lag of the key's block",
                changes=True,
                note="Re-weighting shows as a negative diagonal, and nothing else.",
            )
        ]


def _named(row: ScoreReading, n_heads: int) -> str:
    """The row's blocks, with the scoring head if there are several."""
    return row.name if n_heads == 1 else f"head {row.head}: {row.name}"


def _chance_r2(n_components: int) -> str:
    """The mean R² of a random double-centred matrix on I - 11ᵀ/m, one of (m-1)² directions."""
    return fixed(1 / max(1, n_components - 1) ** 2)


@register_probe(
    "recover_reweighting",
    label="Does a layer average again, with other weights for positions?",
    rank=44,
)
def recover_reweighting(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 256,
    seed: int = 0,
) -> ReweightingRecovery:
    """Every content score that could re-weight positions, in lag space, and the last layer's reads.

    Args:
        model: any hooked model with at least three layers.
        task: the model's task.
        tokens: sequences [batch, pos] on which heads are chosen and effects measured; drawn from
            the task if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.

    Returns:
        One row per layer between the second and the last, head, query block and key block.

    Raises:
        NotApplicable: if some component of the task is read at no offset, if the model has fewer
            than three layers, or if its architecture cannot be read in lag space.
    """
    sequence = readable_sequences(probe_sequences(model, task, tokens, n_sequences, seed))
    offsets = lag_offsets(task)
    if offsets is None:
        raise NotApplicable(
            "Re-weighting is read in lag space, and this task has components that no single "
            "position shows"
        )
    n_layers = len(model.blocks)
    if n_layers < 3:
        raise NotApplicable(
            "Re-weighting is read between layers that average and the last one, and this model "
            f"has {counted(n_layers, 'layer')}"
        )
    layers = folded_of(model)
    watched = attention_of(model, sequence, range(n_layers - 1), [n_layers - 1])
    carriers = carrying_heads(watched, task, task.evidence(sequence), offsets)
    heads = carriers.heads
    blocks = lag_blocks(model, watched.patterns, heads, offsets)

    rows = []
    for number in range(3, n_layers):
        readable = [block for block in blocks if block.layers[-1] < number]
        for head in range(layers[number - 1].n_heads):
            pattern = watched.patterns[number - 1][:, head, None]
            by_offset = attention_by_offset(pattern)[:, 0, -1]
            scorer = _Scorer(
                layer=layers[number - 1],
                number=number,
                head=head,
                on_lags=by_offset[:, offsets].sum(-1).mean().item(),
                warm_up=task.warm_up,
                mirrored=carriers.branch == "mirrored",
            )
            rows += [scorer.row(query, key) for query in readable for key in readable]
    rows.sort(key=lambda row: (row.layer, -row.effect))
    reads = []
    for block in blocks:
        matrix = position_scores_of(layers[-1], heads[-1], block, offsets)
        reads.append(_read(block, matrix))
    reads.sort(key=lambda read: -read.effect)
    no_rows = ""
    if n_layers == 3:
        no_rows = (
            "re-weighting needs a layer between the one that averages and the last one, and this "
            "model has 3 layers."
        )
    return ReweightingRecovery(
        rows=tuple(rows),
        reads=tuple(reads),
        branch=carriers.branch,
        n_layers=n_layers,
        n_components=task.n_components,
        heads=tuple(head + 1 for head in heads),
        n_heads=model.cfg.n_heads,
        no_rows=no_rows,
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


@dataclass(frozen=True, eq=False)
class _Scorer:
    """A head whose content scores are read in lag space."""

    layer: FoldedLayer
    number: int
    """The number of the layer, from 1."""
    head: int
    """The head, from 0."""
    on_lags: float
    warm_up: int
    mirrored: bool

    def row(self, query: LagBlock, key: LagBlock) -> ScoreReading:
        """The score of one block at the query with one at the key, and what it does there."""
        matrix = content_scores_of(self.layer, self.head, query, key)
        share = identity_share(matrix)
        # A mirrored layer 1 turns its code around. Two blocks of its code cancel the sign.
        first_codes = (query.layers[0] == 1) + (key.layers[0] == 1)
        sign = -1 if self.mirrored and first_codes == 1 else 1
        keys = key.values[:, self.warm_up :]
        scores = torch.einsum("bg,gh,bph->bp", query.values[:, -1], matrix, keys)
        return ScoreReading(
            layer=self.number,
            head=self.head + 1,
            query=query.name,
            key=key.name,
            reweights=query.says_weights and key.layers == (1,),
            sharpness=-sign * share.value,
            r2=share.r2,
            effect=scores.std(-1).mean().item(),
            on_lags=self.on_lags,
            scores=matrix,
        )


def _read(block: LagBlock, matrix: Float64[Tensor, "read_component component"]) -> ReadReading:
    """One read of the last layer, and what it adds to the last query's log-attention."""
    share = identity_share(matrix)
    added = varying(centred(block.values[:, -1] @ matrix.T))
    effect = added.square().mean().sqrt().item()
    return ReadReading(block.name, block.layers, share.value, share.r2, effect)
