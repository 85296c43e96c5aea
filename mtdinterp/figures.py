"""Figures, all in one style: labelled axes, one colour scale a meaning, readable in print and in greyscale."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mtdinterp.interventions.sweep import DIRECTIONS, KINDS, SweepResult

FORMATS = (".png", ".pdf", ".svg")
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#555555",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "image.cmap": "cividis",
    "svg.hashsalt": "mtdinterp",
}

CHANGE = "RdBu"
"""For changes: white is none, blue up, red down."""


@contextmanager
def styled() -> Iterator[Any]:
    """matplotlib without a window, in the project's style."""
    import matplotlib as mpl
    from matplotlib import pyplot

    before = mpl.get_backend()
    mpl.use("agg")
    try:
        with mpl.rc_context(STYLE):
            yield pyplot
    finally:
        pyplot.close("all")
        mpl.use(before)


def check_figure_path(path: Path) -> Path:
    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: expected a figure's name that ends in {', '.join(FORMATS)}")
    return path


def draw_sweep(result: SweepResult, path: Path) -> None:
    """A heat map for every layer: positions across, blocks or heads down, as colour what a patch does to the metric."""
    check_figure_path(path)
    n_layers, length, _ = result.values.shape
    rows = [int((~layer.isnan().all(0)).sum()) for layer in result.values]
    effects = result.values - (result.corrupted if result.direction == "denoise" else result.clean)
    reach = max(effects.nan_to_num().abs().max().item(), 1e-12)
    with styled() as pyplot:
        width = min(14.0, 2.5 + 0.12 * length)
        figure, axes = pyplot.subplots(n_layers, 1, figsize=(width, 0.9 + 0.22 * sum(rows) + 0.55 * n_layers),
                                       sharex=True, squeeze=False, layout="constrained",
                                       gridspec_kw={"height_ratios": [max(count, 1) for count in rows]})
        for layer, (axis, count) in enumerate(zip(axes[:, 0], rows, strict=True)):
            image = axis.imshow(effects[layer, :, :count].T.numpy(), aspect="auto", interpolation="nearest",
                                vmin=-reach, vmax=reach, cmap=CHANGE)
            axis.set_title(f"layer {layer + 1}", loc="left")
            axis.set_yticks(range(count), result.parts[:count])
            axis.tick_params(length=0)
        axes[-1, 0].set_xlabel("position that is patched")
        bar = figure.colorbar(image, ax=axes[:, 0], fraction=0.03, pad=0.01)
        bar.set_label(f"change of the metric ({result.corrupted:.3g} corrupted, {result.clean:.3g} clean)")
        figure.suptitle(f"Patching {KINDS[result.kind]}: {DIRECTIONS[result.direction]}", x=0.01, ha="left")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
