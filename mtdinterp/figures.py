"""Figures, all in one style: labelled axes, one colour scale a meaning, readable in print and in
greyscale."""

import os
from pathlib import Path

import torch

from mtdinterp.interventions.patching import PatchResult
from mtdinterp.interventions.sweep import DIRECTIONS, KINDS, SweepResult
from mtdinterp.style import CHANGE, PAIR, plain, styled


def draw_sweep(result: SweepResult, path: str | os.PathLike) -> None:
    """A heat map for every layer: positions across, blocks or heads down, as colour what a patch
    does to the metric."""
    n_layers, length, _ = result.values.shape
    effects = [result.effects(layer) for layer in range(n_layers)]
    rows = [len(parts) for parts in effects]
    reach = max(
        1e-12, *(row.nan_to_num().abs().max().item() for parts in effects for row in parts.values())
    )
    width, height = min(14.0, 2.5 + 0.12 * length), 0.9 + 0.22 * sum(rows) + 0.55 * n_layers
    with styled(width, height, Path(path)) as figure:
        axes = figure.subplots(
            n_layers,
            1,
            sharex=True,
            squeeze=False,
            gridspec_kw={"height_ratios": [max(count, 1) for count in rows]},
        )
        for layer, (axis, parts) in enumerate(zip(axes[:, 0], effects, strict=True)):
            image = axis.imshow(
                torch.stack([*parts.values()]).numpy(),
                aspect="auto",
                interpolation="nearest",
                vmin=-reach,
                vmax=reach,
                cmap=CHANGE,
            )
            axis.set_title(f"layer {layer + 1}", loc="left")
            axis.set_yticks(range(len(parts)), map(plain, parts))
            axis.tick_params(length=0)
        axes[-1, 0].set_xlabel("position that is patched")
        bar = figure.colorbar(image, ax=axes[:, 0], fraction=0.03, pad=0.01)
        bar.set_label(
            f"change of the metric ({result.corrupted:.3g} corrupted, {result.clean:.3g} clean)"
        )
        figure.suptitle(
            f"Patching {KINDS[result.kind]}: {DIRECTIONS[result.direction]}", x=0.01, ha="left"
        )


def draw_patch(result: PatchResult, path: str | os.PathLike) -> None:
    """Mean prediction and mean last attention by offset, before and after the edits."""
    predictions = [outputs.double().mean(0) for outputs in (result.before, result.after)]
    weights = [
        attention.double().mean((0, 1))
        for attention in (result.weights_before, result.weights_after)
    ]
    shown = max(
        6,
        1
        + max(
            int((entry > 0.01).nonzero().max()) if (entry > 0.01).any() else 0 for entry in weights
        ),
    )
    with styled(8.0, 3.0, Path(path)) as figure:
        left, right = figure.subplots(1, 2)
        panels = (
            (left, predictions, len(predictions[0]), "token"),
            (right, weights, min(shown, len(weights[0])), "offset from the last position"),
        )
        for axis, pair, count, name in panels:
            for shift, values, label, colour in zip(
                (-0.2, 0.2), pair, ("before", "after"), PAIR, strict=True
            ):
                places = [index + shift for index in range(count)]
                axis.bar(places, values[:count].numpy(), 0.4, label=label, color=colour)
            axis.set_xlabel(name)
        left.set_ylabel("mean prediction")
        right.set_ylabel("mean attention of the last layer")
        left.legend()
