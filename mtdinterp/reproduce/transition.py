"""The transition matrix in layer 1: the paper's probe and the gauge-fixed one. Figures 4 and 7."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from mtdinterp.checkpoints import Checkpoint
from mtdinterp.metrics import row_kl
from mtdinterp.plotting import grid, probability_map, write_cells
from mtdinterp.readings import token_scores
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column
from mtdinterp.reproduce.models import available, say_missing
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.style import FAINT, INK, style_of
from mtdinterp.tasks import MTDTask
from mtdinterp.training.zoo import ENTRIES, Entry, zoo_task
from probes.recover_transition import TransitionRecovery, recover_transition

SHOWN = Entry(4, 64)
"""The model whose matrices are drawn, as in the paper's main text."""
READINGS = {"attention_softmax": "paper's probe: row softmax of W_Aᵀ", "attention": "gauge fixed"}
OURS = ("fast", "grown")
GROUPS = (
    ("disentangled", OURS, "disentangled models of our recipes"),
    ("standard", OURS, "standard models of our recipes, with the QK circuit for W_A"),
    ("disentangled", ("paper",), "disentangled models of the paper's own recipe"),
)
"""Architecture, recipes and description of the models that are summarised together."""
MOST_SEQUENCES, FEWEST_SEQUENCES, CELLS = 512, 32, 2**21
"""Sequences on which heads and branch are read: as many as have so many attention entries."""
TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)

Numbers = dict[str, dict[str, Any]]
"""Row KL of each reading, the control's, and the branch, by model."""


@register_figure("transition", summary="π read from layer 1: row softmax or gauge fixed", rank=3)
def transition_matrices(context: Context, entries: Sequence[Entry] = ENTRIES) -> Reproduction:
    """The paper's Figures 4 (right, bottom) and 7."""
    recipes = (*OURS, "paper") if context.models.stored else OURS
    wanted = [entry for entry in entries if entry.layers == 3 and entry.recipe in recipes]
    checkpoints, missing = available(context.models, wanted)
    found: dict[str, TransitionRecovery] = {}
    numbers: Numbers = {}
    for name, checkpoint in checkpoints.items():
        count = context.count(_n_sequences(checkpoint.model.config.length))
        result = recover_transition(
            checkpoint.model, checkpoint.task, n_sequences=count, seed=context.seed
        )
        found[name] = result
        numbers[name] = {
            **{reading: result.row_kl[reading] for reading in READINGS},
            "control": result.control_kl,
            "branch": result.branch,
        }
    task = zoo_task(SHOWN.order)
    if SHOWN.name in checkpoints:
        centred = _centred_probe(checkpoints[SHOWN.name], task)
        numbers[SHOWN.name]["attention_softmax_centred"] = centred
    shown = [entry for entry in wanted if entry.name in numbers]
    return Reproduction(
        name="transition",
        title="The transition matrix in layer 1",
        claim="The row softmax of W_Aᵀ in layer 1 of a trained disentangled transformer looks like "
        "the true transition matrix, with a small mean row KL, for every order and length "
        "(Section 6 and Figure 4, right bottom; Appendix E and Figure 7).",
        measured=(*_sentences(shown, numbers), *say_missing(missing, context.models)),
        numbers=numbers,
        table=_rows(found),
        draw=lambda figure: _draw(figure, task, found, numbers),
        size=(8.6, 3.3 + 0.23 * len(found)),
    )


