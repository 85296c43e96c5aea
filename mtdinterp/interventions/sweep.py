"""Patch every place in turn, many at a time.

A patch at layer l leaves everything before it as it was, so a patched run starts there: from the
stream that the unpatched run already has, with one place taken from the other run, through the
layers that are left. Hundreds of such streams go through them as one batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_option
from mtdinterp.interventions.hooking import activations
from mtdinterp.metrics import NO_LEVEL, clip_to_distribution, kl_divergence
from mtdinterp.models import LensTransformer
from mtdinterp.pages.blocks import Block, Map, Maps, Table, Text
from mtdinterp.readings import predictions_of
from mtdinterp.results import Result

KINDS = {
    "resid_pre": "the whole stream before a layer",
    "attn_out": "what a layer writes",
    "block": "one named block of the stream before a layer",
    "head": "what one head writes",
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
    "denoise": "The clean run's activations are put into the corrupted run, one place at a time",
    "noise": "The corrupted run's activations are put into the clean run, one place at a time",
}
"""For each direction of a sweep, what is patched."""
STRONGEST = 6
"""How many patched places the report lists."""
CELLS_AT_ONCE = 2**22
"""Attention entries a layer of the patched runs that go through the model together."""

Metric = Callable[[Float[Tensor, "batch vocab"]], Tensor | float]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepResult(Result):
    """A metric of the predictions for every patched place."""

    kind: str
    direction: str
    values: Float64[Tensor, "layer position part"]
    """`part` is a block or a head, or one entry for the whole; not a number where a block does not
    exist yet."""
    parts: tuple[str, ...]
    clean: float
    corrupted: float
    """The metric without patches."""

    @property
    def unpatched(self) -> float:
        """The metric of the run that patches go into."""
        return self.corrupted if self.direction == "denoise" else self.clean

    def effects(self, layer: int) -> dict[str, Float64[Tensor, " position"]]:
        """How patching each part before a layer moves the metric, for the parts that are there."""
        moved = (self.values[layer] - self.unpatched).T
        return {
            name: row for name, row in zip(self.parts, moved, strict=True) if not row.isnan().all()
        }

    def strongest(self, count: int = 1) -> list[tuple[int, int, int]]:
        """Places whose patch moves the metric most: layer, position and part, counted from 0."""
        moved = (self.values - self.unpatched).abs().nan_to_num(-1)
        order = moved.flatten().argsort(descending=True, stable=True)[:count]
        return [tuple(int(i) for i in torch.unravel_index(flat, moved.shape)) for flat in order]  # type: ignore[misc]

    def summary(self) -> str:
        layer, position, part = self.strongest()[0]
        place = f"layer {layer + 1}, position {position}" + (
            f", {self.parts[part]}" if self.parts != ("all",) else ""
        )
        return (
            f"{KINDS[self.kind]}, {DIRECTIONS[self.direction]}: the metric is "
            f"{self.clean + 0.0:.4g} clean and "
            f"{self.corrupted:.4g} corrupted; the strongest patch is {place}: "
            f"{self.values[layer, position, part].item():.4g}."
        )

    def blocks(self) -> list[Block]:
        """Which share of the way from the corrupted to the clean run each patch covers."""
        way = self.clean - self.corrupted
        if not abs(way) > NO_LEVEL:
            return [Text(("Both runs predict the same, so there is nothing to restore.",))]
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
        return [
            Text(
                (f"{SWEPT_RUNS[self.direction]} ({self.n_sequences} pairs of sequences).",), "soft"
            ),
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
    """Patch every layer, position and (for blocks and heads) part of a pair, or of a batch of
    pairs, of sequences.

    The metric is of the predictions at the last position, [batch, vocab], unclipped; by default
    minus the mean KL(clean prediction ‖ prediction), which is 0 where everything is recovered.
    `progress` is called with how many of all patches are done; what it raises ends the sweep.
    """
    check_option("kind", kind, KINDS)
    check_option("direction", direction, DIRECTIONS)
    first, second = model.check_tokens(clean), model.check_tokens(corrupted)
    if first.shape != second.shape:
        raise ValueError(
            f"corrupted: expected the clean tokens' shape {list(first.shape)}, got "
            f"{list(second.shape)}"
        )
    with torch.no_grad():
        outputs = {
            "clean": predictions_of(model, first),
            "corrupted": predictions_of(model, second),
        }
        measure = metric or _distance_to(outputs["clean"])
        into, taken = (second, first) if direction == "denoise" else (first, second)
        layers = [
            torch.tensor(
                [[float(measure(part)) for part in row] for row in rows], dtype=torch.float64
            )
            for rows in _patched(
                model, into, taken, kind, _counter(model, kind, first.shape[1], progress)
            )
        ]
    names = _parts(model, kind)
    width = len(names)
    values = torch.full((len(layers), first.shape[1], width), torch.nan, dtype=torch.float64)
    for layer, found in enumerate(layers):
        values[layer, :, : found.shape[1]] = found
    return SweepResult(
        kind=kind,
        direction=direction,
        values=values,
        parts=names,
        clean=float(measure(outputs["clean"])),
        corrupted=float(measure(outputs["corrupted"])),
        n_sequences=len(first),
        seed=None,
    )


def _distance_to(clean: Float[Tensor, "batch vocab"]) -> Metric:
    target = clip_to_distribution(clean)[0]
    return lambda outputs: -kl_divergence(target, clip_to_distribution(outputs)[0]).mean()


def _parts(model: LensTransformer, kind: str) -> tuple[str, ...]:
    last = cast(Any, model.blocks[-1])
    if kind == "block":
        return tuple(
            name for name, columns in model.stream.items() if columns.stop <= last.reads.stop
        )
    if kind == "head":
        return tuple(
            f"H{head + 1}"
            for head in range(max(cast(Any, block).attn.n_heads for block in model.blocks))
        )
    return ("all",)


def _counter(
    model: LensTransformer, kind: str, length: int, progress: Progress | None
) -> Callable[[int], None]:
    """Counts patches that were run, and tells `progress`."""
    if progress is None:
        return lambda count: None
    blocks = [cast(Any, block) for block in model.blocks]
    parts = {
        "block": lambda block: len(_blocks_read(model, block)),
        "head": lambda block: block.attn.n_heads,
    }
    total = length * sum(parts.get(kind, lambda block: 1)(block) for block in blocks)
    done = 0

    def count_and_tell(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    return count_and_tell


def _blocks_read(model: LensTransformer, block: Any) -> list[slice]:
    """Columns of the named blocks that a layer reads."""
    return [part for part in model.stream.values() if part.stop <= block.reads.stop]


def _patched(
    model: LensTransformer, into: Tensor, taken: Tensor, kind: str, count: Callable[[int], None]
) -> Iterator[list[list[Float[Tensor, "batch vocab"]]]]:
    """For every layer, the outputs of every patched run, by position and part."""
    shown = [
        f"blocks.{layer}.{hook}"
        for layer in range(len(model.blocks))
        for hook in ("hook_resid_pre", "hook_attn_out", "attn.hook_z")
    ]
    here, there = activations(model, into, shown), activations(model, taken, shown)
    for layer, entry in enumerate(model.blocks):
        block = cast(Any, entry)
        before, wrote, by_head = shown[3 * layer : 3 * layer + 3]
        stream, written = here[before][..., block.reads], here[wrote][..., block.writes]
        if kind in ("resid_pre", "block"):
            columns = (
                _blocks_read(model, block) if kind == "block" else [slice(0, stream.shape[-1])]
            )
            other = there[before][..., block.reads]
            yield _through(
                model, layer, stream, [_columns_of(other - stream, part) for part in columns], count
            )
            continue
        if kind == "attn_out":
            changes = [there[wrote][..., block.writes] - written]
        else:
            difference = there[by_head] - here[by_head]
            changes = [
                (difference[:, :, head] @ block.attn.W_O[head])[..., block.writes]
                for head in range(block.attn.n_heads)
            ]
        yield _through(
            model,
            layer + 1,
            block.write(stream, written),
            [block.write(torch.zeros_like(stream), change) for change in changes],
            count,
        )


def _columns_of(change: Tensor, columns: slice) -> Tensor:
    """The change in these columns, nothing elsewhere."""
    kept = torch.zeros_like(change)
    kept[..., columns] = change[..., columns]
    return kept


def _through(
    model: LensTransformer,
    layer: int,
    stream: Float[Tensor, "batch pos d"],
    changes: list[Float[Tensor, "batch pos d"]],
    count: Callable[[int], None],
) -> list[list[Float[Tensor, "batch vocab"]]]:
    """Outputs of the layers from `layer` on for the stream with each change at each position
    alone."""
    batch, length, _ = stream.shape
    cells = [(position, part) for position in range(length) for part in range(len(changes))]
    at_once = max(1, CELLS_AT_ONCE // (batch * length * length))
    outputs: list[list[Tensor]] = [[] for _ in range(length)]
    for start in range(0, len(cells), at_once):
        some = cells[start : start + at_once]
        patched = stream.repeat(len(some), 1, 1)
        for row, (position, part) in enumerate(some):
            patched[row * batch : (row + 1) * batch, position] += changes[part][:, position]
        found = model.run_layers(patched, layer, last_only=True, watched=model.is_watched)[
            :, -1
        ].double()
        found = model.to_probabilities(found)
        for row, (position, _) in enumerate(some):
            outputs[position].append(found[row * batch : (row + 1) * batch])
        count(len(some))
    return outputs
