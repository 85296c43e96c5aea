"""The gradient at uniform weights grows linearly with the length: Lemma 3 as a figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.plotting import grid
from mtdinterp.readings import centred
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column, rows_where
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.style import SHADES
from mtdinterp.tasks import MTDTask
from mtdinterp.theory import GradientGrowth, gradient_at_uniform, gradient_growth
from mtdinterp.training.zoo import zoo_task

ORDER = 4
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
N_SEQUENCES = 2000
WEIGHTS = {"uneven": (0.55, 0.25, 0.15, 0.05), "uniform": (0.25, 0.25, 0.25, 0.25)}
FIRST_OBSERVATIONS = 60
"""Powers are fitted from this many observed transitions on."""


@register_figure("gradient", summary="how the likelihood's gradient grows with length", rank=11)
def gradient(context: Context, lengths: Sequence[int] = LENGTHS) -> Reproduction:
    """Lemma 3 as a figure."""
    task = zoo_task(ORDER)
    n_sequences = context.count(N_SEQUENCES)
    rows: list[dict[str, Any]] = []
    numbers: dict[str, dict[str, Any]] = {}
    for name, weights in WEIGHTS.items():
        growth = gradient_growth(task, weights, lengths, n_sequences, seed=context.seed)
        norms = _centred_norms(task, weights, lengths, n_sequences, context.seed)
        for row in _rows(growth, norms, lengths):
            rows.append({"weights": name, **row, "sequences": n_sequences})
        numbers[name] = {
            "slope": growth.slope.tolist(),
            **_straightness(growth),
            "power_of_centred": _power(growth, norms),
        }
    return Reproduction(
        name="gradient",
        title="How the gradient grows with length",
        claim="For fixed true weights, the expected gradient at uniform weights grows linearly "
        "with the number of observed transitions, up to a bounded offset (Lemma 3, Appendix K). "
        "The paper has no figure.",
        measured=_sentences(numbers["uneven"], numbers["uniform"]),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows),
        size=(8.6, 3.9),
    )


def _centred_norms(
    task: MTDTask, weights: Sequence[float], lengths: Sequence[int], n_sequences: int, seed: int
) -> Float64[Tensor, " length"]:
    """The root mean square norm of the centred gradient at every length."""
    tokens = task.sample(n_sequences, max(lengths), seed, weights=weights).tokens
    norms = []
    for length in lengths:
        found = centred(gradient_at_uniform(task.transition, tokens[:, :length], task.order))
        mean_square = found.square().sum(-1).mean()
        norms.append(mean_square.sqrt())
    return torch.stack(norms)


def _rows(
    growth: GradientGrowth, norms: Float64[Tensor, " length"], lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """One row per lag and length."""
    rows = []
    n_lags = growth.gradient.shape[1]
    for lag in range(n_lags):
        for index, length in enumerate(lengths):
            row = {
                "lag": lag + 1,
                "length": length,
                "observations": int(growth.steps[index]),
                "gradient": growth.gradient[index, lag].item(),
                "gradient_stderr": growth.stderr[index, lag].item(),
                "centred_norm": norms[index].item(),
            }
            rows.append(row)
    return rows


def _straightness(growth: GradientGrowth) -> dict[str, float]:
    """The share of variance that straight lines in T-m miss, and their largest offset.

    The gradient is centred over lags first. Its components sum to m·(T-m) by construction, so only
    differences between lags carry information.
    """
    mean = centred(growth.gradient)
    design = torch.stack([growth.steps, torch.ones_like(growth.steps)], dim=1)
    lines = torch.linalg.lstsq(design, mean).solution
    missed = (mean - design @ lines).square().sum()
    spread = (mean - mean.mean(0)).square().sum()
    return {"unexplained": (missed / spread).item(), "offset": lines[1].abs().max().item()}


def _power(growth: GradientGrowth, norms: Float64[Tensor, " length"]) -> float:
    """The power of T-m with which the norms grow."""
    late = growth.steps >= FIRST_OBSERVATIONS
    x = growth.steps[late].log().numpy()
    y = norms[late].log().numpy()
    return float(np.polyfit(x, y, 1)[0])


def _sentences(uneven: dict[str, Any], uniform: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"m = {ORDER}, true weights {_listed(WEIGHTS['uneven'])}: the mean gradient has the slopes "
        f"{_listed(uneven['slope'], 3)} in T-m, which sum to {sum(uneven['slope']):.3f} = m, as "
        f"they must. Straight lines leave {uneven['unexplained']:.0e} of the variance of the "
        "centred mean gradient over lengths unexplained, with offsets of at most "
        f"{uneven['offset']:.2f}.",
        "A softmax depends on the centred gradient only. In single sequences, its root mean square "
        f"norm grows with the power {uneven['power_of_centred']:.2f} of T-m for these weights, and "
        f"with the power {uniform['power_of_centred']:.2f} if the true weights are uniform: the "
        "expected gradient is then the same for all lags, and only fluctuations remain. Powers are "
        f"fitted from T-m = {FIRST_OBSERVATIONS} on.",
    )


def _listed(values: Sequence[float], digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def _draw(figure: Any, rows: Sequence[Row]) -> None:
    left, right = figure.subplots(1, 2)
    for place, (weight, style) in enumerate(zip(WEIGHTS["uneven"], SHADES, strict=False)):
        some = rows_where(rows, weights="uneven", lag=place + 1)
        left.errorbar(
            column(some, "observations"),
            column(some, "gradient"),
            column(some, "gradient_stderr"),
            color=style.colour,
            marker=style.marker,
            markersize=4,
            linestyle=style.line,
            linewidth=1.2,
            label=f"lag {place + 1}, true weight {weight:g}",
        )
    for name, style in zip(WEIGHTS, (SHADES[0], SHADES[3]), strict=True):
        some = rows_where(rows, weights=name, lag=1)
        right.plot(
            column(some, "observations"),
            column(some, "centred_norm"),
            color=style.colour,
            marker=style.marker,
            markersize=4,
            linestyle=style.line,
            linewidth=1.2,
            label=f"{name} true weights",
        )
    left.set_ylabel("mean gradient at uniform weights")
    right.set_ylabel("norm of the centred gradient\n(root mean square)")
    right.set_xscale("log")
    right.set_yscale("log")
    for axis in (left, right):
        axis.set_xlabel("observed transitions T-m")
        grid(axis)
        axis.legend(loc="upper left")
