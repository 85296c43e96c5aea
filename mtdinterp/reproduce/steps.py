"""Five layers against several mirror-descent steps, and the two-step construction: Figure 5."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from mtdinterp.algorithms.two_step import TwoStepConstants, fit_two_step
from mtdinterp.construction import two_step
from mtdinterp.models import LensTransformer
from mtdinterp.plotting import draw_method, grid, kl_axis, legend_below, lengths_axis
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column, rows_where
from mtdinterp.reproduce.methods import draw_methods
from mtdinterp.reproduce.models import available, say_ends, say_missing
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.reproduce.scores import (
    SCORED_SEQUENCES,
    Scores,
    mirror_descent_name,
    model_kl,
    paper_scores,
    say_sequences,
    tuned_rate,
    tuning_sequences,
)
from mtdinterp.tasks import MTDTask
from mtdinterp.training.zoo import ENTRIES, zoo_task

ORDER = 3
STEPS = (1, 2, 3, 4, 5)
LENGTHS = (64, 128, 256, 512)
"""The lengths of the estimators; those of trained models are added."""
HIGHEST = 1.22
"""The top of the right panel, unless a trained model is above it. One step is cut off there: with
it in full, the other methods would be indistinguishable."""
SEPARATION = 2**0.05
"""The factor between the x of neighbouring methods in that panel."""
DESCENTS = tuple(mirror_descent_name(count) for count in STEPS)
METHODS = ("exact_bayes", *reversed(DESCENTS), "two_step_construction")
"""From the bottom to the top of the picture."""
SHARED = ("one_step", "two_step_construction", "exact_bayes")
"""The methods whose ratios to two steps are among the numbers."""


@register_figure(
    "five-layers",
    summary="five layers against k steps of mirror descent, three seeds",
    rank=4,
)
def five_layers(
    context: Context, lengths: Sequence[int] | None = None, steps: Sequence[int] = STEPS
) -> Reproduction:
    """The paper's Figure 5.

    Args:
        context: models and settings that the figure is made from.
        lengths: the lengths T to show; `LENGTHS` and those of all models if None.
        steps: the numbers of mirror-descent steps; they include 1 and 2.

    Returns:
        The figure.
    """
    wanted = [entry for entry in ENTRIES if entry.layers == 5 and entry.order == ORDER]
    if lengths is None:
        lengths = sorted({*LENGTHS, *(entry.length for entry in wanted)})
    wanted = [entry for entry in wanted if entry.length in lengths]
    checkpoints, missing = available(context.models, wanted)
    task = zoo_task(ORDER)
    rows: list[dict[str, Any]] = []
    for length in lengths:
        context.announce(f"m = {ORDER}, T = {length}")
        data = context.data(task, length, SCORED_SEQUENCES)
        values = paper_scores(task, data, steps)
        # The one-step construction has three layers and belongs to another figure.
        del values["construction"]
        values["two_step_construction"] = model_kl(_construction(context, task, length), data)
        for entry in wanted:
            if entry.length == length and entry.name in checkpoints:
                model = checkpoints[entry.name].model
                values[f"model, seed {entry.seed}"] = model_kl(model, data)
        rows += _rows(Scores(values), length)
    seeds = _over_seeds(rows)
    longest = {ORDER: max(column(seeds, "length"))} if seeds else {}
    return Reproduction(
        name="five-layers",
        title="Five layers against k steps of mirror descent",
        claim="A trained five-layer transformer has about the KL of two-step mirror descent at "
        "every length (three seeds with error bars), with some variance between seeds on long "
        "sequences; an explicit multi-step construction is left open (Section 6 and Figure 5).",
        measured=(
            *_sentences(rows, seeds),
            say_sequences(rows),
            *say_ends("five-layer", longest, lengths, context.models),
            *say_missing(missing, context.models),
        ),
        numbers=_numbers(rows, seeds),
        table=rows,
        draw=lambda figure: _draw(figure, rows, seeds, lengths),
        size=(10.4, 4.4),
    )


def _construction(context: Context, task: MTDTask, length: int) -> LensTransformer:
    """The two-step construction, with constants fitted to the truth on other sequences."""
    data = task.sample(context.count(tuning_sequences(length)), length, seed=0)
    scale = tuned_rate(task, length, steps=2).beta
    fit = fit_two_step(task.evidence(data.tokens), data.next_probs, scale)
    constants = TwoStepConstants(**fit.constants)
    return two_step(task.transition, task.order, length, *constants)


def _rows(scores: Scores, length: int) -> list[dict[str, Any]]:
    """One row per method, with its ratio to two steps."""
    rows = []
    for row in scores.rows(length=length):
        ratio = scores.ratio(row["method"], to="mirror_descent_2")
        rows.append({**row, "over_two_step": ratio.value, "over_two_step_stderr": ratio.stderr})
    return rows


def _trained(rows: Sequence[Row]) -> list[Row]:
    """The rows of trained models."""
    return [row for row in rows if row["method"].startswith("model")]


def _over_seeds(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The mean over seeds at each length, and its spread.

    The spread is the standard deviation between seeds, or a single seed's standard error.
    """
    found = []
    for length in dict.fromkeys(column(rows, "length")):
        some = _trained(rows_where(rows, length=length))
        if not some:
            continue
        entry: dict[str, Any] = {"length": length, "method": "model", "seeds": len(some)}
        for key in ("kl", "over_one_step", "over_two_step"):
            values = column(some, key)
            entry[key] = mean(values)
            several = len(values) > 1
            entry[f"{key}_spread"] = stdev(values) if several else some[0][f"{key}_stderr"]
        found.append(entry)
    return found


