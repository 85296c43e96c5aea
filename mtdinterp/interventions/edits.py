"""What to change in a run: an edit names a place and what to put there.

A place is a hook point, and there a position, a key, a head, a named block of the stream, or all of it. Everything is
checked before the model runs, by what the hook point shows; a wrong name or size is an error that says what exists.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import index
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_number, check_option
from mtdinterp.models import LensTransformer

SCORES = ("hook_attn_scores", "hook_rel_scores", "hook_pattern")
"""Hook points with axes [batch, head, query, key]."""
BY_HEAD = ("hook_q", "hook_k", "hook_v", "hook_p", "hook_z", "hook_result", "hook_attn_in", "hook_q_input",
           "hook_k_input", "hook_v_input")
"""Hook points with axes [batch, pos, head, d]; all others have [batch, pos, d_model]."""
STREAM_WIDE = ("hook_embed", "hook_resid_pre", "hook_resid_post", "hook_attn_out", "hook_mlp_in", "hook_mlp_out",
               "hook_result", "hook_attn_in", "hook_q_input", "hook_k_input", "hook_v_input")
"""Hook points whose last axis is the final stream, where blocks have their columns."""

SWITCHES = {"hook_result": "use_attn_result", "hook_attn_in": "use_attn_in", "hook_q_input": "use_split_qkv_input",
            "hook_k_input": "use_split_qkv_input", "hook_v_input": "use_split_qkv_input"}
"""Hook points that only fire when TransformerLens' switch for them is on."""

Hook = tuple[str, Callable[..., Tensor | None]]
"""The name of a hook point, and a function of its activation and itself."""


@dataclass(frozen=True, eq=False)
class FromRun:
    """The activation of another run: of the same model on other tokens, or of another model.

    It is taken where it is put, unless `layer` or `position` (the first one, as many as are edited) say otherwise. An
    attention row that comes from another position keeps its offsets, not its keys: lags stay lags.
    """

    tokens: ArrayLike
    model: LensTransformer | None = None
    layer: int | None = None
    position: int | None = None


@dataclass(frozen=True, eq=False)
class MeanOver:
    """The mean of the activation over sequences, position by position."""

    tokens: ArrayLike


@dataclass(frozen=True)
class Noise:
    """The activation plus normal noise of `scale` times its own standard deviation in the edited place."""

    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Share:
    """Attention rows with `value` of their sum on the given keys; on both sides of that, proportions stay as they were.

    Keys that had nothing share evenly; where there is nothing else to take from or give to, the rest stays nothing.
    """

    value: float
    keys: int | slice | Sequence[int]

    def __call__(self, rows: Tensor) -> Tensor:
        chosen = torch.zeros(rows.shape[-1], dtype=torch.bool)
        chosen[_position(self.keys, rows.shape[-1])] = True
        total = rows.sum(-1, keepdim=True)
        inside, outside = rows * chosen, rows * ~chosen
        had, left = inside.sum(-1, keepdim=True), outside.sum(-1, keepdim=True)
        inside = torch.where(had > 0, inside / had.clamp_min(1e-30), chosen / chosen.sum())
        return inside * self.value * total + outside * (1 - self.value) * total / left.clamp_min(1e-30)


Place = int | slice | Sequence[int] | np.integer | np.ndarray | Tensor
Source = str | Tensor | np.ndarray | np.number | float | FromRun | MeanOver | Noise | Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Edit:
    """Put `source` at a place of a run.

    `hook` is a hook point's full name, or its short name ("pattern", "resid_pre", "z") with a `layer`, counted from 0.
    `position` is an index, a slice or several indices of positions (of queries where there are queries), `head` one
    head, `block` a named block of the stream, `key` keys of attention. The source is "zero", a number or tensor that
    fits the place, `FromRun`, `MeanOver`, `Noise`, `Share`, or a function from what is there to what should be.
    """

    hook: str
    source: Source
    position: Place | None = None
    head: int | np.integer | None = None
    block: str | None = None
    layer: int | np.integer | None = None
    key: Place | None = None


