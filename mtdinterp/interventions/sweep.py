"""Patch every place in turn, many at a time.

A patch at layer l changes nothing before it. So each patched run starts there, from the stream of
the unpatched run with one place taken from the other run, and goes through the remaining layers
only. Hundreds of such streams go through them as one batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_option
from mtdinterp.formatting import counted
from mtdinterp.interventions.hooking import activations
from mtdinterp.metrics import NO_LEVEL, kl_divergence, to_distribution
from mtdinterp.models import LensTransformer
from mtdinterp.models.hooked import HookedBlock
from mtdinterp.pages.blocks import Block, Map, Maps, Table, Text
from mtdinterp.readings import predictions_of
from mtdinterp.results import Result

KINDS = {
    "resid_pre": "the whole stream before a layer",
    "attn_out": "the output of a layer",
    "block": "one named block of the stream before a layer",
    "head": "the output of one head",
}
DIRECTIONS = {
    "denoise": "clean activations into the corrupted run",
    "noise": "corrupted activations into the clean run",
}
SWEPT = {
    "resid_pre": ("before layer", "stream"),
    "attn_out": ("written by layer", "output"),
    "block": ("before layer", "block"),
    "head": ("written by layer", "head"),
}
"""For each kind of sweep, where its places are and what its parts are called."""
SWEPT_RUNS = {
    "denoise": "Activations of the clean run are copied into the corrupted run, one place at a "
    "time",
    "noise": "Activations of the corrupted run are copied into the clean run, one place at a time",
}
"""For each direction of a sweep, what is patched."""
NEGATIVE_KL = "-KL(clean prediction ‖ prediction)"
"""The default metric, in words."""
STRONGEST = 6
"""How many patched places the report lists."""
CELLS_AT_ONCE = 2**22
"""Attention entries per layer of the patched runs that form one batch."""

Metric = Callable[[Float[Tensor, "batch vocab"]], Tensor | float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepResult(Result):
    """A metric of the predictions for every patched place."""

    kind: str
    direction: str
    values: Float64[Tensor, "layer position part"]
    """A part is a block or a head, or a single entry for the whole; NaN where a block does not
    exist yet."""
    parts: tuple[str, ...]
    clean: float
    """The metric of the clean run, without patches."""
    corrupted: float
    """The metric of the corrupted run, without patches."""
    metric: str = "the given metric"
    """What the metric is, in a few words."""

    @property
    def unpatched(self) -> float:
        """The metric of the run that patches go into."""
        return self.corrupted if self.direction == "denoise" else self.clean

    def effects(self, layer: int) -> dict[str, Float64[Tensor, " position"]]:
        """The change of the metric by patching each part of a layer, for parts that exist there."""
        moved = (self.values[layer] - self.unpatched).T
        by_part = zip(self.parts, moved, strict=True)
        return {name: row for name, row in by_part if not row.isnan().all()}

    def strongest(self, count: int = 1) -> list[tuple[int, int, int]]:
        """The places that move the metric most: layer, position and part, counted from 0."""
        moved = (self.values - self.unpatched).abs().nan_to_num(-1)
        order = moved.flatten().argsort(descending=True, stable=True)[:count]
        layers, positions, parts = torch.unravel_index(order, moved.shape)
        return list(zip(layers.tolist(), positions.tolist(), parts.tolist(), strict=True))

    def summary(self) -> str:
        """The metric without patches, and the strongest patch."""
        layer, position, part = self.strongest()[0]
        place = f"layer {layer + 1}, position {position}"
        if self.parts != ("all",):
            place += f", {self.parts[part]}"
        clean = self.clean + 0.0  # turns -0.0 into 0.0
        return (
            f"{KINDS[self.kind]}, {DIRECTIONS[self.direction]}: {self.metric} is {clean:.4g} for "
            f"the clean run and {self.corrupted:.4g} for the corrupted one; the strongest patch is "
            f"{place}: "
            f"{self.values[layer, position, part].item():.4g}."
        )

    def blocks(self) -> list[Block]:
        """The fraction of the distance from the corrupted to the clean run that each patch
        restores.
        """
        way = self.clean - self.corrupted
        if not abs(way) > NO_LEVEL:
            return [Text(("Both runs make the same prediction, so there is nothing to restore.",))]
        where, part_name = SWEPT[self.kind]
        panels = []
        for layer in range(len(self.values)):
            effects = self.effects(layer)
            shares = torch.stack(list(effects.values())) / way
            panels.append(Map(f"{where} {layer + 1}", shares, tuple(effects)))
        share = (self.values - self.unpatched) / way
        rows = []
        for layer, position, part in self.strongest(STRONGEST):
            restored = f"{share[layer, position, part].item():+.1%}"
            rows.append((str(layer + 1), str(position), self.parts[part], restored))
        pairs = counted(self.n_sequences, "pair")
        return [
            Text((f"{SWEPT_RUNS[self.direction]} ({pairs} of sequences).",), "soft"),
            Maps(
                "What restores the clean prediction",
                tuple(panels),
                max(share.nan_to_num().abs().max().item(), NO_LEVEL),
                part_name,
                "position",
                changes=True,
                note="Blue moves the prediction towards the clean one, red away from it.",
            ),
            Table(("layer", "position", part_name, "restored"), tuple(rows)),
        ]


def patch_sweep(
    model: LensTransformer,
    clean: ArrayLike,
    corrupted: ArrayLike,
    kind: str = "block",
    direction: str = "denoise",
    metric: Metric | None = None,
    progress: Progress | None = None,
) -> SweepResult:
    """Patch every layer, position and part between two runs, one place at a time.

    Args:
        model: the model to run.
        clean: token ids [batch, pos] or [pos].
        corrupted: token ids of the same shape.
        kind: what is patched, one of `KINDS`.
        direction: which run is patched, one of `DIRECTIONS`.
        metric: a number computed from the predictions at the last position, [batch, vocab],
            unclipped. By default minus the mean KL(clean prediction ‖ prediction), which is 0 if
            everything is recovered.
        progress: called with the number of finished and of all patches; an exception that it
            raises ends the sweep.

    Returns:
        The metric for every place.
    """
    check_option("kind", kind, KINDS)
    check_option("direction", direction, DIRECTIONS)
    clean_tokens = model.check_tokens(clean)
    corrupted_tokens = model.check_tokens(corrupted)
    if clean_tokens.shape != corrupted_tokens.shape:
        raise ValueError(
            f"corrupted: expected the clean tokens' shape {list(clean_tokens.shape)}, got "
            f"{list(corrupted_tokens.shape)}"
        )
    if direction == "denoise":
        into, taken = corrupted_tokens, clean_tokens
    else:
        into, taken = clean_tokens, corrupted_tokens
    length = clean_tokens.shape[1]
    parts = _parts(model, kind)
    counter = _Counter(_n_patches(model, kind, length), progress)
    values = torch.full((len(model.blocks), length, len(parts)), torch.nan, dtype=torch.float64)
    with torch.no_grad():
        clean_outputs = predictions_of(model, clean_tokens)
        corrupted_outputs = predictions_of(model, corrupted_tokens)
        measure = metric or _negative_kl_to(clean_outputs)
        for layer, patches in enumerate(_patches_by_layer(model, into, taken, kind)):
            outputs = _run_patches(model, patches, counter)
            for (position, part), output in outputs.items():
                values[layer, position, part] = float(measure(output))
    return SweepResult(
        kind=kind,
        direction=direction,
        values=values,
        parts=parts,
        clean=float(measure(clean_outputs)),
        corrupted=float(measure(corrupted_outputs)),
        metric=NEGATIVE_KL if metric is None else "the given metric",
        n_sequences=len(clean_tokens),
        seed=None,
    )


def _negative_kl_to(clean: Float[Tensor, "batch vocab"]) -> Metric:
    """The default metric: minus the mean KL(clean prediction ‖ prediction)."""
    target = to_distribution(clean)

    def negative_kl(outputs: Float[Tensor, "batch vocab"]) -> Tensor:
        found = to_distribution(outputs)
        return -kl_divergence(target, found).mean()

    return negative_kl


def _parts(model: LensTransformer, kind: str) -> tuple[str, ...]:
    """The names of the parts of a place; a layer may have only the first of them."""
    blocks = model.layers
    if kind == "block":
        read_last = blocks[-1].reads.stop
        return tuple(name for name, columns in model.stream.items() if columns.stop <= read_last)
    if kind == "head":
        most_heads = max(block.attn.n_heads for block in blocks)
        return tuple(f"H{head}" for head in range(1, most_heads + 1))
    return ("all",)


def _columns_read(model: LensTransformer, block: HookedBlock) -> list[slice]:
    """The columns of each named block of the stream that a layer reads."""
    return [columns for columns in model.stream.values() if columns.stop <= block.reads.stop]


def _n_patches(model: LensTransformer, kind: str, length: int) -> int:
    """The number of patches of a whole sweep."""
    blocks = model.layers
    if kind == "block":
        n_parts = sum(len(_columns_read(model, block)) for block in blocks)
    elif kind == "head":
        n_parts = sum(block.attn.n_heads for block in blocks)
    else:
        n_parts = len(blocks)
    return length * n_parts


class _Counter:
    """Counts finished patches and reports them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = total
        self.progress = progress
        self.done = 0

    def add(self, count: int) -> None:
        """Count this many more patches as finished."""
        self.done += count
        if self.progress is not None:
            self.progress(self.done, self.total)


