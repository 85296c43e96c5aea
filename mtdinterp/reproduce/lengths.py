"""KL to the truth against sequence length: the paper's Figure 4 (right, top) and 6."""

from collections.abc import Sequence
from typing import Any

from mtdinterp.plotting import grid, kl_axis, legend_below, lengths_axis
from mtdinterp.reproduce.figure import Context, Reproduction, Row
from mtdinterp.reproduce.methods import draw_methods
from mtdinterp.reproduce.models import available, say_missing
from mtdinterp.reproduce.scores import Scores, model_kl, usual_scores
from mtdinterp.training.zoo import ENTRIES, Entry, zoo_task

ORDERS, LENGTHS = (3, 4, 5), (16, 32, 64, 128, 256, 512)
METHODS = ("exact_bayes", "construction", "one_step", "standard", "model")
"""From the bottom to the top of the picture."""


def kl_against_length(
    context: Context, orders: Sequence[int] = ORDERS, lengths: Sequence[int] = LENGTHS
) -> Reproduction:
    wanted = [
        entry
        for entry in ENTRIES
        if entry.order in orders and entry.length in lengths and _plain(entry)
    ]
    checkpoints, missing = available(context.models, wanted)
    papers, _ = available(
        context.models,
        [entry for entry in ENTRIES if entry.recipe == "paper" and context.models.stored],
    )
    by_paper: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    for order in orders:
        for length in lengths:
            task = zoo_task(order)
            data = context.data(task, length)
            values = usual_scores(task, data)
            for entry in wanted:
                if (entry.order, entry.length) == (order, length) and entry.name in checkpoints:
                    method = "standard" if entry.architecture == "standard" else "model"
                    values[method] = model_kl(checkpoints[entry.name].model, data)
            rows += Scores(values).rows(order=order, length=length)
            for name, checkpoint in papers.items():
                if (checkpoint.task.order, checkpoint.model.config.length) == (order, length):
                    values["paper"] = model_kl(checkpoint.model, data)
                    by_paper[name] = Scores(values).ratio("paper").value
    numbers = {**_numbers(rows, orders, lengths), "paper_recipe_over_one_step": by_paper}
    return Reproduction(
        name="kl-lengths",
        title="KL to the truth against sequence length",
        claim="Trained three-layer transformers, disentangled and standard, predict as well as the "
        "construction and as "
        "tuned one-step mirror descent at every length; for short sequences one step is close to "
        "the Bayes "
        "optimum, for longer ones it falls behind (Section 6 and Figure 4, right top; Figure 6 for "
        "m = 3 and 5).",
        measured=(*_sentences(numbers, rows), *say_missing(missing)),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, orders, lengths),
        size=(3.3 * len(orders), 5.6),
    )


def _plain(entry: Entry) -> bool:
    """Three layers, the fast recipe, nothing special."""
    return entry.layers == 3 and entry.recipe == "fast" and not entry.suffix and entry.seed == 0


def _numbers(rows: Sequence[Row], orders: Sequence[int], lengths: Sequence[int]) -> dict[str, Any]:
    def ratios(method: str, length: int | None = None) -> dict[str, float]:
        return {
            f"m{row['order']}-T{row['length']}": row["over_one_step"]
            for row in rows
            if row["method"] == method and length in (None, row["length"])
        }

    bayes = {length: ratios("exact_bayes", length) for length in lengths}
    longest = {
        order: max(
            row["length"]
            for row in rows
            if row["method"] == "exact_bayes" and row["order"] == order
        )
        for order in orders
    }
    return {
        "model_over_one_step": ratios("model"),
        "standard_over_one_step": ratios("standard"),
        "construction_largest_difference": max(
            abs(ratio - 1) for ratio in ratios("construction").values()
        ),
        "one_step_over_bayes_shortest": {
            name: 1 / ratio for name, ratio in bayes[min(lengths)].items()
        },
        "one_step_over_bayes_longest": {
            f"m{order}-T{length}": 1 / bayes[length][f"m{order}-T{length}"]
            for order, length in longest.items()
        },
    }