def hook_name(model: LensTransformer, edit: Edit) -> str:
    """The full name of the hook point that an edit means."""
    names = list(model.hook_dict)
    if edit.layer is None:
        return check_option("hook", edit.hook, names)
    layer = _counted("layer", edit.layer, len(model.blocks), "expected a layer of")
    short = str(edit.hook).removeprefix("hook_")
    prefix = f"blocks.{layer}."
    here = {name.rsplit("hook_", 1)[1]: name for name in names if name.startswith(prefix)}
    return here[check_option("hook", short, here)]


def place_of(model: LensTransformer, edit: Edit, name: str, length: int) -> tuple[Any, ...]:
    """The index of the edited place in what the hook point shows."""
    kind = name.rsplit(".", 1)[-1]
    position = _position(edit.position, length)
    if edit.key is not None and kind not in SCORES:
        raise ValueError(f"key: {name} has no keys; those are at {', '.join(SCORES)}")
    if kind in SCORES:
        keys = _position(edit.key, length, "key")
        if isinstance(position, Tensor) and isinstance(keys, Tensor):
            position = position[:, None]  # every chosen key of every chosen query, not pair by pair
        place: tuple[Any, ...] = (slice(None), _head(model, edit, name), position, keys)
    elif kind in BY_HEAD:
        place = (slice(None), position, _head(model, edit, name), slice(None))
    else:
        if edit.head is not None:
            raise ValueError(f"head: {name} has no heads; try hook_z, hook_result or hook_pattern of its layer")
        place = (slice(None), position, slice(None))
    if edit.block is None:
        return place
    if kind not in STREAM_WIDE:
        raise ValueError(f"block: {name} does not show the stream; blocks can be edited at {', '.join(STREAM_WIDE)}")
    return (*place[:-1], _columns(model, edit.block, name, kind))


def _position(position: Any, length: int, what: str = "position") -> Any:
    if position is None:
        return slice(None)
    try:
        if isinstance(position, slice):
            chosen = list(range(length))[position]
        else:
            chosen = [index(entry) for entry in np.atleast_1d(np.asarray(position)).tolist()]
    except (TypeError, ValueError):
        raise ValueError(f"{what}: expected an index, a slice or indices of positions, got {position!r}") from None
    if not chosen:
        raise ValueError(f"{what}: {position} selects none of the {length} positions")
    for entry in chosen:
        if not -length <= entry < length:
            raise ValueError(f"{what}: expected positions of {-length}..{length - 1}, got {entry!r}")
    return torch.tensor([entry % length for entry in chosen])


def _counted(name: str, value: Any, count: int, what: str) -> int:
    """An index of `count` things, negative ones from the end."""
    try:
        number = index(value)
    except TypeError:
        number = count
    if isinstance(value, bool) or not -count <= number < count:
        raise ValueError(f"{name}: {what} 0..{count - 1}, got {value!r}")
    return number % count


def _head(model: LensTransformer, edit: Edit, name: str) -> slice:
    n_heads = cast(Any, model.blocks[int(name.split(".")[1])]).attn.n_heads
    if edit.head is None:
        return slice(None)
    head = _counted("head", edit.head, n_heads, f"{name} has heads")
    return slice(head, head + 1)


def _columns(model: LensTransformer, block: str, name: str, kind: str) -> slice:
    """The block's columns, if they exist at this point of the model."""
    columns = model.stream[block]
    if kind == "hook_embed":
        exist = cast(Any, model.blocks[0]).reads
    else:
        layer = cast(Any, model.blocks[int(name.split(".")[1])])
        after = slice(0, max(layer.reads.stop, layer.writes.stop))
        exist = {"hook_attn_out": layer.writes, "hook_result": layer.writes, "hook_resid_post": after,
                 "hook_mlp_in": after, "hook_mlp_out": after}.get(kind, layer.reads)
    if not (exist.start <= columns.start and columns.stop <= exist.stop):
        there = [other for other, part in model.stream.items() if exist.start <= part.start and part.stop <= exist.stop]
        raise ValueError(f"block: {block} does not exist at {name}; there are {', '.join(there)}")
    return columns