@dataclass(frozen=True, eq=False)
class _Patches:
    """All patches of one layer: a stream, and the change that each part makes to it."""

    first_layer: int
    """The layer that the patched stream enters."""
    stream: Float[Tensor, "batch pos d"]
    changes: Sequence[Float[Tensor, "batch pos d"]]
    """One change per part, to be added at one position at a time."""


def _patches_by_layer(
    model: LensTransformer, into: Tensor, taken: Tensor, kind: str
) -> Iterator[_Patches]:
    """The patches of every layer, one layer at a time because changes are large.

    Args:
        model: the model to run.
        into: token ids [batch, pos] of the run that is patched.
        taken: token ids [batch, pos] of the run that patches are taken from.
        kind: what is patched, one of `KINDS`.

    Yields:
        The patches of each layer, in order.
    """
    names = []
    for layer in range(len(model.blocks)):
        names += [_stream_hook(layer), _written_hook(layer), _heads_hook(layer)]
    here = activations(model, into, names)
    there = activations(model, taken, names)
    for layer, block in enumerate(model.layers):
        stream = here[_stream_hook(layer)][..., block.reads]
        if kind in ("resid_pre", "block"):
            change = there[_stream_hook(layer)][..., block.reads] - stream
            changes = [change]
            if kind == "block":
                changes = [_only(change, columns) for columns in _columns_read(model, block)]
            yield _Patches(layer, stream, changes)
            continue
        written = here[_written_hook(layer)][..., block.writes]
        if kind == "attn_out":
            written_changes = [there[_written_hook(layer)][..., block.writes] - written]
        else:
            heads_change = there[_heads_hook(layer)] - here[_heads_hook(layer)]
            written_changes = _changes_by_head(block, heads_change)
        nothing = torch.zeros_like(stream)
        changes = [block.write(nothing, change) for change in written_changes]
        yield _Patches(layer + 1, block.write(stream, written), changes)


