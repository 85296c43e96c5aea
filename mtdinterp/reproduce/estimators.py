"""Every registered estimator on held-out sequences; the paper has no such figure.

The figure lists `registry.ESTIMATORS`: a new estimator appears without a change here. Models are
left to `lengths` and `steps`.
"""

from collections.abc import Sequence
from typing import Any

from mtdinterp.errors import CannotCompute
from mtdinterp.estimators import Constants, Estimator
from mtdinterp.plotting import grid
from mtdinterp.registry import ESTIMATORS
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column, rows_where
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.reproduce.scores import Scores, Values, tuning_sequences, weights_kl
from mtdinterp.style import INK, style_of
from mtdinterp.tasks import Task
from mtdinterp.training.zoo import zoo_task

ORDER = 3
LENGTHS = (64, 256)
N_SEQUENCES = 2048


@register_figure(
    "estimators", summary="KL to the truth of every registered estimator, m = 3", rank=12
)
def estimators(context: Context, lengths: Sequence[int] = LENGTHS) -> Reproduction:
    """The KL to the truth of every registered estimator, relative to one-step mirror descent.

    Args:
        context: models and settings that the figure is made from.
        lengths: the lengths T to show.

    Returns:
        The figure.
    """
    task = zoo_task(ORDER)
    rows: list[dict[str, Any]] = []
    numbers: dict[str, dict[str, float]] = {}
    sentences: list[str] = []
    notes: list[str] = []
    for length in lengths:
        some, reasons = _rows(context, task, length)
        rows += some
        notes += reasons
        numbers[f"T{length}"] = {row["method"]: row["over_one_step"] for row in some}
        sentences.append(_sentence(some, length))
    return Reproduction(
        name="estimators",
        title="Every estimator on held-out sequences",
        claim="For short sequences, one mirror-descent step is close to the Bayes optimum; for "
        "longer ones, it falls behind (Section 6 and Figure 4). The paper compares fewer "
        "estimators and has no such figure.",
        measured=(
            *sentences,
            "Constants are tuned against the truth on other sequences.",
            *notes,
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, rows, lengths),
        size=(4.6 * len(lengths), 1.2 + 0.26 * len(ESTIMATORS)),
    )


def _rows(context: Context, task: Task, length: int) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per estimator, and a sentence for each that has no result or no clear optimum."""
    data = context.data(task, length, N_SEQUENCES)
    evidence = task.evidence(data.tokens)
    values: Values = {}
    tuned: dict[str, Constants] = {}
    notes = []
    for name, estimator in ESTIMATORS.items():
        try:
            tuned[name], at_bound = _tuned(context, estimator, task, length)
            values[name] = weights_kl(
                evidence, data, estimator.checked_weights(evidence, tuned[name])
            )
        except CannotCompute as error:
            notes.append(f"Not shown at T = {length}: {estimator.label}. {error}")
            continue
        if at_bound:
            notes.append(
                f"At T = {length}, tuning {estimator.label} ended on a bound of the range of "
                f"{', '.join(at_bound)}."
            )
    rows = []
    for row in Scores(values).rows(length=length):
        constants = tuned[row["method"]].items()
        listed = ", ".join(f"{name} = {value:.4g}" for name, value in constants)
        rows.append({**row, "constants": listed})
    return rows, notes


def _tuned(
    context: Context, estimator: Estimator, task: Task, length: int
) -> tuple[Constants, tuple[str, ...]]:
    """Constants tuned to the truth, and the names of those that ended on a bound."""
    probe = task.evidence(task.sample(1, length, seed=0).tokens)
    if not estimator.constants_for(probe):
        return {}, ()
    count = context.count(tuning_sequences(length))
    fit = estimator.tune(task, length, n_sequences=count)
    return fit.constants, fit.at_bound


def _sentence(rows: Sequence[Row], length: int) -> str:
    ordered = sorted(rows, key=lambda row: row["over_one_step"])
    parts = []
    for row in ordered:
        ratio = f"{row['over_one_step']:.3f} ± {row['over_one_step_stderr']:.3f}"
        parts.append(f"{ESTIMATORS[row['method']].label} {ratio}")
    return (
        f"m = {ORDER}, T = {length}, KL relative to one-step mirror descent on "
        f"{ordered[0]['sequences']} sequences, the best first: {'; '.join(parts)}."
    )


def _draw(figure: Any, rows: Sequence[Row], lengths: Sequence[int]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(column(rows, "method")))
    for axis, length in zip(axes, lengths, strict=True):
        for row in rows_where(rows, length=length):
            style = style_of(row["method"])
            axis.errorbar(
                row["over_one_step"],
                names.index(row["method"]),
                xerr=row["over_one_step_stderr"],
                color=style.colour,
                marker=style.marker or "|",
                markersize=6,
                capsize=2,
            )
        axis.axvline(1, color=INK, linewidth=0.8)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_xlabel("KL relative to one-step mirror descent")
        axis.set_title(f"m = {ORDER}, T = {length}")
        grid(axis)
    axes[0].set_yticks(range(len(names)), [ESTIMATORS[name].label for name in names])
    axes[0].invert_yaxis()