@contextmanager
def hooked(model: LensTransformer, hooks: Sequence[Hook]) -> Iterator[None]:
    """Inside, the hooks are on the model and the hook points they need are switched on; nothing of it stays after."""
    switches = {SWITCHES[kind] for name, _ in hooks if (kind := name.rsplit(".", 1)[-1]) in SWITCHES}
    if {"use_attn_in", "use_split_qkv_input"} <= switches:
        raise ValueError("edits: hook_attn_in and the hook_q_input, hook_k_input, hook_v_input exclude each other")
    before = {switch: getattr(model.cfg, switch) for switch in SWITCHES.values()}
    try:
        for switch in ("use_attn_in", "use_split_qkv_input") if switches - {"use_attn_result"} else ():
            setattr(model.cfg, switch, switch in switches)
        model.cfg.use_attn_result = before["use_attn_result"] or "use_attn_result" in switches
        with model.hooks(fwd_hooks=list(hooks)):
            yield
    finally:
        for switch, value in before.items():
            setattr(model.cfg, switch, value)


def hooks_for(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], edits: Sequence[Edit]
) -> list[Hook]:
    """One hook an edit, in their order; sources that are runs are run here, once each."""
    if isinstance(edits, Edit) or not all(isinstance(edit, Edit) for edit in edits):
        raise ValueError("edits: expected a list of Edit objects")
    for edit in edits:
        _check_source(edit.source)
    names = [hook_name(model, edit) for edit in edits]
    places = [place_of(model, edit, name, tokens.shape[1]) for edit, name in zip(edits, names, strict=True)]
    seen = _activations(model, tokens, edits, names)
    return [(name, _hook(edit, name, place, seen.get(number)))
            for number, (edit, name, place) in enumerate(zip(edits, names, places, strict=True))]


def _activations(
    model: LensTransformer, tokens: Tensor, edits: Sequence[Edit], names: Sequence[str]
) -> Mapping[int, Tensor]:
    """What other runs show at the place of an edit, by the edit's number."""
    wanted: dict[tuple[int, int], list[int]] = {}
    for number, edit in enumerate(edits):
        if isinstance(edit.source, FromRun | MeanOver):
            other = edit.source.model if isinstance(edit.source, FromRun) and edit.source.model is not None else model
            wanted.setdefault((id(other), id(edit.source.tokens)), []).append(number)
    seen: dict[int, Tensor] = {}
    for numbers in wanted.values():
        source = cast(FromRun | MeanOver, edits[numbers[0]].source)
        other = source.model if isinstance(source, FromRun) and source.model is not None else model
        given = other.check_tokens(source.tokens)
        if given.shape[1] != tokens.shape[1]:
            raise ValueError(f"source: expected a run of the same length, {tokens.shape[1]}, got {given.shape[1]}")
        taken = {number: _name_in_source(other, edits[number], names[number]) for number in numbers}
        cache = activations(other, given, list(taken.values()))
        for number, name in taken.items():
            value = taken_from(other, edits[number], name, cache[name])
            seen[number] = value.mean(0, keepdim=True) if isinstance(edits[number].source, MeanOver) else value
    return seen


def _name_in_source(other: LensTransformer, edit: Edit, name: str) -> str:
    """The hook point of the source's run that answers the edited one."""
    layer = edit.source.layer if isinstance(edit.source, FromRun) else None
    if layer is not None and name.startswith("blocks."):
        layer = _counted("source layer", layer, len(other.blocks), "expected a layer of")
        name = ".".join(["blocks", str(layer), *name.split(".")[2:]])
    return check_option("hook of the source's model", name, other.hook_dict)


