"""The tuned learning rate falls as 1/T, next to the smoothness bounds: Theorem 2 as a figure."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import numpy as np

from mtdinterp.plotting import draw_method, grid, legend_below, lengths_axis
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column, rows_where
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.reproduce.scores import tuned_rate
from mtdinterp.style import SHADES
from mtdinterp.theory import equivalent_learning_rate, smoothness_at_uniform
from mtdinterp.training.zoo import zoo_task

ORDERS = (3, 4, 5)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
REPEATS = 3
N_SMOOTHNESS = 256
"""Sequences on which smoothness is measured."""
LONG = 256
"""The power of T is fitted from this length on."""
BOUNDS = {
    "tangent_measured": "1/L measured, tangent space",
    "tangent_bound": "1/((T-m)·(m-1)), tangent space",
    "full_bound": "1/((T-m)·m), full space",
    "paper_bound": "1/((T-m)·m²), the paper's",
}


@register_figure(
    "learning-rate", summary="the tuned learning rate times T, with smoothness bounds", rank=10
)
def learning_rate(
    context: Context,
    orders: Sequence[int] = ORDERS,
    lengths: Sequence[int] = LENGTHS,
    repeats: int = REPEATS,
) -> Reproduction:
    """Theorem 2 as a figure.

    Args:
        context: models and settings that the figure is made from.
        orders: the orders m to show.
        lengths: the lengths T to show.
        repeats: how many times each rate is tuned, with different seeds.

    Returns:
        The figure.
    """
    rows: list[dict[str, Any]] = []
    numbers: dict[str, dict[str, Any]] = {}
    sentences = []
    for order in orders:
        some = [_row(context, order, length, repeats) for length in lengths]
        rows += some
        found = _numbers(some)
        numbers[f"m{order}"] = found
        sentences.append(_sentence(order, found))
    return Reproduction(
        name="learning-rate",
        title="How the learning rate scales with length",
        claim="Relative smoothness at uniform weights is at most (T-m)·m², so that the stable "
        "learning rate falls as 1/T; the transformer implements this scaling (Theorem 2, Section 5 "
        "and Appendix J). The paper has no figure.",
        measured=(
            *sentences,
            f"η·T levels off rather than being constant: from T = {lengths[1]} to {lengths[2]} it "
            f"grows by {_growth(numbers, 1)}, from {lengths[-2]} to {lengths[-1]} by "
            f"{_growth(numbers, -2)}. The same proof gives sharper bounds, which are drawn too: "
            "(T-m)·m if the entropy's own curvature is taken into account, and (T-m)·(m-1) on the "
            "tangent space of the simplex, which contains all updates. Stability does not bound "
            "the tuned rate, because there is only one step.",
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, orders, lengths),
        size=(3.2 * len(orders), 4.3),
    )


def _growth(numbers: dict[str, Any], place: int) -> str:
    """By how much η·T grows from one length to the next, as a range over orders."""
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
    lengths = column(rows, "length")
    since = LONG if max(lengths) > LONG else min(lengths)
    late = [row for row in rows if row["length"] >= since]
    x = np.log(column(late, "length"))
    y = np.log(column(late, "tuned_rate"))
    longest = rows[-1]
    return {
        "rate_times_length": {
            str(row["length"]): row["tuned_rate"] * row["length"] for row in rows
        },
        "power": float(np.polyfit(x, y, 1)[0]),
        "power_from": since,
        "over_stable": longest["tuned_rate"] * longest["tangent_measured"],
        "longest": longest["length"],
        "tangent_share": max(row["tangent_measured"] / row["tangent_bound"] for row in rows),
        "full_share": max(row["full_measured"] / row["full_bound"] for row in rows),
        "paper_share": max(row["full_measured"] / row["paper_bound"] for row in rows),
    }


def _sentence(order: int, found: dict[str, Any]) -> str:
    products = found["rate_times_length"].items()
    scaled = ", ".join(f"{value:.2f} (T = {length})" for length, value in products)
    return (
        f"m = {order}: tuned η·T is {scaled}; from T = {found['power_from']} on, η scales as T to "
        f"the power {found['power']:.2f}. The largest measured smoothness of a sequence is "
        f"{found['tangent_share']:.2f} of its bound on the tangent space, "
        f"{found['full_share']:.2f} in full space and {found['paper_share']:.2f} of the paper's "
        f"bound; at T = {found['longest']} the tuned rate is {found['over_stable']:.2f} times the "
        "stable rate according to the measured constant."
    )


def _draw(figure: Any, rows: Sequence[Row], orders: Sequence[int], lengths: Sequence[int]) -> None:
    axes = figure.subplots(1, len(orders), sharey=True, squeeze=False)[0]
    for axis, order in zip(axes, orders, strict=True):
        some = rows_where(rows, order=order)
        draw_method(axis, "one_step", [_tuned_point(row) for row in some], "tuned η")
        rate = equivalent_learning_rate(order)
        first_order = [(row["length"], rate * row["length"], 0.0) for row in some]
        draw_method(axis, "one_step_theory", first_order, "η = 1/(m+1), first order")
        for (key, label), style in zip(BOUNDS.items(), SHADES, strict=False):
            axis.plot(
                column(some, "length"),
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


def _tuned_point(row: Row) -> tuple[float, float, float]:
    """T, tuned η·T and its standard error."""
    length = row["length"]
    return length, row["tuned_rate"] * length, row["tuned_rate_stderr"] * length
