"""KL to the truth against sequence length: the paper's Figures 4 (right, top) and 6."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, NamedTuple

from mtdinterp.plotting import grid, kl_axis, legend_below, lengths_axis
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column, rows_where
from mtdinterp.reproduce.methods import X_FACTORS, draw_methods, label_of, method_of
from mtdinterp.reproduce.models import available, say_ends, say_missing
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.reproduce.scores import (
    SCORED_SEQUENCES,
    Scores,
    mirror_descent_name,
    model_kl,
    paper_scores,
    say_sequences,
)
from mtdinterp.style import style_of
from mtdinterp.training.zoo import ENTRIES, TASK_SEED, Entry, zoo_task

ORDERS = (3, 4, 5)
LENGTHS = (64, 128, 256, 512, 1024, 1984)
"""The paper's lengths; those of other models in the zoo are added."""
STEPS = (1, 2, 5)
"""Numbers of mirror-descent steps."""
SEVERAL_STEPS = tuple(mirror_descent_name(count) for count in STEPS if count > 1)
METHODS = (
    "exact_bayes",
    *reversed(SEVERAL_STEPS),
    "construction",
    "one_step",
    "standard",
    "model",
)
"""The methods of the paper's figure, from the bottom to the top of the picture. The figure
`estimators` shows every registered estimator."""
TRAINED = {"model": "disentangled", "standard": "standard"}
"""Architectures of the trained models, by method."""


class Size(NamedTuple):
    """What sequences are drawn for."""

    order: int
    length: int
    task: int
    """The seed of the task."""

    @classmethod
    def of(cls, entry: Entry) -> "Size":
        """The size of the sequences that a model was trained on."""
        return cls(entry.order, entry.length, entry.task_seed)


@register_figure(
    "kl-lengths", summary="KL to the truth against sequence length, m = 3, 4, 5", rank=2
)
def kl_against_length(
    context: Context, orders: Sequence[int] = ORDERS, lengths: Sequence[int] | None = None
) -> Reproduction:
    """The paper's Figures 4 (right, top) and 6.

    Args:
        context: models and settings that the figure is made from.
        orders: the orders m to show.
        lengths: the lengths T to show; the paper's and those of all models if None.

    Returns:
        The figure.
    """
    usual = [entry for entry in ENTRIES if _is_usual(entry) and entry.order in orders]
    if lengths is None:
        lengths = sorted({*LENGTHS, *(entry.length for entry in usual)})
    usual = [entry for entry in usual if entry.length in lengths]
    by_paper = [entry for entry in ENTRIES if entry.recipe == "paper" and context.models.stored]
    checkpoints, missing = available(context.models, usual)
    paper_checkpoints, _ = available(context.models, by_paper)
    checkpoints |= paper_checkpoints
    entries = [entry for entry in (*usual, *by_paper) if entry.name in checkpoints]

    sizes = [Size(order, length, TASK_SEED) for order in orders for length in lengths]
    other_tasks = {Size.of(entry) for entry in entries if Size.of(entry).task != TASK_SEED}
    rows: list[dict[str, Any]] = []
    for size in (*sizes, *sorted(other_tasks)):
        context.announce(_described(size))
        some = [entry for entry in entries if Size.of(entry) == size]
        task = zoo_task(size.order, size.task)
        data = context.data(task, size.length, SCORED_SEQUENCES)
        values = paper_scores(task, data, STEPS)
        for entry in some:
            values[_method(entry)] = model_kl(checkpoints[entry.name].model, data)
        rows += Scores(values).rows(**size._asdict())

    numbers = _numbers(rows)
    ends: list[str] = []
    for method, architecture in TRAINED.items():
        ends += say_ends(architecture, _longest(rows, method), lengths, context.models)
    return Reproduction(
        name="kl-lengths",
        title="KL to the truth against sequence length",
        claim="Trained three-layer transformers, disentangled and standard, predict as well as the "
        "construction and as tuned one-step mirror descent at every length; for short sequences, "
        "one step is close to the Bayes optimum; for longer ones, it falls behind (Section 6 and "
        "Figure 4, right top; Figure 6 for m = 3 and 5).",
        measured=(
            *_sentences(rows, numbers, entries),
            say_sequences(rows),
            *ends,
            *say_missing(missing, context.models),
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, orders, lengths),
        size=(3.6 * len(orders), 7.6),
    )


