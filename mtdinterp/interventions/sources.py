"""The value that an edit puts at its place, in the shape of that place.

Values are taken from other runs, drawn at random, computed by a function or given as numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mtdinterp.checks import check_number, check_option
from mtdinterp.interventions.edits import Edit, FromRun, MeanOver, Noise, Source
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.indices import counted, positions_of
from mtdinterp.interventions.places import has_keys, place_of
from mtdinterp.models import LensTransformer

RunSource = FromRun | MeanOver
"""Sources that need a run of a model."""


def activations_for(
    model: LensTransformer,
    tokens: Tensor,
    edits: Sequence[Edit],
    names: Sequence[str],
) -> Mapping[int, Tensor]:
    """Execute the runs that edits take activations from, once per model and tokens.

    Args:
        model: the edited model.
        tokens: token ids [batch, pos] of the edited run.
        edits: the edits.
        names: the full name of each edit's hook point.

    Returns:
        The activation for each edit that needs a run, by the edit's index.
    """
    numbers_by_run: dict[tuple[int, int], list[int]] = {}
    sources: dict[int, RunSource] = {}
    for number, edit in enumerate(edits):
        source = edit.source
        if isinstance(source, FromRun | MeanOver):
            run = (id(_model_of(source, model)), id(source.tokens))
            numbers_by_run.setdefault(run, []).append(number)
            sources[number] = source
    taken: dict[int, Tensor] = {}
    for numbers in numbers_by_run.values():
        source = sources[numbers[0]]
        source_model = _model_of(source, model)
        source_tokens = _tokens_of(source, source_model, tokens.shape[1])
        source_names = {
            number: _name_in_source(source_model, edits[number], names[number])
            for number in numbers
        }
        seen = activations(source_model, source_tokens, list(source_names.values()))
        for number, name in source_names.items():
            value = taken_from(source_model, edits[number], name, seen[name])
            if isinstance(sources[number], MeanOver):
                value = value.mean(0, keepdim=True)
            taken[number] = value
    return taken


def _model_of(source: RunSource, edited: LensTransformer) -> LensTransformer:
    """The model whose run a source is taken from."""
    if isinstance(source, FromRun) and source.model is not None:
        return source.model
    return edited


def _tokens_of(source: RunSource, model: LensTransformer, length: int) -> Tensor:
    """The source's tokens [batch, pos], checked to be as long as the edited run."""
    tokens = model.check_tokens(source.tokens)
    if tokens.shape[1] != length:
        raise ValueError(
            f"source: expected a run of the same length, {length}, got {tokens.shape[1]}"
        )
    return tokens


def _name_in_source(model: LensTransformer, edit: Edit, name: str) -> str:
    """The hook point of the source model that the edit takes its activation from."""
    layer = edit.source.layer if isinstance(edit.source, FromRun) else None
    if layer is not None and name.startswith("blocks."):
        layer = counted("source layer", layer, len(model.blocks), "expected a layer in")
        name = ".".join(["blocks", str(layer), *name.split(".")[2:]])
    return check_option("hook of the source's model", name, model.hook_dict)


def taken_from(model: LensTransformer, edit: Edit, name: str, activation: Tensor) -> Tensor:
    """The part of a source run's activation that an edit takes.

    Args:
        model: the model of the source run; its blocks may have other columns than the edited one's.
        edit: the edit; a `FromRun` source may name another position to take from.
        name: the full name of the hook point in the source model.
        activation: the complete activation of that hook point.

    Returns:
        The value for the edited place.
    """
    length = activation.shape[2 if has_keys(name) else 1]
    start = edit.source.position if isinstance(edit.source, FromRun) else None
    if start is None:
        return activation[place_of(model, edit, name, length)]
    edited = positions_of(edit.position, length)
    if not isinstance(edited, Tensor) or (edited.diff() != 1).any():
        raise ValueError(
            "position: a source from another position can only be written to consecutive positions"
        )
    start = counted("source position", start, length, "expected a position in")
    stop = start + len(edited)
    if stop > length:
        raise ValueError(
            f"source position: {len(edited)} positions starting at {start} exceed the length "
            f"{length}"
        )
    at_source = replace(edit, position=slice(start, stop), key=None)
    value = activation[place_of(model, at_source, name, length)]
    if not has_keys(name):
        return value
    empty = float("-inf") if name.endswith("hook_attn_scores") else 0.0
    rows = _moved_rows(value, edited, start, empty)
    return rows[..., positions_of(edit.key, length, "key")]