def _n_sequences(length: int) -> int:
    """How many sequences of a length are read."""
    return max(FEWEST_SEQUENCES, min(MOST_SEQUENCES, CELLS // length**2))


def _rows(found: dict[str, TransitionRecovery]) -> list[dict[str, Any]]:
    """One row per model, reading and source token."""
    rows = []
    for name, result in found.items():
        for reading in READINGS:
            matrix = getattr(result, reading).tolist()
            for source, values in enumerate(matrix):
                row = {
                    "model": name,
                    "reading": reading,
                    "row_kl": result.row_kl[reading],
                    "control_row_kl": result.control_kl,
                    "branch": result.branch,
                    "from": source,
                    **{f"to_{to}": value for to, value in enumerate(values)},
                }
                rows.append(row)
    return rows


def _centred_probe(checkpoint: Checkpoint, task: MTDTask) -> float:
    """The row KL of the paper's probe after centring each query's scores.

    Attention ignores a constant per query, so that no prediction changes.
    """
    scores = token_scores(checkpoint.model).mean(0)
    centred = scores - scores.mean(1, keepdim=True)
    return row_kl(task.transition, centred.T.softmax(-1))


def _sentences(entries: Sequence[Entry], numbers: Numbers) -> tuple[str, ...]:
    sentences = []
    direct = [entry for entry in entries if numbers[entry.name]["branch"] == "direct"]
    for architecture, recipes, description in GROUPS:
        group = [entry for entry in direct if entry.architecture == architecture]
        names = [entry.name for entry in group if entry.recipe in recipes]
        if names:
            some = [numbers[name] for name in names]
            control = _range(column(some, "control"))
            sentences.append(
                f"Mean row KL of the {len(names)} {description} on the direct branch: "
                f"{_range(column(some, 'attention_softmax'))} with the paper's probe, "
                f"{_range(column(some, 'attention'))} with the gauge fixed by the stationary "
                f"marginal. The marginal alone, as every row, has {control}."
            )
    if SHOWN.name in numbers:
        shown = numbers[SHOWN.name]
        sentences.append(
            "The paper's probe depends on a constant per query that the model does not determine: "
            "subtracting each query's mean score, which changes no prediction, moves its row KL "
            f"from {shown['attention_softmax']:.3f} to {shown['attention_softmax_centred']:.3f} "
            "for m = 4, T = 64."
        )
    for name, found in numbers.items():
        if found["branch"] != "direct":
            sentences.append(
                f"In the {found['branch']} model {name}, the paper's probe has "
                f"{found['attention_softmax']:.3f} (the marginal alone {found['control']:.3f}), "
                f"and the gauge-fixed, branch-aware reading {found['attention']:.3f}."
            )
    return tuple(sentences)


def _range(values: Sequence[float]) -> str:
    if max(values) - min(values) < 0.0005:
        return f"{values[0]:.3f}"
    return f"{min(values):.3f} to {max(values):.3f} (median {median(values):.3f})"


def _draw(
    figure: Any, task: MTDTask, found: dict[str, TransitionRecovery], numbers: Numbers
) -> None:
    if not found:
        _draw_matrices(figure, task, None)
        return
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.7, 0.6 + 0.23 * len(found)))
    _draw_matrices(top, task, found.get(SHOWN.name))
    axis = bottom.subplots()
    names = list(found)
    rows: list[Row] = [numbers[name] for name in names]
    places = range(len(names))
    _draw_readings(axis, rows, places)
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axis.minorticks_off()
    axis.set_xlabel("mean row KL(π ‖ reading) (nats); lower is better")
    grid(axis)
    bottom.legend(loc="outside lower center", ncols=3)


def _draw_readings(axis: Any, rows: Sequence[Row], places: Sequence[int]) -> None:
    """Both readings of each model with a line between them, and the control."""
    fixed = column(rows, "attention")
    softmax = column(rows, "attention_softmax")
    axis.hlines(places, fixed, softmax, color=FAINT, linewidth=2, zorder=1)
    colour = style_of("model").colour
    for reading, label in READINGS.items():
        axis.scatter(
            column(rows, reading),
            places,
            marker="o",
            s=34,
            zorder=3,
            label=label,
            edgecolors=colour,
            facecolors=colour if reading == "attention" else "white",
        )
    axis.scatter(
        column(rows, "control"),
        places,
        marker="|",
        s=70,
        color=INK,
        zorder=2,
        label="marginal as every row (control)",
    )


def _draw_matrices(figure: Any, task: MTDTask, result: TransitionRecovery | None) -> None:
    panels = [("true π", task.transition)]
    if result is not None:
        for reading, label in READINGS.items():
            title = f"{label}\nrow KL {result.row_kl[reading]:.3f}"
            panels.append((title, getattr(result, reading)))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    largest = max(values.max().item() for _, values in panels)
    for axis, (title, values) in zip(axes, panels, strict=True):
        image = probability_map(axis, values.numpy(), largest)
        write_cells(axis, values, largest)
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(len(values)))
        axis.set_yticks(range(len(values)))
        axis.set_xlabel("to token")
    axes[0].set_ylabel("from token")
    figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01).set_label("probability")
    figure.suptitle(f"m = {SHOWN.order}, T = {SHOWN.length}", fontsize=10)
