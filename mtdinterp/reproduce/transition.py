"""The transition matrix in layer 1's scores: the paper's row softmax, and the gauge-fixed reading.
Figure 4 and 7."""

from collections.abc import Sequence
from typing import Any

from mtdinterp.metrics import row_kl
from mtdinterp.plotting import grid, probability_map, write_cells
from mtdinterp.readout import token_scores
from mtdinterp.reproduce.figure import Context, Reproduction, Row
from mtdinterp.reproduce.models import available, say_missing
from mtdinterp.style import FAINT, INK, style_of
from mtdinterp.task import MTDTask
from mtdinterp.training.zoo import ENTRIES, Entry, zoo_task
from probes.recover_transition import TransitionRecovery, recover_transition

SHOWN = Entry(4, 64)
"""The model whose matrices are drawn, as in the paper's main text."""
READINGS = {"attention_softmax": "paper's probe: row softmax of W_Aᵀ", "attention": "gauge fixed"}


def transition_matrices(context: Context, entries: Sequence[Entry] = ENTRIES) -> Reproduction:
    wanted = [
        entry
        for entry in entries
        if entry.layers == 3 and (entry.recipe == "fast" or context.models.stored)
    ]
    checkpoints, missing = available(context.models, wanted)
    found: dict[str, TransitionRecovery] = {}
    for name, checkpoint in checkpoints.items():
        found[name] = recover_transition(
            checkpoint.model, checkpoint.task, n_sequences=context.count(512), seed=context.seed
        )
    rows = [
        {
            "model": name,
            "reading": reading,
            "row_kl": result.row_kl[reading],
            "control_row_kl": result.control_kl,
            "branch": result.branch,
            "from": source,
            **{f"to_{to}": value for to, value in enumerate(values)},
        }
        for name, result in found.items()
        for reading in READINGS
        for source, values in enumerate(getattr(result, reading).tolist())
    ]
    numbers = {
        name: {
            **{reading: result.row_kl[reading] for reading in READINGS},
            "control": result.control_kl,
            "branch": result.branch,
        }
        for name, result in found.items()
    }
    if SHOWN.name in checkpoints:
        numbers[SHOWN.name]["attention_softmax_centred"] = _centred_probe(checkpoints[SHOWN.name])
    task = zoo_task(SHOWN.order)
    return Reproduction(
        name="transition",
        title="The transition matrix in layer 1",
        claim="The row softmax of W_Aᵀ in layer 1 of a trained disentangled transformer looks like "
        "the true transition "
        "matrix, with a small mean row KL, for every order and length (Section 6 and Figure 4, "
        "right bottom; "
        "Appendix E and Figure 7).",
        measured=(*_sentences(numbers), *say_missing(missing)),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw(figure, task, found, numbers),
        size=(8.6, 3.3 + 0.23 * len(found)),
    )


def _centred_probe(checkpoint: Any) -> float:
    """The paper's probe after every query's scores had their mean taken away, which no prediction
    can notice."""
    scores = token_scores(checkpoint.model).mean(0)
    return row_kl(checkpoint.task.transition, (scores - scores.mean(1, keepdim=True)).T.softmax(-1))


def _sentences(numbers: dict[str, Any]) -> tuple[str, ...]:
    def span(reading: str, names: Sequence[str]) -> str:
        values = sorted(numbers[name][reading] for name in names)
        if len(values) == 1:
            return f"{values[0]:.3f}"
        middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
        return f"{values[0]:.3f} to {values[-1]:.3f} (median {middle:.3f})"

    sentences = []
    groups = (
        ("disentangled", "fast", "disentangled by the fast recipe"),
        ("standard", "fast", "standard by the fast recipe, with the QK circuit for W_A"),
        ("disentangled", "paper", "disentangled by the paper's own recipe"),
    )
    for architecture, recipe, words in groups:
        names = [
            name
            for name, found in numbers.items()
            if name.startswith(architecture)
            and name.endswith("-paper") == (recipe == "paper")
            and found["branch"] == "direct"
        ]
        if names:
            sentences.append(
                f"Mean row KL over direct models, {len(names)} {words}: "
                f"{span('attention_softmax', names)} by the paper's probe, "
                f"{span('attention', names)} "
                "with the gauge fixed by the stationary marginal; knowing that marginal alone "
                "gives "
                f"{numbers[names[0]]['control']:.3f}."
            )
    if SHOWN.name in numbers:
        shown = numbers[SHOWN.name]
        sentences.append(
            "The probe depends on a choice that the model does not have: taking each query's mean "
            "score "
            f"away, which changes no prediction, moves it from {shown['attention_softmax']:.3f} to "
            f"{shown['attention_softmax_centred']:.3f} for m = 4, T = 64."
        )
    for name, found in numbers.items():
        if found["branch"] != "direct":
            sentences.append(
                f"In the {found['branch']} model {name} the probe has "
                f"{found['attention_softmax']:.3f} "
                f"(the marginal alone {found['control']:.3f}), and the gauge-fixed, branch-aware "
                "reading "
                f"{found['attention']:.3f}."
            )
    return tuple(sentences)


def _draw(
    figure: Any, task: MTDTask, found: dict[str, TransitionRecovery], numbers: dict[str, Any]
) -> None:
    top, bottom = figure.subfigures(2, 1, height_ratios=(2.7, 0.6 + 0.23 * len(found)))
    _draw_matrices(top, task, found.get(SHOWN.name))
    axis = bottom.subplots()
    names = list(found)
    rows: list[Row] = [numbers[name] for name in names]
    places = range(len(names))
    axis.hlines(
        places,
        [min(row["attention"], row["attention_softmax"]) for row in rows],
        [max(row["attention"], row["attention_softmax"]) for row in rows],
        color=FAINT,
        linewidth=2,
        zorder=1,
    )
    for reading, mark, filled in (("attention_softmax", "o", False), ("attention", "o", True)):
        axis.scatter(
            [row[reading] for row in rows],
            places,
            marker=mark,
            s=34,
            zorder=3,
            label=READINGS[reading],
            edgecolors=style_of("model").colour,
            facecolors=style_of("model").colour if filled else "white",
        )
    axis.scatter(
        [row["control"] for row in rows],
        places,
        marker="|",
        s=70,
        color=INK,
        zorder=2,
        label="every row the marginal (control)",
    )
    axis.set_yticks(places, names)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xticks(
        [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1], ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]
    )
    axis.minorticks_off()
    axis.set_xlabel("mean row KL(π ‖ reading) (nats); lower is better")
    grid(axis)
    bottom.legend(loc="outside lower center", ncols=3)


def _draw_matrices(figure: Any, task: MTDTask, result: TransitionRecovery | None) -> None:
    panels = [("true π", task.transition)]
    if result is not None:
        panels += [
            (f"{words}\nrow KL {result.row_kl[reading]:.3f}", getattr(result, reading))
            for reading, words in READINGS.items()
        ]
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
