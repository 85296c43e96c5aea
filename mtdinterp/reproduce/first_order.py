"""One step of mirror descent is the posterior mean to first order, at one rate only: Theorem 1, as
a figure."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mtdinterp.estimators import exact_posterior_mean, mirror_descent
from mtdinterp.plotting import draw_method, grid, legend_below
from mtdinterp.readout import centred
from mtdinterp.reproduce.figure import Context, Reproduction, Row
from mtdinterp.style import SHADES
from mtdinterp.theory import equivalent_learning_rate, gradient_at_uniform
from mtdinterp.training.zoo import zoo_task

ORDERS, LENGTH, N_SEQUENCES = (3, 4, 5), 64, 16
EPSILONS = tuple(np.geomspace(1e-3, 1, 13))
"""How far π is from the matrix that says nothing."""
WEAK = 0.05
"""Slopes are fitted up to here: the statement is about the limit."""
OTHER = 1.5
"""The other learning rate, in units of the one at which both estimators agree."""


def first_order(
    context: Context, orders: Sequence[int] = ORDERS, length: int = LENGTH
) -> Reproduction:
    n_sequences = context.count(N_SEQUENCES)
    rows: list[dict[str, Any]] = []
    for order in orders:
        rows += _rows(order, length, n_sequences, context.seed)
    numbers = {
        f"m{order}": _numbers([row for row in rows if row["order"] == order]) for order in orders
    }

    def over_orders(key: str) -> str:
        return ", ".join(f"{numbers[f'm{order}'][key]:.3f}" for order in orders)

    return Reproduction(
        name="first-order",
        title="One step of mirror descent is Bayes to first order",
        claim="One step of mirror descent at η = 1/(m+1) and the posterior mean agree to first "
        "order in the gradient "
        "at uniform weights: what is between them is of second order (Theorem 1, Section 5 and "
        "Appendix I). "
        "Proved for a linearised likelihood, and stated without a figure.",
        measured=(
            "Slope of the distance to the exact posterior mean in the centred gradient's norm, on "
            "logarithmic "
            f"axes, for m = {', '.join(map(str, orders))}: {over_orders('equivalent')} at η = "
            "1/(m+1), which is "
            f"second order, and {over_orders('other')} at {OTHER:g} times that rate, which is "
            "first.",
            f"T = {length}; π is moved towards the matrix whose rows are all the stationary "
            "marginal, by factors "
            f"down to {min(EPSILONS):g}, and the tokens are kept. Slopes are of means over "
            f"{n_sequences} "
            f"sequences, for factors up to {WEAK:g}. The likelihood is exact: nothing is "
            "linearised.",
            "The limit is of weak evidence. With π itself at this length the distance at η = "
            "1/(m+1) is "
            f"{over_orders('at_full_evidence')} on the simplex: the rate that is best there is far "
            "smaller (see "
            "learning-rate).",
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, orders),
        size=(3.1 * len(orders), 3.9),
    )


def _rows(order: int, length: int, n_sequences: int, seed: int) -> list[dict[str, Any]]:
    task = zoo_task(order)
    tokens = task.sample(n_sequences, length, seed=(seed, order)).tokens
    same = equivalent_learning_rate(order)
    rows = []
    for epsilon in EPSILONS:
        weak = (1 - epsilon) * task.stationary.expand_as(
            task.transition
        ) + epsilon * task.transition
        norm = centred(gradient_at_uniform(weak, tokens, order)).norm(dim=-1)
        # Distances fall to 1e-7, but not where the evidence is strong and the exact mean is dear.
        bayes = exact_posterior_mean(
            weak, tokens, order, tolerance=1e-12 if epsilon < 0.5 else 1e-8
        )
        for rate, learning_rate in (("equivalent", same), ("other", OTHER * same)):
            error = (mirror_descent(weak, tokens, order, learning_rate) - bayes).norm(dim=-1)
            rows.append(
                {
                    "order": order,
                    "evidence": epsilon,
                    "rate": rate,
                    "learning_rate": learning_rate,
                    "gradient_norm": norm.mean().item(),
                    "distance": error.mean().item(),
                    "distance_stderr": error.std().item() / n_sequences**0.5,
                    "sequences": n_sequences,
                }
            )
    return rows


def _numbers(rows: Sequence[Row]) -> dict[str, float]:
    slopes = {
        rate: _slope([row for row in rows if row["rate"] == rate])
        for rate in ("equivalent", "other")
    }
    last = max(
        (row for row in rows if row["rate"] == "equivalent"), key=lambda row: row["evidence"]
    )
    return {**slopes, "at_full_evidence": last["distance"]}


def _slope(rows: Sequence[Row]) -> float:
    """On logarithmic axes, where the evidence is weak."""
    weak = [row for row in rows if row["evidence"] <= WEAK]
    across, up = (np.log([row[key] for row in weak]) for key in ("gradient_norm", "distance"))
    return float(np.polyfit(across, up, 1)[0])


def _draw(figure: Any, rows: Sequence[Row], orders: Sequence[int]) -> None:
    axes = figure.subplots(1, len(orders), sharex=True, sharey=True, squeeze=False)[0]
    for axis, order in zip(axes, orders, strict=True):
        for rate, method, label, power in (
            ("other", "one_step", f"η = {OTHER:g}/(m+1)", 1),
            ("equivalent", "one_step_theory", "η = 1/(m+1)", 2),
        ):
            some = [row for row in rows if (row["order"], row["rate"]) == (order, rate)]
            draw_method(
                axis,
                method,
                [(row["gradient_norm"], row["distance"], row["distance_stderr"]) for row in some],
                label,
            )
            ends = some[0]["gradient_norm"] * np.array([1, 60])
            # Below the marks, not on them.
            guide = 0.4 * some[0]["distance"] * np.array([1, 60]) ** power
            axis.plot(
                ends,
                guide,
                color=SHADES[2].colour,
                linestyle="-" if power == 1 else ":",
                linewidth=1,
                label=f"slope {power}",
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_title(f"m = {order}")
        axis.set_xlabel("norm of the centred gradient")
        grid(axis)
    axes[0].set_ylabel("distance of weights,\nmirror descent to the exact posterior mean")
    legend_below(figure, axes, 4)
