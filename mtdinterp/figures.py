"""Figures of interventions: the effects of a patch sweep, and one patch before and after.

The style and the parts that figures share are left to `mtdinterp.plotting`.
"""

import os
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.interventions.patching import PatchResult
from mtdinterp.interventions.sweep import DIRECTIONS, KINDS, SweepResult
from mtdinterp.pages.blocks import Map, Maps
from mtdinterp.pages.pictures import draw
from mtdinterp.plotting import saved_figure
from mtdinterp.style import PAIR

VISIBLE = 0.01
"""Attention above this is worth showing."""
FEWEST_OFFSETS = 6
"""Offsets that are shown even if the attention is concentrated on fewer."""


def draw_sweep(result: SweepResult, path: str | os.PathLike) -> None:
    """Draw how patching each block or head at each position changes the metric, layer by layer.

    Args:
        result: a patch sweep.
        path: the file to write (PNG, PDF or SVG).
    """
    panels = []
    for layer in range(len(result.values)):
        effects = result.effects(layer)
        if effects:
            values = torch.stack([*effects.values()])
            panels.append(Map(f"layer {layer + 1}", values, tuple(effects)))
    largest = max(panel.values.nan_to_num().abs().max().item() for panel in panels)
    # Adding 0.0 turns a metric of -0.0 into 0.0.
    clean = result.clean + 0.0
    corrupted = result.corrupted + 0.0
    title = (
        f"Patching {KINDS[result.kind]}: {DIRECTIONS[result.direction]}\n"
        f"change of {result.metric} ({corrupted:.3g} corrupted, {clean:.3g} clean)"
    )
    block = Maps(
        title,
        tuple(panels),
        max(largest, 1e-12),
        row_axis=result.kind,
        column_axis="patched position",
        changes=True,
    )
    draw(block, Path(path))


def draw_patch(result: PatchResult, path: str | os.PathLike) -> None:
    """Draw the mean prediction and the mean attention of the last layer, before and after edits.

    Args:
        result: a patched run.
        path: the file to write (PNG, PDF or SVG).
    """
    before = result.weights_before.double().mean((0, 1))
    after = result.weights_after.double().mean((0, 1))
    shown = max(FEWEST_OFFSETS, _last_visible(before) + 1, _last_visible(after) + 1)
    with saved_figure(8.0, 3.0, Path(path)) as figure:
        left, right = figure.subplots(1, 2)
        _bar_pair(left, result.before.double().mean(0), result.after.double().mean(0))
        _bar_pair(right, before[:shown], after[:shown])
        left.set_xlabel("token")
        left.set_ylabel("mean prediction")
        right.set_xlabel("offset from the last position")
        right.set_ylabel("mean attention of the last layer")
        left.legend()


def _last_visible(attention: Float[Tensor, " offset"]) -> int:
    """The largest offset with visible attention, or 0 if there is none."""
    visible = (attention > VISIBLE).nonzero()
    return int(visible.max()) if len(visible) else 0


def _bar_pair(axis: Any, before: Float[Tensor, " n"], after: Float[Tensor, " n"]) -> None:
    """Two bars next to each other per entry."""
    places = torch.arange(len(before)).numpy()
    axis.bar(places - 0.2, before.numpy(), 0.4, label="before", color=PAIR[0])
    axis.bar(places + 0.2, after.numpy(), 0.4, label="after", color=PAIR[1])
