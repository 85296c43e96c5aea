"""The causal cone of an edit: which attention it can reach, which it changed, and by how much.

Attention is causal, so a change at position p can reach positions from p on, in layers after it: as
a key it enters every later query's softmax, and so all of that query's row. That is what can be
reached whatever the weights are; what did change is seen by running the model with this edit alone.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mtdinterp.app.scene import Scene
from mtdinterp.app.state import EditState
from mtdinterp.metrics import clip_to_distribution, kl_divergence, total_variation

CHANGED = 1e-6
"""A change of attention below this is rounding."""
ROWS_HERE = ("pattern", "attn_scores", "rel_scores", "q", "p", "q_input")
"""Hook points that change attention of their own layer at the edited queries alone."""
FROM_HERE = ("resid_pre", "k", "attn_in", "k_input")
"""Those that change it at every query from the first edited position on."""


@dataclass(frozen=True, eq=False)
class LayerCone:
    """What one layer's attention has to do with the edit."""

    layer: int
    rows: tuple[int, int] | None
    """Queries that can be reached, from the first to before the last; None is none."""
    keys: tuple[int, int] | None
    """Keys in those rows, if only some can be reached; None is all."""
    reached: int
    changed: int
    """Numbers of cells."""
    largest: float
    """The largest change of a cell."""
    where: tuple[int, int]
    """Its query and key."""


@dataclass(frozen=True, eq=False)
class Cone:
    """What an edit does on its own."""

    layers: tuple[LayerCone, ...]
    change: float
    """KL(before ‖ with this edit alone)."""
    moved: float
    """Total variation of the prediction."""


def cone(scene: Scene, edit: EditState) -> Cone:
    found, changes = [], cone_maps(scene, edit)
    for layer, change in enumerate(changes):
        rows, keys = reach(scene, edit, layer)
        mask = reach_mask(rows, keys, scene.length)
        flat = int(change.abs().argmax())
        found.append(
            LayerCone(
                layer,
                rows,
                keys,
                int(mask.sum()),
                int((change.abs() > CHANGED).sum()),
                change.abs().max().item(),
                (flat // scene.length, flat % scene.length),
            )
        )
    before, after = (
        clip_to_distribution(run.outputs)[0] for run in (scene.before, scene.with_edits((edit,)))
    )
    return Cone(
        tuple(found), kl_divergence(before, after).item(), total_variation(after, before).item()
    )


def cone_maps(scene: Scene, edit: EditState) -> Float[Tensor, "layer query key"]:
    """The change of every layer's attention by this edit alone, mean over heads."""
    after = scene.with_edits((edit,))
    return torch.stack(
        [
            (new - old).mean(0)
            for old, new in zip(scene.before.patterns, after.patterns, strict=True)
        ]
    )


def reach(
    scene: Scene, edit: EditState, layer: int
) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """Queries of a layer that the edit can reach, and their keys where those are not all."""
    hook, length = edit.hook.rsplit("hook_", 1)[-1], scene.length
    own = -1 if edit.layer is None and hook == "embed" else edit.layer
    first, stop = edit.position or (0, length)
    if edit.source.kind == "weights":
        own, first, stop = len(scene.model.blocks) - 1 if own is None else own, length - 1, length
    if own is None:
        own = int(edit.hook.split(".")[1])
    if layer < own:
        return None, None
    if layer == own and hook in ROWS_HERE:
        # A pattern is taken as it is; scores go through the softmax, where every key of the row
        # answers.
        return (
            first,
            stop,
        ), edit.key if hook == "pattern" and edit.source.kind != "share" else None
    if layer == own and hook not in FROM_HERE:
        return None, None
    return (first, length), None


def reach_mask(
    rows: tuple[int, int] | None, keys: tuple[int, int] | None, length: int
) -> Bool[Tensor, "query key"]:
    mask = torch.zeros(length, length, dtype=torch.bool)
    if rows is not None:
        mask[slice(*rows), slice(*(keys or (0, length)))] = True
    return mask.tril()