def _moved_rows(rows: Tensor, edited: Tensor, start: int, empty: float) -> Tensor:
    """Attention rows moved to other queries, with the same attention at each offset.

    Args:
        rows: [batch, head, query, key], taken from the queries `start`, `start + 1`, ….
        edited: the consecutive query positions that the rows go to.
        start: the first query that they were taken from.
        empty: the value for keys that the source rows do not reach.

    Returns:
        The moved rows, of the same shape.
    """
    length = rows.shape[-1]
    shift = int(edited[0]) - start
    keys = torch.arange(length)
    future = keys > edited[:, None]
    wrapped = keys < shift
    return rows.roll(shift, -1).masked_fill(future | wrapped, empty)


def check_source(source: Source) -> None:
    """Check what can be checked of a source before its place is known."""
    if isinstance(source, str):
        check_option("source", source, ("zero",))
    elif isinstance(source, Noise):
        check_number("scale", source.scale, minimum=0)
    elif isinstance(source, Tensor | np.ndarray | np.number | float | int):
        _check_numbers(source)
    elif not (isinstance(source, FromRun | MeanOver) or callable(source)):
        raise ValueError(
            "source: expected 'zero', a number, a tensor, FromRun, MeanOver, Noise, Share or a "
            f"function, got {type(source).__name__}"
        )


def _check_numbers(source: Tensor | np.ndarray | np.number | float) -> None:
    try:
        value = torch.as_tensor(source)
    except (TypeError, RuntimeError, ValueError):
        raise ValueError(f"source: expected real numbers, got {source!r}"[:200]) from None
    if value.dtype == torch.bool or value.is_complex():
        raise ValueError(f"source: expected real numbers, got {value.dtype}")
    if value.isnan().any():
        raise ValueError("source: expected numbers, got NaN")


def value_for_place(
    edit: Edit, current: Tensor, activation: Tensor | None, position_axis: int
) -> Tensor:
    """The value that an edit writes, cast and broadcast to the shape and type of its place.

    Args:
        edit: the edit.
        current: the value at the place without this edit.
        activation: the activation from another run, for sources that need one.
        position_axis: the axis of positions in `current`.

    Returns:
        The new value, with the shape of `current`.
    """
    new = _value(edit, current, activation)
    if isinstance(edit.position, int) and new.ndim == current.ndim - 1:
        new = new.unsqueeze(position_axis)  # one position may be given without its axis
    try:
        return new.to(current).expand_as(current)
    except RuntimeError:
        raise ValueError(
            f"source: shape {list(new.shape)} does not match the place at {edit.hook}, which has "
            f"shape {list(current.shape)}"
        ) from None


def _value(edit: Edit, current: Tensor, activation: Tensor | None) -> Tensor:
    """The edit's value, not yet in the shape of its place."""
    source = edit.source
    if activation is not None:
        return activation
    if isinstance(source, str):
        return torch.zeros_like(current)
    if isinstance(source, Noise):
        return _with_noise(current, source)
    if callable(source):
        new = source(current)
        if not isinstance(new, Tensor):
            raise ValueError(
                f"source: the function for {edit.hook} returned {type(new).__name__}, not a tensor"
            )
        return new
    return torch.as_tensor(source)


def _with_noise(current: Tensor, noise: Noise) -> Tensor:
    generator = torch.Generator().manual_seed(noise.seed)
    draws = torch.randn(current.shape, generator=generator, dtype=torch.float64).to(current)
    # Masked scores are -inf: they stay so, and do not count towards the standard deviation.
    deviation = current[current.isfinite()].std(unbiased=False)
    return current + noise.scale * deviation * draws
