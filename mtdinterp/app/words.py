"""Edits in words: the page's, and those that a notebook has in the library's own form, in the same
words."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mtdinterp.app.scene import Scene
from mtdinterp.app.state import EditState, SourceState
from mtdinterp.interventions import Edit, FromRun, MeanOver, Noise, Share
from mtdinterp.interventions.edits import Source
from mtdinterp.interventions.places import hook_name

HOOKS = {
    "pattern": "attention",
    "attn_scores": "attention scores",
    "rel_scores": "position scores",
    "resid_pre": "stream before the layer",
    "attn_out": "what the layer writes",
    "resid_post": "stream after the layer",
    "q": "queries",
    "p": "position queries",
    "k": "keys",
    "v": "values",
    "z": "what heads gather",
}
"""Hook points that the page offers, in the order a layer has them, and what they are."""
WITH_KEYS, WITH_BLOCKS = (
    ("pattern", "attn_scores", "rel_scores"),
    ("resid_pre", "attn_out", "resid_post"),
)
MOST_NUMBERS = 6
"""Shown of a longer list."""


def beside(scene: Scene) -> str:
    """What the model beside is."""
    return "construction" if scene.state.model.role == "checkpoint" else "checkpoint"


def describe(scene: Scene, edit: EditState) -> str:
    """An edit of the page."""
    source = _source_words(scene, edit.source)
    if edit.source.kind == "weights":
        layer = len(scene.model.blocks) if edit.layer is None else edit.layer + 1
        return f"In-context weights of layer {layer} ← {source}"
    position, key = (
        None if found is None else range(*found) for found in (edit.position, edit.key)
    )
    return _line(edit.hook, edit.layer, edit.block, edit.head, position, key, source)


def describe_extra(scene: Scene, edit: Edit) -> str:
    """An edit in the library's own form."""
    name = hook_name(scene.model, edit)
    layer = int(name.split(".")[1]) if name.startswith("blocks.") else None
    keys = edit.source.keys if isinstance(edit.source, Share) else edit.key
    position, key = (
        None if place is None else _chosen(place, scene.length) for place in (edit.position, keys)
    )
    head = None if edit.head is None else int(edit.head)
    return _line(
        name.rsplit("hook_", 1)[1],
        layer,
        edit.block,
        head,
        position,
        key,
        _library_source(scene, edit.source),
    )


def _line(
    hook: str,
    layer: int | None,
    block: str | None,
    head: int | None,
    position: Sequence[int] | None,
    key: Sequence[int] | None,
    source: str,
) -> str:
    place = HOOKS.get(hook, hook)
    words = [f"Layer {layer + 1}: {place}" if layer is not None else place.capitalize()]
    words += [f"block {block}"] if block else []
    words += [f"head {head + 1}"] if head is not None else []
    what = "query" if hook in WITH_KEYS else "position"
    words += [f"{what} {_places(position)}"] if position is not None else []
    words += [f"key {_places(key)}"] if key is not None else []
    return ", ".join(words) + " ← " + source


def _source_words(scene: Scene, source: SourceState) -> str:
    numbers = _numbers(source.values or ())
    words = {
        "zero": "zero",
        "mean": "its mean",
        "sequence": "source sequence",
        "reference": f"the {beside(scene)}",
        "number": f"{source.value or 0:.3g}",
        "values": numbers,
        "weights": numbers,
        "share": f"share {source.value or 0:.3g}",
    }[source.kind]
    return words + _where(source.layer, source.position)


def _library_source(scene: Scene, source: Source) -> str:
    if isinstance(source, FromRun):
        tokens = torch.atleast_2d(torch.as_tensor(source.tokens))
        known = {"the sequence itself": scene.tokens, "source sequence": scene.source}
        words = next(
            (
                name
                for name, other in known.items()
                if other is not None and torch.equal(tokens, other)
            ),
            "another sequence",
        )
        words = words if source.model is None else f"another model on {words}"
        return words + _where(
            source.layer, None if source.position is None else source.position % scene.length
        )
    if isinstance(source, Tensor | np.ndarray):
        return _numbers(torch.as_tensor(source).flatten().tolist())
    if isinstance(source, int | float | np.number):
        return f"{float(source):.3g}"
    if isinstance(source, MeanOver):
        return "its mean"
    if isinstance(source, Noise):
        return f"itself and noise of {source.scale:g} times its deviation"
    if isinstance(source, Share):
        return f"share {source.value:.3g}"
    return source if isinstance(source, str) else "a function of it"


def _where(layer: int | None, position: int | None) -> str:
    words = f", layer {layer + 1}" if layer is not None else ""
    return words + (f", position {position}" if position is not None else "")


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in values[:MOST_NUMBERS]) + (
        " …" if len(values) > MOST_NUMBERS else ""
    )


def _chosen(place: Any, length: int) -> list[int]:
    """The positions that an index, a slice or several indices mean."""
    index = place if isinstance(place, slice) else torch.as_tensor(place)
    return torch.arange(length)[index].flatten().tolist()


def _places(places: Sequence[int]) -> str:
    if len(places) > 1 and list(places) == list(range(places[0], places[-1] + 1)):
        return f"{places[0]}–{places[-1]}"
    return ", ".join(map(str, places))
