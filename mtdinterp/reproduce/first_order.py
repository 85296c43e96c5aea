"""One mirror-descent step is the posterior mean to first order, at one rate only: Theorem 1."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtdinterp.estimators import exact_posterior_mean, mirror_descent
from mtdinterp.metrics import mean_stderr
from mtdinterp.plotting import draw_method, grid, legend_below
from mtdinterp.readings import centred
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column, rows_where
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.style import SHADES
from mtdinterp.theory import equivalent_learning_rate, gradient_at_uniform
from mtdinterp.training.zoo import zoo_task

ORDERS = (3, 4, 5)
LENGTH = 64
N_SEQUENCES = 16
EPSILONS = tuple(np.geomspace(1e-3, 1, 13))
"""How far π is from a matrix without information: 0 is that matrix, 1 is π itself."""
WEAK = 0.05
"""The largest factor that slopes are fitted to: the statement is about the limit."""
OTHER = 1.5
"""The other learning rate, as a multiple of the one at which both estimators agree."""
RATES = ("equivalent", "other")


@register_figure(
    "first-order", summary="one step agrees with Bayes to first order, at one rate only", rank=9
)
def first_order(
    context: Context, orders: Sequence[int] = ORDERS, length: int = LENGTH
) -> Reproduction:
    """Theorem 1 as a figure.

    Args:
        context: models and settings that the figure is made from.
        orders: the orders m to show.
        length: tokens per sequence.

    Returns:
        The figure.
    """
    n_sequences = context.count(N_SEQUENCES)
    rows: list[dict[str, Any]] = []
    numbers: dict[str, dict[str, float]] = {}
    for order in orders:
        some = _rows(order, length, n_sequences, context.seed)
        rows += some
        numbers[f"m{order}"] = _numbers(some)

    def over_orders(key: str) -> str:
        return ", ".join(f"{numbers[f'm{order}'][key]:.3f}" for order in orders)

    return Reproduction(
        name="first-order",
        title="One mirror-descent step is Bayes to first order",
        claim="One mirror-descent step at η = 1/(m+1) and the posterior mean agree to first order "
        "in the gradient at uniform weights: their difference is of second order (Theorem 1, "
        "Section 5 and Appendix I). Proved for a linearised likelihood; the paper has no figure.",
        measured=(
            "Slope of the distance to the exact posterior mean as a function of the centred "
            f"gradient's norm, on logarithmic axes, for m = {', '.join(map(str, orders))}: "
            f"{over_orders('equivalent')} at η = 1/(m+1), which is second order, and "
            f"{over_orders('other')} at {OTHER:g} times that rate, which is first order.",
            f"T = {length}. π is moved towards the matrix whose rows all equal the stationary "
            f"marginal, by factors down to {min(EPSILONS):g}; the tokens stay the same. Slopes are "
            f"of means over {n_sequences} sequences, for factors up to {WEAK:g}. The likelihood is "
            "exact; nothing is linearised.",
            "The limit is that of weak evidence. With π itself at this length, the distance at "
            f"η = 1/(m+1) is {over_orders('at_full_evidence')} on the simplex: the best rate there "
            "is far smaller (see learning-rate).",
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, orders),
        size=(3.1 * len(orders), 3.9),
    )


def _rows(order: int, length: int, n_sequences: int, seed: int) -> list[dict[str, Any]]:
    """One row per factor and learning rate."""
    task = zoo_task(order)
    tokens = task.sample(n_sequences, length, seed=(seed, order)).tokens
    uninformative = task.stationary.expand_as(task.transition)
    same = equivalent_learning_rate(order)
    rows = []
    for epsilon in EPSILONS:
        matrix = (1 - epsilon) * uninformative + epsilon * task.transition
        norm = centred(gradient_at_uniform(matrix, tokens, order)).norm(dim=-1)
        # Distances fall to 1e-7. With strong evidence they do not, and the exact mean is expensive.
        tolerance = 1e-12 if epsilon < 0.5 else 1e-8
        bayes = exact_posterior_mean(matrix, tokens, order, tolerance=tolerance)
        for rate, learning_rate in zip(RATES, (same, OTHER * same), strict=True):
            distance = (mirror_descent(matrix, tokens, order, learning_rate) - bayes).norm(dim=-1)
            row = {
                "order": order,
                "evidence": epsilon,
                "rate": rate,
                "learning_rate": learning_rate,
                "gradient_norm": norm.mean().item(),
                "distance": distance.mean().item(),
                "distance_stderr": mean_stderr(distance),
                "sequences": n_sequences,
            }
            rows.append(row)
    return rows


def _numbers(rows: Sequence[Row]) -> dict[str, float]:
    equivalent = rows_where(rows, rate="equivalent")
    strongest = max(equivalent, key=lambda row: row["evidence"])
    return {
        "equivalent": _slope(equivalent),
        "other": _slope(rows_where(rows, rate="other")),
        "at_full_evidence": strongest["distance"],
    }


def _slope(rows: Sequence[Row]) -> float:
    """The slope on logarithmic axes, where the evidence is weak."""
    weak = [row for row in rows if row["evidence"] <= WEAK]
    x = np.log(column(weak, "gradient_norm"))
    y = np.log(column(weak, "distance"))
    return float(np.polyfit(x, y, 1)[0])


def _draw(figure: Any, rows: Sequence[Row], orders: Sequence[int]) -> None:
    axes = figure.subplots(1, len(orders), sharex=True, sharey=True, squeeze=False)[0]
    for axis, order in zip(axes, orders, strict=True):
        other = rows_where(rows, order=order, rate="other")
        equivalent = rows_where(rows, order=order, rate="equivalent")
        draw_method(axis, "one_step", _points(other), f"η = {OTHER:g}/(m+1)")
        _draw_guide(axis, other[0], power=1)
        draw_method(axis, "one_step_theory", _points(equivalent), "η = 1/(m+1)")
        _draw_guide(axis, equivalent[0], power=2)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(f"m = {order}")
        axis.set_xlabel("norm of the centred gradient")
        grid(axis)
    axes[0].set_ylabel("distance of weights,\nmirror descent to the exact posterior mean")
    legend_below(figure, axes, 4)


def _points(rows: Sequence[Row]) -> list[tuple[float, float, float]]:
    return [(row["gradient_norm"], row["distance"], row["distance_stderr"]) for row in rows]


def _draw_guide(axis: Any, first: Row, power: int) -> None:
    """A straight line of slope `power`, a little below the data."""
    span = np.array([1, 60])
    axis.plot(
        first["gradient_norm"] * span,
        0.4 * first["distance"] * span**power,
        color=SHADES[2].colour,
        linestyle="-" if power == 1 else ":",
        linewidth=1,
        label=f"slope {power}",
    )
