"""The tuned learning rate falls as 1/T, next to what smoothness bounds allow: Theorem 2, as a
figure."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np

from mtdinterp.plotting import draw_method, grid, legend_below, lengths_axis
from mtdinterp.reproduce.figure import Context, Reproduction, Row
from mtdinterp.reproduce.scores import tuned_rate
from mtdinterp.style import SHADES
from mtdinterp.theory import equivalent_learning_rate, smoothness_at_uniform
from mtdinterp.training.zoo import zoo_task

ORDERS, LENGTHS, REPEATS = (3, 4, 5), (32, 64, 128, 256, 512, 1024, 2048), 3
N_SMOOTHNESS = 256
LONG = 256
"""The power of T is fitted from here on."""
BOUNDS = {
    "tangent_measured": "1/L measured, tangent space",
    "tangent_bound": "1/((T-m)·(m-1)), tangent space",
    "full_bound": "1/((T-m)·m), full space",
    "paper_bound": "1/((T-m)·m²), the paper's",
}


def learning_rate(
    context: Context,
    orders: Sequence[int] = ORDERS,
    lengths: Sequence[int] = LENGTHS,
    repeats: int = REPEATS,
) -> Reproduction:
    rows: list[dict[str, Any]] = []
    for order in orders:
        for length in lengths:
            rows.append(_row(context, order, length, repeats))
    numbers = {
        f"m{order}": _numbers([row for row in rows if row["order"] == order]) for order in orders
    }
    return Reproduction(
        name="learning-rate",
        title="How the learning rate scales with length",
        claim="Relative smoothness at uniform weights is at most (T-m)·m², so that the stable "
        "learning rate falls as "
        "1/T, which is the scaling that the transformer implements (Theorem 2, Section 5 and "
        "Appendix J). Stated "
        "without a figure.",
        measured=(
            *(_sentence(order, numbers[f"m{order}"]) for order in orders),
            f"η·T levels off rather than being flat: from T = {lengths[1]} to {lengths[2]} it "
            "grows by "
            f"{_span(numbers, 1)}, from {lengths[-2]} to {lengths[-1]} by {_span(numbers, -2)}. "
            "The same proof "
            "gives sharper bounds, drawn too: (T-m)·m where the entropy's own curvature is "
            "counted, and "
            "(T-m)·(m-1) on the tangent space of the simplex, where the weights live. The tuned "
            "rate is not "
            "bound by stability: there is only one step.",
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, orders, lengths),
        size=(3.2 * len(orders), 4.3),
    )


def _span(numbers: dict[str, Any], place: int) -> str:
    """Over orders, by how much η·T grows from one length to the next."""
    growth = []
    for found in numbers.values():
        values = list(found["rate_times_length"].values())
        growth.append(values[place + 1] / values[place] - 1)
    return f"{min(growth):.0%} to {max(growth):.0%}"


def _row(context: Context, order: int, length: int, repeats: int) -> dict[str, Any]:
    task = zoo_task(order)
    seeds = range(context.seed * repeats, (context.seed + 1) * repeats)
    tuned = [tuned_rate(task, length, seed=seed).learning_rate for seed in seeds]
    tokens = context.data(task, length).tokens[: context.count(N_SMOOTHNESS)]
    found = smoothness_at_uniform(task.transition, tokens, order)
    return {
        "order": order,
        "length": length,
        "tuned_rate": mean(tuned),
        "tuned_rate_stderr": stdev(tuned) / repeats**0.5,
        "tangent_measured": found.tangent.max().item(),
        "full_measured": found.full.max().item(),
        "tangent_bound": found.tangent_bound,
        "full_bound": found.full_bound,
        "paper_bound": found.paper_bound,
    }


def _numbers(rows: Sequence[Row]) -> dict[str, Any]:
    lengths = [row["length"] for row in rows]
    since = LONG if max(lengths) > LONG else min(lengths)
    across, up = (
        np.log([row[key] for row in rows if row["length"] >= since])
        for key in ("length", "tuned_rate")
    )
    return {
        "rate_times_length": {
            str(row["length"]): row["tuned_rate"] * row["length"] for row in rows
        },
        "power": float(np.polyfit(across, up, 1)[0]),
        "power_from": since,
        "over_stable": rows[-1]["tuned_rate"] * rows[-1]["tangent_measured"],
        "longest": lengths[-1],
        "tangent_share": max(row["tangent_measured"] / row["tangent_bound"] for row in rows),
        "full_share": max(row["full_measured"] / row["full_bound"] for row in rows),
        "paper_share": max(row["full_measured"] / row["paper_bound"] for row in rows),
    }


def _sentence(order: int, found: dict[str, Any]) -> str:
    scaled = ", ".join(
        f"{value:.2f} (T = {length})" for length, value in found["rate_times_length"].items()
    )
    return (
        f"m = {order}: tuned η·T is {scaled}; from T = {found['power_from']} on η goes as T to the "
        "power "
        f"{found['power']:.2f}. The largest measured smoothness of a sequence is "
        f"{found['tangent_share']:.2f} of "
        f"its bound on the tangent space, {found['full_share']:.2f} in full space and "
        f"{found['paper_share']:.2f} "
        f"of the paper's bound; at T = {found['longest']} the tuned rate is "
        f"{found['over_stable']:.2f} times the "
        "stable one by the measured constant."
    )


def _draw(figure: Any, rows: Sequence[Row], orders: Sequence[int], lengths: Sequence[int]) -> None:
    axes = figure.subplots(1, len(orders), sharey=True, squeeze=False)[0]
    for axis, order in zip(axes, orders, strict=True):
        some = [row for row in rows if row["order"] == order]
        draw_method(
            axis,
            "one_step",
            [
                (
                    row["length"],
                    row["tuned_rate"] * row["length"],
                    row["tuned_rate_stderr"] * row["length"],
                )
                for row in some
            ],
            "tuned η",
        )
        draw_method(
            axis,
            "one_step_theory",
            [(row["length"], equivalent_learning_rate(order) * row["length"], 0.0) for row in some],
            "η = 1/(m+1), first order",
        )
        for (key, label), style in zip(BOUNDS.items(), SHADES, strict=False):
            axis.plot(
                [row["length"] for row in some],
                [row["length"] / row[key] for row in some],
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                markersize=3.5,
                linewidth=1.2,
                label=label,
            )
        axis.set_yscale("log")
        axis.set_title(f"m = {order}")
        lengths_axis(axis, lengths)
        axis.tick_params(axis="x", labelrotation=45)
        grid(axis)
    axes[0].set_ylabel("learning rate times length, η·T (tokens)")
    legend_below(figure, axes, 3)
