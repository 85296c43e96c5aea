"""What an edit puts in its place: taken from other runs, drawn, computed or given, in the shape of
the place."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from mtdinterp.checks import check_number, check_option
from mtdinterp.interventions.edits import Edit, FromRun, MeanOver, Noise
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.indices import counted, positions_of
from mtdinterp.interventions.places import SCORES, place_of
from mtdinterp.models import LensTransformer


def activations_for(
    model: LensTransformer, tokens: Tensor, edits: Sequence[Edit], names: Sequence[str]
) -> Mapping[int, Tensor]:
    """What other runs show at the place of an edit, by the edit's number."""
    wanted: dict[tuple[int, int], list[int]] = {}
    for number, edit in enumerate(edits):
        if isinstance(edit.source, FromRun | MeanOver):
            other = (
                edit.source.model
                if isinstance(edit.source, FromRun) and edit.source.model is not None
                else model
            )
            wanted.setdefault((id(other), id(edit.source.tokens)), []).append(number)
    seen: dict[int, Tensor] = {}
    for numbers in wanted.values():
        source = cast(FromRun | MeanOver, edits[numbers[0]].source)
        other = source.model if isinstance(source, FromRun) and source.model is not None else model
        given = other.check_tokens(source.tokens)
        if given.shape[1] != tokens.shape[1]:
            raise ValueError(
                f"source: expected a run of the same length, {tokens.shape[1]}, got "
                f"{given.shape[1]}"
            )
        taken = {number: _name_in_source(other, edits[number], names[number]) for number in numbers}
        cache = activations(other, given, list(taken.values()))
        for number, name in taken.items():
            value = taken_from(other, edits[number], name, cache[name])
            seen[number] = (
                value.mean(0, keepdim=True) if isinstance(edits[number].source, MeanOver) else value
            )
    return seen


def _name_in_source(other: LensTransformer, edit: Edit, name: str) -> str:
    """The hook point of the source's run that answers the edited one."""
    layer = edit.source.layer if isinstance(edit.source, FromRun) else None
    if layer is not None and name.startswith("blocks."):
        layer = counted("source layer", layer, len(other.blocks), "expected a layer of")
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
    edited = positions_of(edit.position, length)
    if not isinstance(edited, Tensor) or (edited.diff() != 1).any():
        raise ValueError(
            "position: a source from another position needs positions in a row to go to"
        )
    start = counted("source position", start, length, "expected a position of")
    if start + len(edited) > length:
        raise ValueError(
            f"source position: {len(edited)} positions from {start} on are more than there are"
        )
    moved = replace(edit, position=slice(start, start + len(edited)), key=None)
    value = shown[place_of(other, moved, name, length)]
    if not is_scores:
        return value
    by_offset = value.roll(int(edited[0]) - start, -1)
    future = torch.arange(length) > edited[:, None]
    wrapped = torch.arange(length) < int(edited[0]) - start
    nothing = float("-inf") if name.endswith("hook_attn_scores") else 0.0
    by_offset = by_offset.masked_fill(future | wrapped, nothing)
    return by_offset[..., positions_of(edit.key, length, "key")]


def check_source(source: Any) -> None:
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
        raise ValueError(
            "source: expected 'zero', a number, a tensor, FromRun, MeanOver, Noise, Share or a "
            "function, "
            f"got {type(source).__name__}"
        )


def fitted(edit: Edit, there: Tensor, activation: Tensor | None, position_axis: int) -> Tensor:
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
            raise ValueError(
                f"source: the function for {edit.hook} returned {type(new).__name__}, not a tensor"
            )
    else:
        new = torch.as_tensor(source)
    if isinstance(edit.position, int) and new.ndim == there.ndim - 1:
        new = new.unsqueeze(position_axis)  # one position may come without its axis
    try:
        return new.to(there).expand_as(there)
    except RuntimeError:
        raise ValueError(
            f"source: the place at {edit.hook} has shape {list(there.shape)}, the source "
            f"{list(new.shape)}, which does not fit"
        ) from None