def taken_from(other: LensTransformer, edit: Edit, name: str, shown: Tensor) -> Tensor:
    """What an edit takes of all that a hook point of the source's run shows.

    The place is where the other model has it: its blocks may have other columns.
    """
    is_scores = name.rsplit(".", 1)[-1] in SCORES
    length = shown.shape[2 if is_scores else 1]
    start = edit.source.position if isinstance(edit.source, FromRun) else None
    if start is None:
        return shown[place_of(other, edit, name, length)]
    edited = _position(edit.position, length)
    if not isinstance(edited, Tensor) or (edited.diff() != 1).any():
        raise ValueError("position: a source from another position needs positions in a row to go to")
    start = _counted("source position", start, length, "expected a position of")
    if start + len(edited) > length:
        raise ValueError(f"source position: {len(edited)} positions from {start} on are more than there are")
    moved = replace(edit, position=slice(start, start + len(edited)), key=None)
    value = shown[place_of(other, moved, name, length)]
    if not is_scores:
        return value
    by_offset = value.roll(int(edited[0]) - start, -1)
    future = torch.arange(length) > edited[:, None]
    wrapped = torch.arange(length) < int(edited[0]) - start
    nothing = float("-inf") if name.endswith("hook_attn_scores") else 0.0
    by_offset = by_offset.masked_fill(future | wrapped, nothing)
    return by_offset[..., _position(edit.key, length, "key")]


def activations(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], names: Sequence[str]
) -> dict[str, Tensor]:
    """What some hook points show in a run, in full."""
    seen: dict[str, Tensor] = {}

    def look(value: Tensor, hook: Any) -> None:
        seen[hook.name] = value

    with torch.no_grad(), hooked(model, [(name, look) for name in dict.fromkeys(names)]):
        model(tokens)
    return seen


def _hook(edit: Edit, name: str, place: tuple[Any, ...], activation: Tensor | None) -> Callable[..., Tensor]:
    position_axis = 2 if name.rsplit(".", 1)[-1] in SCORES else 1

    def change(value: Tensor, hook: Any) -> Tensor:
        there = value[place]
        changed = value.clone()
        changed[place] = _fitting(edit, there, activation, position_axis)
        return changed

    return change


def _check_source(source: Any) -> None:
    """What can be said of a source before it meets its place."""
    if isinstance(source, str):
        check_option("source", source, ("zero",))
    elif isinstance(source, Noise):
        check_number("scale", source.scale, minimum=0)
    elif isinstance(source, Tensor | np.ndarray | np.number | float | int):
        try:
            value = torch.as_tensor(source)
        except (TypeError, RuntimeError, ValueError):
            raise ValueError(f"source: expected real numbers, got {source!r}"[:200]) from None
        if value.dtype == torch.bool or value.is_complex():
            raise ValueError(f"source: expected real numbers, got {value.dtype}")
        if value.isnan().any():
            raise ValueError("source: expected numbers, got nan")
    elif not (isinstance(source, FromRun | MeanOver) or callable(source)):
        raise ValueError("source: expected 'zero', a number, a tensor, FromRun, MeanOver, Noise or a function, got "
                         f"{type(source).__name__}")


def _fitting(edit: Edit, there: Tensor, activation: Tensor | None, position_axis: int) -> Tensor:
    """What the source says, in the shape and type of the place."""
    source = edit.source
    if activation is not None:
        new: Any = activation
    elif isinstance(source, str):
        new = torch.zeros_like(there)
    elif isinstance(source, Noise):
        generator = torch.Generator().manual_seed(source.seed)
        noise = torch.randn(there.shape, generator=generator, dtype=torch.float64).to(there)
        # Scores that are masked are minus infinity, and stay it.
        new = there + source.scale * there[there.isfinite()].std(unbiased=False) * noise
    elif callable(source):
        new = source(there)
        if not isinstance(new, Tensor):
            raise ValueError(f"source: the function for {edit.hook} returned {type(new).__name__}, not a tensor")
    else:
        new = torch.as_tensor(source)
    if isinstance(edit.position, int) and new.ndim == there.ndim - 1:
        new = new.unsqueeze(position_axis)  # one position may come without its axis
    try:
        return new.to(there).expand_as(there)
    except RuntimeError:
        raise ValueError(f"source: the place at {edit.hook} has shape {list(there.shape)}, the source "
                         f"{list(new.shape)}, which does not fit") from None
