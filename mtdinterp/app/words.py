"""Edits as one line of text, the same for edits of the page and for those of a notebook."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtdinterp.app.scene import Scene
from mtdinterp.app.state import EditState, SourceState
from mtdinterp.interventions import Edit, FromRun, MeanOver, Noise, Share
from mtdinterp.interventions.edits import Place, Source
from mtdinterp.interventions.places import hook_name

HOOKS = {
    "pattern": "attention",
    "attn_scores": "attention scores",
    "rel_scores": "position scores",
    "resid_pre": "stream before the layer",
    "attn_out": "layer output",
    "resid_post": "stream after the layer",
    "q": "queries",
    "p": "position queries",
    "k": "keys",
    "v": "values",
    "z": "head outputs",
}
"""Hook points that the page offers, in their order within a layer, with their labels."""
WITH_KEYS = ("pattern", "attn_scores", "rel_scores")
WITH_BLOCKS = ("resid_pre", "attn_out", "resid_post")
MOST_NUMBERS = 6
"""How many numbers of a list are shown."""


def reference_name(scene: Scene) -> str:
    """The kind of reference model in a scene: construction or checkpoint."""
    return "construction" if scene.state.model.role == "checkpoint" else "checkpoint"


def describe(scene: Scene, edit: EditState) -> str:
    """An edit of the page in one line."""
    source = _source_text(scene, edit.source)
    if edit.source.kind == "weights":
        layer = len(scene.model.blocks) if edit.layer is None else edit.layer + 1
        return f"In-context weights of layer {layer} ← {source}"
    position = None if edit.position is None else range(*edit.position)
    key = None if edit.key is None else range(*edit.key)
    place = _place_text(edit.hook, edit.layer, edit.block, edit.head, position, key)
    return f"{place} ← {source}"


def describe_extra(scene: Scene, edit: Edit) -> str:
    """An edit of the library in one line."""
    name = hook_name(scene.model, edit)
    layer = int(name.split(".")[1]) if name.startswith("blocks.") else None
    keys = edit.source.keys if isinstance(edit.source, Share) else edit.key
    place = _place_text(
        hook=name.rsplit("hook_", 1)[1],
        layer=layer,
        block=edit.block,
        head=None if edit.head is None else int(edit.head),
        position=_chosen(edit.position, scene.length),
        key=_chosen(keys, scene.length),
    )
    return f"{place} ← {_library_source_text(scene, edit.source)}"


def _place_text(
    hook: str,
    layer: int | None,
    block: str | None,
    head: int | None,
    position: Sequence[int] | None,
    key: Sequence[int] | None,
) -> str:
    label = HOOKS.get(hook, hook)
    parts = [label.capitalize() if layer is None else f"Layer {layer + 1}: {label}"]
    if block:
        parts.append(f"block {block}")
    if head is not None:
        parts.append(f"head {head + 1}")
    if position is not None:
        axis = "query" if hook in WITH_KEYS else "position"
        parts.append(f"{axis} {_indices(position)}")
    if key is not None:
        parts.append(f"key {_indices(key)}")
    return ", ".join(parts)


def _source_text(scene: Scene, source: SourceState) -> str:
    values = _numbers(source.values or ())
    text = {
        "zero": "zero",
        "mean": "its mean",
        "sequence": "source sequence",
        "reference": f"the {reference_name(scene)}",
        "number": f"{source.value or 0:.3g}",
        "values": values,
        "weights": values,
        "share": f"share {source.value or 0:.3g}",
    }[source.kind]
    return text + _from_where(source.layer, source.position)


def _library_source_text(scene: Scene, source: Source) -> str:
    if isinstance(source, FromRun):
        return _run_text(scene, source)
    if isinstance(source, Tensor | np.ndarray):
        return _numbers(torch.as_tensor(source).flatten().tolist())
    if isinstance(source, int | float | np.number):
        return f"{float(source):.3g}"
    if isinstance(source, MeanOver):
        return "its mean"
    if isinstance(source, Noise):
        return f"itself plus noise with {source.scale:g} times its standard deviation"
    if isinstance(source, Share):
        return f"share {source.value:.3g}"
    return source if isinstance(source, str) else "a function of its value"


def _run_text(scene: Scene, source: FromRun) -> str:
    tokens = torch.atleast_2d(torch.as_tensor(source.tokens))
    text = "another sequence"
    if torch.equal(tokens, scene.tokens):
        text = "the sequence itself"
    elif scene.source is not None and torch.equal(tokens, scene.source):
        text = "source sequence"
    if source.model is not None:
        text = f"another model on {text}"
    position = None if source.position is None else source.position % scene.length
    return text + _from_where(source.layer, position)


def _from_where(layer: int | None, position: int | None) -> str:
    text = "" if layer is None else f", layer {layer + 1}"
    if position is not None:
        text += f", position {position}"
    return text


def _numbers(values: Sequence[float]) -> str:
    shown = " ".join(f"{value:.3g}" for value in values[:MOST_NUMBERS])
    return f"{shown} …" if len(values) > MOST_NUMBERS else shown


def _chosen(place: Place | None, length: int) -> list[int] | None:
    """The positions that an index, a slice or several indices select; None for no choice."""
    if place is None:
        return None
    index: Any = place if isinstance(place, slice) else torch.as_tensor(place)
    return torch.arange(length)[index].flatten().tolist()


def _indices(indices: Sequence[int]) -> str:
    """Indices as text: a run of several as first–last."""
    if len(indices) > 1 and list(indices) == list(range(indices[0], indices[-1] + 1)):
        return f"{indices[0]}–{indices[-1]}"
    return ", ".join(map(str, indices))