def _numbers(rows: Sequence[Row], seeds: Sequence[Row]) -> dict[str, Any]:
    by_seed = {}
    for row in _trained(rows):
        seed = row["method"].removeprefix("model, ")
        by_seed[f"T{row['length']}, {seed}"] = row["over_two_step"]
    numbers: dict[str, Any] = {
        "model_over_two_step": by_seed,
        "mean_over_seeds": [dict(row) for row in seeds],
    }
    for method in SHARED:
        some = rows_where(rows, method=method)
        ratios = {f"T{row['length']}": row["over_two_step"] for row in some}
        numbers[f"{method}_over_two_step"] = ratios
    return numbers


def _sentences(rows: Sequence[Row], seeds: Sequence[Row]) -> tuple[str, ...]:
    sentences = [_seed_sentence(rows, row) for row in seeds]
    ratios = []
    for row in rows_where(rows, method="two_step_construction"):
        ratio = f"{row['over_two_step']:.3f} ± {row['over_two_step_stderr']:.3f}"
        ratios.append(f"{ratio} (T = {row['length']})")
    sentences.append(
        f"The explicit two-step construction, left open in the paper, has {', '.join(ratios)} "
        "times the KL of two steps; its four constants are tuned against the truth."
    )
    longest = max(column(rows, "length"))
    bayes = _kl(rows, "exact_bayes", longest)
    some = rows_where(rows, length=longest)
    descents = [row for row in some if row["method"] in DESCENTS]
    listed = ", ".join(f"{row['kl'] / bayes:.3f}" for row in descents)
    sentences.append(
        f"At T = {longest} the KL of 1, 2, … steps is {listed} times that of the exact posterior "
        "mean."
    )
    return tuple(sentences)


def _seed_sentence(rows: Sequence[Row], average: Row) -> str:
    """A sentence about the KL of the trained models of one length."""
    length = average["length"]
    trained = _trained(rows_where(rows, length=length))
    spread = "one seed; ± is its standard error over sequences"
    if len(trained) > 1:
        several = ", ".join(f"{row['over_two_step']:.3f}" for row in trained)
        spread = f"seeds {several}; ± is their standard deviation"
    one = _kl(rows, "one_step", length)
    two = _kl(rows, "mirror_descent_2", length)
    share = (one - average["kl"]) / (one - two)
    return (
        f"At T = {length} the trained five-layer models have {average['over_two_step']:.3f} ± "
        f"{average['over_two_step_spread']:.3f} times the KL of tuned two-step mirror descent "
        f"({spread}): {share:.0%} of the way from one step to two."
    )


def _kl(rows: Sequence[Row], method: str, length: int) -> float:
    (row,) = rows_where(rows, method=method, length=length)
    return row["kl"]


def _draw(figure: Any, rows: Sequence[Row], seeds: Sequence[Row], lengths: Sequence[int]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    # The methods differ so little on the right that they are drawn side by side at each length.
    separated = {
        method: SEPARATION ** (place - len(METHODS) / 2)
        for place, method in enumerate((*METHODS, "model"))
    }
    panels: list[tuple[Any, str, dict[str, float]]] = [
        (left, "kl", {}),
        (right, "over_two_step", separated),
    ]
    for axis, key, x_factors in panels:
        draw_methods(axis, rows, METHODS, "length", key, f"{key}_stderr", x_factors)
        points = [(row["length"], row[key], row[f"{key}_spread"]) for row in seeds]
        draw_method(axis, "model", points, "trained, five layers", x_factors.get("model", 1.0))
        lengths_axis(axis, lengths)
        grid(axis)
    kl_axis(left)
    left.set_ylabel("KL(truth ‖ prediction) (nats)")
    ends = [row["over_two_step"] + row["over_two_step_spread"] for row in seeds]
    top = max([HIGHEST, *(1.01 * end for end in ends)])
    right.set_ylim(top=top)
    right.set_ylabel(f"KL relative to two-step\nmirror descent, up to {top:.2f}")
    counts = " or ".join(map(str, sorted(set(column(seeds, "seeds"))))) or "no"
    figure.suptitle(
        f"m = {ORDER}, {counts} trained models per length. Bars: spread over seeds, or standard "
        "error over sequences",
        fontsize=9,
    )
    legend_below(figure, (left, right), 4)