def _is_usual(entry: Entry) -> bool:
    """Whether a model has three layers and seed 0, and was trained in the usual way."""
    return entry.layers == 3 and entry.seed == 0 and not entry.suffix


def _method(entry: Entry) -> str:
    """The method of a model in the table; models of the paper's recipe are not drawn."""
    return entry.name if entry.recipe == "paper" else method_of(entry.architecture)


def _described(size: Size) -> str:
    """A size in words."""
    task = "" if size.task == TASK_SEED else f", task {size.task}"
    return f"m = {size.order}, T = {size.length}{task}"


def _size_of(row: Row) -> Size:
    """The size of a row's sequences."""
    return Size(row["order"], row["length"], row["task"])


def _of_main_task(rows: Sequence[Row], method: str) -> list[Row]:
    """The rows of a method on the task that all estimators are shown for."""
    return rows_where(rows, method=method, task=TASK_SEED)


def _longest(rows: Sequence[Row], method: str) -> dict[int, int]:
    """The longest length of a method, by order."""
    longest: dict[int, int] = {}
    for row in _of_main_task(rows, method):
        longest[row["order"]] = max(row["length"], longest.get(row["order"], 0))
    return longest


def _numbers(rows: Sequence[Row]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for method in ("model", "standard", *SEVERAL_STEPS, "exact_bayes"):
        numbers[f"{method}_over_one_step"] = _ratios(_of_main_task(rows, method))
    built = column(rows_where(rows, method="construction"), "over_one_step")
    numbers["construction_largest_difference"] = max(abs(ratio - 1) for ratio in built)
    numbers["over_tasks"] = {method: _over_tasks(rows, method) for method in TRAINED}
    papers = [row for row in rows if row["method"].endswith("-paper")]
    ratios = {row["method"]: row["over_one_step"] for row in papers}
    numbers["paper_recipe_over_one_step"] = ratios
    return numbers


def _ratios(rows: Sequence[Row]) -> dict[str, float]:
    """The ratio to one step in each row, under names such as m3-T64."""
    return {f"m{row['order']}-T{row['length']}": row["over_one_step"] for row in rows}


def _over_tasks(rows: Sequence[Row], method: str) -> dict[str, dict[str, float]]:
    """Mean and standard deviation over tasks of the ratio to one step, where there are several."""
    found = {}
    for row in _of_main_task(rows, method):
        place = {"order": row["order"], "length": row["length"]}
        ratios = column(rows_where(rows, method=method, **place), "over_one_step")
        if len(ratios) > 1:
            name = f"m{row['order']}-T{row['length']}"
            found[name] = {"mean": mean(ratios), "spread": stdev(ratios), "tasks": len(ratios)}
    return found


def _sentences(
    rows: Sequence[Row], numbers: dict[str, Any], entries: Sequence[Entry]
) -> tuple[str, ...]:
    sentences = []
    for method, architecture in TRAINED.items():
        found = _of_main_task(rows, method)
        if found:
            low = min(found, key=lambda row: row["over_one_step"])
            high = max(found, key=lambda row: row["over_one_step"])
            sentences.append(
                f"The {len(found)} trained {architecture} models have {_ratio(low)} to "
                f"{_ratio(high)} times the KL of tuned one-step mirror descent on the same "
                "sequences; one seed each."
            )
    recipes = sorted({entry.recipe for entry in entries if entry.recipe != "paper"})
    if sentences:
        sentences.append(
            f"They were trained with our recipes ({', '.join(recipes)}), not the paper's (see "
            "parameters), and their π was among those on which the recipes were chosen."
        )
    sentences += _task_sentences(rows, numbers["over_tasks"])
    by_paper = numbers["paper_recipe_over_one_step"].items()
    if by_paper:
        listed = ", ".join(f"{ratio:.2f} ({name})" for name, ratio in by_paper)
        sentences.append(
            f"Models trained with the paper's full recipe have ratios of {listed} after the last "
            "step; at a constant learning rate, single evaluations vary by tens of percent."
        )
    sentences.append(
        "The construction, as float32 weights, has the KL of the formula up to a relative "
        f"difference of {numbers['construction_largest_difference']:.0e} at every length, as it "
        "must."
    )
    lengths = column(rows, "length")
    for length in sorted({min(lengths), max(lengths)}):
        parts = []
        for method in (*SEVERAL_STEPS, "exact_bayes"):
            some = rows_where(_of_main_task(rows, method), length=length)
            listed = ", ".join(_plus_minus(row) for row in some)
            parts.append(f"{listed} for {label_of(method)}")
        orders = ", ".join(str(row["order"]) for row in some)
        sentences.append(
            f"At T = {length}, KL relative to one step is {'; '.join(parts)} (m = {orders})."
        )
    return (*sentences, "The paper's Bayes curve is a Gibbs estimate; this one is exact.")


def _task_sentences(rows: Sequence[Row], over_tasks: dict[str, Any]) -> list[str]:
    """A sentence per architecture about the models of other tasks than the main one."""
    sentences = []
    for method, architecture in TRAINED.items():
        others = [row for row in rows_where(rows, method=method) if row["task"] != TASK_SEED]
        if not others:
            continue
        spreads = []
        for name, found in over_tasks[method].items():
            spread = f"{found['mean']:.3f} ± {found['spread']:.3f}"
            spreads.append(f"{spread} over {found['tasks']} tasks ({_spelt(name)})")
        sentences.append(
            f"For other π, the ratio of trained {architecture} models to one step is "
            f"{', '.join(map(_ratio, others))}; mean and standard deviation are "
            f"{', '.join(spreads)}."
        )
    return sentences


def _spelt(name: str) -> str:
    """m3-T64 as m = 3, T = 64."""
    return name.replace("m", "m = ").replace("-T", ", T = ")


def _ratio(row: Row) -> str:
    return f"{_plus_minus(row)} ({_described(_size_of(row))})"


def _plus_minus(row: Row) -> str:
    return f"{row['over_one_step']:.3f} ± {row['over_one_step_stderr']:.3f}"


def _draw(figure: Any, rows: Sequence[Row], orders: Sequence[int], lengths: Sequence[int]) -> None:
    axes = figure.subplots(
        3, len(orders), sharex=True, sharey="row", squeeze=False, height_ratios=(4, 3, 2)
    )
    ratio = ("length", "over_one_step", "over_one_step_stderr")
    for place, order in enumerate(orders):
        some = rows_where(rows, order=order, task=TASK_SEED)
        top, middle, bottom = axes[:, place]
        draw_methods(top, some, METHODS, "length", "kl", "kl_stderr")
        draw_methods(middle, some, METHODS, *ratio)
        draw_methods(bottom, some, tuple(reversed(TRAINED)), *ratio)
        _draw_other_tasks(bottom, rows_where(rows, order=order))
        bottom.axhline(1, color=style_of("one_step").colour, linewidth=0.8)
        kl_axis(top)
        top.set_title(f"m = {order}")
        lengths_axis(bottom, lengths)
        for axis in (top, middle, bottom):
            grid(axis)
    axes[0, 0].set_ylabel("KL(truth ‖ prediction) (nats)")
    axes[1, 0].set_ylabel("KL relative to\none-step mirror descent")
    axes[2, 0].set_ylabel("the same,\ntrained models")
    figure.suptitle("Bars: standard error over sequences", fontsize=9)
    legend_below(figure, axes.flat, 4)


def _draw_other_tasks(axis: Any, rows: Sequence[Row]) -> None:
    """Models of other tasks as hollow points, next to the model of the main task."""
    for method in TRAINED:
        others = [row for row in rows_where(rows, method=method) if row["task"] != TASK_SEED]
        if not others:
            continue
        tasks = sorted(set(column(others, "task")))
        style = style_of(method)
        axis.errorbar(
            [row["length"] * X_FACTORS[method] ** (2 + tasks.index(row["task"])) for row in others],
            column(others, "over_one_step"),
            column(others, "over_one_step_stderr"),
            color=style.colour,
            marker=style.marker,
            linestyle="none",
            label=f"{label_of(method)}, other π",
            markerfacecolor="white",
            markersize=4.5,
            elinewidth=1,
            capsize=2,
        )