def _sentences(numbers: dict[str, Any], rows: Sequence[Row]) -> tuple[str, ...]:
    sentences = []
    for method, words in (("model", "disentangled"), ("standard", "standard")):
        found = [row for row in rows if row["method"] == method]
        if not found:
            continue
        low, high = (pick(found, key=lambda row: row["over_one_step"]) for pick in (min, max))
        sentences.append(
            f"The {len(found)} trained {words} models have {low['over_one_step']:.3f} ± "
            f"{low['over_one_step_stderr']:.3f} (m = {low['order']}, T = {low['length']}) to "
            f"{high['over_one_step']:.3f} ± {high['over_one_step_stderr']:.3f} (m = "
            f"{high['order']}, T = "
            f"{high['length']}) times the KL of tuned one-step mirror descent on the same "
            "sequences; one seed each."
        )
    if sentences:
        sentences.append(
            "They were trained by the fast recipe, not the paper's (see parameters), and their π "
            "was "
            "among those on which that recipe was chosen."
        )
    if numbers["paper_recipe_over_one_step"]:
        sentences.append(
            "The paper's own recipe in full, as it stands after its last step, has "
            + ", ".join(
                f"{ratio:.2f} ({name})"
                for name, ratio in numbers["paper_recipe_over_one_step"].items()
            )
            + ": at a constant rate single evaluations move by tens of percent."
        )
    sentences.append(
        "The construction, as float32 weights, has the KL of the formula to "
        f"{numbers['construction_largest_difference']:.0e} of it at every length, as it must."
    )
    short, long = numbers["one_step_over_bayes_shortest"], numbers["one_step_over_bayes_longest"]
    sentences.append(
        f"One step over the exact posterior mean is {_listed(short, 3)}, and {_listed(long, 2)} at "
        "the longest lengths "
        "at which that was computed."
    )
    fewer = {
        (row["order"], row["length"]): row["sequences"]
        for row in rows
        if row["method"] == "exact_bayes"
        and row["sequences"]
        < max(
            other["sequences"]
            for other in rows
            if (other["order"], other["length"]) == (row["order"], row["length"])
        )
    }
    if fewer:
        sentences.append(
            "Exact Bayes is on fewer sequences for "
            + ", ".join(
                f"m = {order}, T = {length} ({count})" for (order, length), count in fewer.items()
            )
            + ", scaled by its ratio to one step there, and left out where a sequence takes a "
            "second. The paper's "
            "lengths go to 1984, and its Bayes curve is a Gibbs estimate."
        )
    return tuple(sentences)


def _listed(ratios: dict[str, float], digits: int) -> str:
    """Names like m3-T64 in words."""
    return ", ".join(
        f"{ratio:.{digits}f} ({name.replace('m', 'm = ').replace('-T', ', T = ')})"
        for name, ratio in ratios.items()
    )


def _draw(figure: Any, rows: Sequence[Row], orders: Sequence[int], lengths: Sequence[int]) -> None:
    axes = figure.subplots(2, len(orders), sharex=True, sharey="row", squeeze=False)
    for column, order in enumerate(orders):
        some = [row for row in rows if row["order"] == order]
        top, bottom = axes[:, column]
        draw_methods(top, some, METHODS, "length", "kl", "kl_stderr")
        draw_methods(bottom, some, METHODS, "length", "over_one_step", "over_one_step_stderr")
        kl_axis(top)
        top.set_title(f"m = {order}")
        lengths_axis(bottom, lengths)
        grid(top)
        grid(bottom)
    axes[0, 0].set_ylabel("KL(truth ‖ prediction) (nats)")
    axes[1, 0].set_ylabel("the same over that of\none-step mirror descent")
    legend_below(figure, axes.flat, 3)
