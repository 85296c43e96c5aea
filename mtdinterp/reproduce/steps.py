"""Five layers against several steps of mirror descent, and the explicit two-step construction:
Figure 5."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from mtdinterp.construction import two_step
from mtdinterp.fitting import Evidence, fit_two_step
from mtdinterp.models import LensTransformer
from mtdinterp.plotting import draw_method, grid, kl_axis, legend_below, lengths_axis
from mtdinterp.reproduce.figure import Context, Reproduction, Row
from mtdinterp.reproduce.methods import draw_methods
from mtdinterp.reproduce.models import available, say_missing
from mtdinterp.reproduce.scores import Scores, model_kl, tuned_rate, tuning_sequences, usual_scores
from mtdinterp.task import MTDTask
from mtdinterp.training.zoo import ENTRIES, zoo_task

ORDER, STEPS, LENGTHS = 3, (1, 2, 3, 4, 5), (32, 64, 128, 256, 512)
CUT = 1.22
"""One step leaves the right panel here: shown in full, it would press all others together."""
METHODS = (
    "exact_bayes",
    *(f"mirror_descent_{count}" for count in reversed(STEPS[1:])),
    "one_step",
    "two_step_construction",
)


def five_layers(
    context: Context, lengths: Sequence[int] = LENGTHS, steps: Sequence[int] = STEPS
) -> Reproduction:
    wanted = [entry for entry in ENTRIES if entry.layers == 5 and entry.length in lengths]
    checkpoints, missing = available(context.models, wanted)
    rows: list[dict[str, Any]] = []
    for length in lengths:
        task = zoo_task(ORDER)
        data = context.data(task, length)
        values = usual_scores(task, data, tuple(steps))
        # Three layers are another figure's subject.
        del values["construction"]
        values["two_step_construction"] = model_kl(_construction(context, task, length), data)
        for entry in wanted:
            if entry.length == length and entry.name in checkpoints:
                values[f"model, seed {entry.seed}"] = model_kl(checkpoints[entry.name].model, data)
        scores = Scores(values)
        for row, method in zip(scores.rows(length=length), values, strict=True):
            two = scores.ratio(method, "mirror_descent_2")
            rows.append({**row, "over_two_step": two.value, "over_two_step_stderr": two.stderr})
    seeds = _over_seeds(rows)
    numbers = {
        "model_over_two_step": {
            f"T{row['length']}, {row['method'].removeprefix('model, ')}": row["over_two_step"]
            for row in rows
            if row["method"].startswith("model")
        },
        "mean_over_seeds": [dict(row) for row in seeds],
        **{
            f"{method}_over_two_step": {
                f"T{row['length']}": row["over_two_step"] for row in rows if row["method"] == method
            }
            for method in ("one_step", "two_step_construction", "exact_bayes")
        },
    }
    return Reproduction(
        name="five-layers",
        title="Five layers against k steps of mirror descent",
        claim="A trained five-layer transformer has about the KL of two-step mirror descent at "
        "every length (three "
        "seeds with error bars), with some variance between seeds on long sequences; an explicit "
        "multi-step "
        "construction is left open (Section 6 and Figure 5).",
        measured=(*_sentences(rows, seeds), *say_missing(missing)),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, seeds, lengths),
        size=(9.0, 4.4),
    )


def _construction(context: Context, task: MTDTask, length: int) -> LensTransformer:
    """The two-step construction with constants fitted to the truth, on other sequences than those
    that are scored."""
    data = task.sample(context.count(tuning_sequences(length)), length, seed=0)
    constants = fit_two_step(
        Evidence(task, data.tokens), data.next_probs, tuned_rate(task, length, steps=2).beta
    )
    return two_step(task.transition, task.order, length, *constants)


def _over_seeds(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean over seeds and its spread: the standard deviation between them, or of a single seed its
    standard error."""
    found = []
    for length in dict.fromkeys(row["length"] for row in rows):
        some = [
            row for row in rows if row["length"] == length and row["method"].startswith("model")
        ]
        if some:
            entry: dict[str, Any] = {"length": length, "method": "model", "seeds": len(some)}
            for key in ("kl", "over_one_step", "over_two_step"):
                values = [row[key] for row in some]
                entry[key] = mean(values)
                entry[f"{key}_spread"] = (
                    stdev(values) if len(values) > 1 else some[0][f"{key}_stderr"]
                )
            found.append(entry)
    return found


def _sentences(rows: Sequence[Row], seeds: Sequence[Row]) -> tuple[str, ...]:
    sentences = []
    for row in seeds:
        several = [
            f"{other['over_two_step']:.3f}"
            for other in rows
            if other["length"] == row["length"] and other["method"].startswith("model")
        ]
        count = (
            f"seeds {', '.join(several)}; ± is their standard deviation"
            if len(several) > 1
            else "one seed; ± is its error over sequences"
        )
        one, two = (_kl(rows, method, row["length"]) for method in ("one_step", "mirror_descent_2"))
        sentences.append(
            f"At T = {row['length']} five trained layers have {row['over_two_step']:.3f} ± "
            f"{row['over_two_step_spread']:.3f} times the KL of tuned two-step mirror descent "
            f"({count}): "
            f"{(one - row['kl']) / (one - two):.0%} of the way from one step to two."
        )
    built = [row for row in rows if row["method"] == "two_step_construction"]
    sentences.append(
        "The explicit two-step construction, left open in the paper, has "
        + ", ".join(
            f"{row['over_two_step']:.3f} ± {row['over_two_step_stderr']:.3f} (T = {row['length']})"
            for row in built
        )
        + " times the KL of two steps; its four constants are tuned against the truth."
    )
    longest = max(row["length"] for row in rows)
    further = [
        f"{row['kl'] / _kl(rows, 'exact_bayes', longest):.3f}"
        for row in rows
        if row["length"] == longest
        and row["method"] in ("one_step", *(f"mirror_descent_{count}" for count in STEPS))
    ]
    sentences.append(
        f"At T = {longest} the KL of 1, 2, … steps is {', '.join(further)} times that of the exact "
        "posterior mean."
    )
    return tuple(sentences)


def _kl(rows: Sequence[Row], method: str, length: int) -> float:
    return next(row["kl"] for row in rows if row["method"] == method and row["length"] == length)


def _draw(figure: Any, rows: Sequence[Row], seeds: Sequence[Row], lengths: Sequence[int]) -> None:
    left, right = figure.subplots(1, 2)
    # On the right so little is between the methods that they stand side by side at each length.
    separated = {
        method: 2 ** (0.075 * (place - len(METHODS) / 2))
        for place, method in enumerate((*METHODS, "model"))
    }
    for axis, key, x_factors in ((left, "kl", {}), (right, "over_two_step", separated)):
        draw_methods(axis, rows, METHODS, "length", key, f"{key}_stderr", x_factors)
        points = [(row["length"], row[key], row[f"{key}_spread"]) for row in seeds]
        draw_method(axis, "model", points, "trained, five layers", x_factors.get("model", 1.0))
        lengths_axis(axis, lengths)
        grid(axis)
    kl_axis(left)
    left.set_ylabel("KL(truth ‖ prediction) (nats)")
    right.set_ylim(0.83, CUT)
    right.set_ylabel(f"the same over that of two-step\nmirror descent, up to {CUT:g}")
    bars = "; ".join(f"T = {row['length']}: {row['seeds']} trained" for row in seeds)
    figure.suptitle(
        f"m = {ORDER} ({bars}). Bars: spread over seeds, or standard error over sequences",
        fontsize=9,
    )
    legend_below(figure, (left, right), 4)
