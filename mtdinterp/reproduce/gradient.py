"""The gradient at uniform weights grows linearly with length: Lemma 3, as a figure, and where it
does not matter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.plotting import grid
from mtdinterp.readout import centred
from mtdinterp.reproduce.figure import Context, Reproduction, Row
from mtdinterp.style import SHADES
from mtdinterp.task import MTDTask
from mtdinterp.theory import GradientGrowth, gradient_at_uniform, gradient_growth
from mtdinterp.training.zoo import zoo_task

LENGTHS, N_SEQUENCES = (16, 32, 64, 128, 256, 512, 1024), 2000
WEIGHTS = {"uneven": (0.55, 0.25, 0.15, 0.05), "uniform": (0.25, 0.25, 0.25, 0.25)}
LATE = 60
"""Powers are fitted from so many observations on."""


def gradient(context: Context, lengths: Sequence[int] = LENGTHS) -> Reproduction:
    task, n_sequences = zoo_task(4), context.count(N_SEQUENCES)
    found = {
        name: gradient_growth(task, weights, lengths, n_sequences, seed=context.seed)
        for name, weights in WEIGHTS.items()
    }
    sizes = {
        name: _centred_norms(task, weights, lengths, n_sequences, context.seed)
        for name, weights in WEIGHTS.items()
    }
    rows = [
        {
            "weights": name,
            "lag": lag + 1,
            "length": length,
            "observations": int(growth.steps[place]),
            "gradient": growth.gradient[place, lag].item(),
            "gradient_stderr": growth.stderr[place, lag].item(),
            "centred_norm": sizes[name][place].item(),
            "sequences": n_sequences,
        }
        for name, growth in found.items()
        for lag in range(task.order)
        for place, length in enumerate(lengths)
    ]
    numbers: dict[str, dict[str, Any]] = {
        name: {
            "slope": growth.slope.tolist(),
            **_straightness(growth),
            "power_of_centred": _power(growth, sizes[name]),
        }
        for name, growth in found.items()
    }
    uneven, uniform = numbers["uneven"], numbers["uniform"]
    return Reproduction(
        name="gradient",
        title="How the gradient grows with length",
        claim="For fixed true weights the expected gradient at uniform weights grows linearly with "
        "the number of "
        "observed transitions, up to a bounded offset (Lemma 3, Appendix K). Stated without a "
        "figure.",
        measured=(
            f"m = 4, true weights {_listed(WEIGHTS['uneven'])}: the mean gradient has the slopes "
            f"{_listed(uneven['slope'], 3)} in T-m, which add to {sum(uneven['slope']):.3f} = m as "
            "they must. "
            f"Straight lines leave {uneven['unexplained']:.0e} of the variance over lengths of the "
            "centred mean "
            f"gradient unexplained, with offsets of at most {uneven['offset']:.2f}.",
            "A softmax sees the centred gradient alone. In single sequences its root mean square "
            "norm goes with "
            f"the power {uneven['power_of_centred']:.2f} of T-m for these weights, and with the "
            "power "
            f"{uniform['power_of_centred']:.2f} where the true weights are uniform: there the "
            "expected gradient "
            "is the same for all lags, and only fluctuations are left. Powers are fitted from T-m "
            "= "
            f"{LATE} on.",
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, task.order),
        size=(8.6, 3.9),
    )


def _centred_norms(
    task: MTDTask, weights: Sequence[float], lengths: Sequence[int], n_sequences: int, seed: int
) -> Float64[Tensor, " length"]:
    """Root mean square norm of the centred gradient at every length."""
    tokens = task.sample(n_sequences, max(lengths), seed, weights=weights).tokens
    return torch.stack(
        [
            centred(gradient_at_uniform(task.transition, tokens[:, :length], task.order))
            .square()
            .sum(-1)
            .mean()
            .sqrt()
            for length in lengths
        ]
    )


def _straightness(growth: GradientGrowth) -> dict[str, float]:
    """What straight lines miss of the mean gradient, and their offsets: of what differs between
    lags, since what is common to all is T-m itself."""
    mean = centred(growth.gradient)
    design = torch.stack([growth.steps, torch.ones_like(growth.steps)], dim=1)
    lines = torch.linalg.lstsq(design, mean).solution
    missed, spread = (mean - design @ lines).square().sum(), (mean - mean.mean(0)).square().sum()
    return {"unexplained": (missed / spread).item(), "offset": lines[1].abs().max().item()}


def _power(growth: GradientGrowth, norms: Float64[Tensor, " length"]) -> float:
    late = growth.steps >= LATE
    return float(np.polyfit(growth.steps[late].log().numpy(), norms[late].log().numpy(), 1)[0])


def _listed(values: Sequence[float], digits: int = 2) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def _draw(figure: Any, rows: Sequence[Row], order: int) -> None:
    left, right = figure.subplots(1, 2)
    for lag, style in zip(range(1, order + 1), SHADES, strict=False):
        some = [row for row in rows if (row["weights"], row["lag"]) == ("uneven", lag)]
        label = f"lag {lag}, true weight {WEIGHTS['uneven'][lag - 1]:g}"
        left.errorbar(
            [row["observations"] for row in some],
            [row["gradient"] for row in some],
            [row["gradient_stderr"] for row in some],
            color=style.colour,
            marker=style.marker,
            markersize=4,
            linestyle=style.line,
            linewidth=1.2,
            label=label,
        )
    for name, style in zip(WEIGHTS, (SHADES[0], SHADES[3]), strict=True):
        some = [row for row in rows if (row["weights"], row["lag"]) == (name, 1)]
        right.plot(
            [row["observations"] for row in some],
            [row["centred_norm"] for row in some],
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