def _stream_hook(layer: int) -> str:
    return f"blocks.{layer}.hook_resid_pre"


def _written_hook(layer: int) -> str:
    return f"blocks.{layer}.hook_attn_out"


def _heads_hook(layer: int) -> str:
    return f"blocks.{layer}.attn.hook_z"


def _changes_by_head(
    block: HookedBlock, change: Float[Tensor, "batch pos head d_head"]
) -> list[Float[Tensor, "batch pos d_written"]]:
    """The change of a layer's write due to each head, from the change of what heads gather."""
    output_matrices = block.attn.W_O  # [head, d_head, d_model]
    changes = []
    for head in range(block.attn.n_heads):
        written = change[:, :, head] @ output_matrices[head]
        changes.append(written[..., block.writes])
    return changes


def _only(change: Tensor, columns: slice) -> Tensor:
    """The change in these columns, zero elsewhere."""
    kept = torch.zeros_like(change)
    kept[..., columns] = change[..., columns]
    return kept


def _run_patches(
    model: LensTransformer, patches: _Patches, counter: _Counter
) -> dict[tuple[int, int], Float[Tensor, "batch vocab"]]:
    """Run the remaining layers with each change at each position alone, in batches.

    Args:
        model: the model to run.
        patches: the patches of one layer.
        counter: called with the number of finished patches.

    Returns:
        Predictions at the last position, [batch, vocab], by position and part.
    """
    batch, length, _ = patches.stream.shape
    cells = [divmod(cell, len(patches.changes)) for cell in range(length * len(patches.changes))]
    at_once = max(1, CELLS_AT_ONCE // (batch * length * length))
    outputs: dict[tuple[int, int], Tensor] = {}
    for start in range(0, len(cells), at_once):
        chunk = cells[start : start + at_once]
        patched = patches.stream.repeat(len(chunk), 1, 1)
        rows_by_cell = patched.split(batch)
        for rows, (position, part) in zip(rows_by_cell, chunk, strict=True):
            rows[:, position] += patches.changes[part][:, position]
        found = model.run_layers(
            patched, patches.first_layer, last_only=True, watched=model.is_watched
        )
        probabilities = model.to_probabilities(found[:, -1].double())
        outputs.update(zip(chunk, probabilities.split(batch), strict=True))
        counter.add(len(chunk))
    return outputs
