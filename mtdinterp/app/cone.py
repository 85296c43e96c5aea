"""The causal cone of an edit: the attention it can reach, and the attention it changed.

Attention is causal, so a change at position p can only reach positions from p on, in later layers:
as a key it enters the softmax of every later query, and so all of that query's row. This bound
holds for any weights. What did change is measured by running the model with this edit alone.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mtdinterp.app.scene import Scene
from mtdinterp.app.state import EditState, Range
from mtdinterp.metrics import kl_divergence, to_distribution, total_variation

CHANGED = 1e-6
"""Smaller changes of attention are rounding errors."""
EDITED_QUERIES = ("pattern", "attn_scores", "rel_scores", "q", "p", "q_input")
"""Hook points that change attention of their own layer, at the edited queries only."""
LATER_QUERIES = ("resid_pre", "k", "attn_in", "k_input")
"""Hook points that change attention of their own layer, from the first edited position on."""


@dataclass(frozen=True, eq=False)
class LayerCone:
    """What an edit can change, and did change, in the attention of one layer."""

    layer: int
    rows: Range | None
    """The queries that can be reached; None if there are none."""
    keys: Range | None
    """The keys that can be reached in those rows; None means all."""
    reached: int
    """The number of cells that can be reached."""
    changed: int
    """The number of cells that changed."""
    largest: float
    """The largest absolute change of a cell."""
    where: tuple[int, int]
    """The query and key of that cell."""


@dataclass(frozen=True, eq=False)
class Cone:
    """The effect of one edit alone."""

    layers: tuple[LayerCone, ...]
    change: float
    """KL(before ‖ with this edit alone)."""
    moved: float
    """Total variation between the predictions before and after."""


def cone(scene: Scene, edit: EditState) -> Cone:
    """The causal cone of one edit, in all layers."""
    layers = []
    for layer, change in enumerate(cone_maps(scene, edit)):
        layers.append(_layer_cone(scene, edit, layer, change.abs()))
    before = to_distribution(scene.before.outputs)
    after = to_distribution(scene.with_edits((edit,)).outputs)
    return Cone(
        layers=tuple(layers),
        change=kl_divergence(before, after).item(),
        moved=total_variation(after, before).item(),
    )


def _layer_cone(
    scene: Scene, edit: EditState, layer: int, change: Float[Tensor, "query key"]
) -> LayerCone:
    rows, keys = reach(scene, edit, layer)
    largest_cell = int(change.argmax())
    return LayerCone(
        layer=layer,
        rows=rows,
        keys=keys,
        reached=int(reach_mask(rows, keys, scene.length).sum()),
        changed=int((change > CHANGED).sum()),
        largest=change.max().item(),
        where=divmod(largest_cell, scene.length),
    )


def cone_maps(scene: Scene, edit: EditState) -> Float[Tensor, "layer query key"]:
    """The change of every layer's attention by this edit alone, mean over heads."""
    after = scene.with_edits((edit,))
    pairs = zip(scene.before.patterns, after.patterns, strict=True)
    return torch.stack([(new - old).mean(0) for old, new in pairs])


def reach(scene: Scene, edit: EditState, layer: int) -> tuple[Range | None, Range | None]:
    """The attention of a layer that an edit can reach.

    Args:
        scene: the scene of the edit.
        edit: the edit.
        layer: the layer, counted from 0.

    Returns:
        The range of queries, or None if there are none; and the range of keys in those rows, or
        None if it is all of them.
    """
    hook = edit.hook.rsplit("hook_", 1)[-1]
    edited_layer = _edited_layer(scene, edit)
    first, stop = edit.position or (0, scene.length)
    if edit.source.kind == "weights":
        first, stop = scene.length - 1, scene.length
    if layer < edited_layer:
        return None, None
    if layer > edited_layer or hook in LATER_QUERIES:
        return (first, scene.length), None
    if hook not in EDITED_QUERIES:
        return None, None
    # An edited pattern is used as it is. Scores, and rows that are rescaled, affect all keys.
    only_edited_keys = hook == "pattern" and edit.source.kind != "share"
    keys = edit.key if only_edited_keys else None
    return (first, stop), keys


def _edited_layer(scene: Scene, edit: EditState) -> int:
    """The layer of an edit; -1 for the embedding, which comes before all layers."""
    if edit.layer is not None:
        return edit.layer
    if edit.source.kind == "weights":
        return len(scene.model.blocks) - 1
    if edit.hook.rsplit("hook_", 1)[-1] == "embed":
        return -1
    # All other hooks have names such as blocks.1.attn.hook_pattern.
    return int(edit.hook.split(".")[1])


def reach_mask(rows: Range | None, keys: Range | None, length: int) -> Bool[Tensor, "query key"]:
    """The cells that can be reached, as a mask.

    Args:
        rows: the range of queries; None is none.
        keys: the range of keys; None is all.
        length: the number of positions.

    Returns:
        True for reached cells; never for keys after their query.
    """
    mask = torch.zeros(length, length, dtype=torch.bool)
    if rows is not None:
        mask[slice(*rows), slice(*(keys or (0, length)))] = True
    return mask.tril()
