"""The paper's two tables: widths of the stream, and the parameters of its experiments, next to what
is here."""

from collections.abc import Sequence
from typing import Any

from mtdinterp.construction import one_step
from mtdinterp.estimators import exact_posterior_mean, gibbs_posterior_mean
from mtdinterp.models import LensTransformer
from mtdinterp.reproduce.figure import Context, Reproduction, Row
from mtdinterp.reproduce.scores import FIGURE_TOLERANCE, TUNING_BETAS, tuned_rate
from mtdinterp.style import FAINT, INK, LOOKS
from mtdinterp.training.recipes import PAPER, Recipe, fast
from mtdinterp.training.zoo import ENTRIES, TASK_SEED, VOCAB_SIZE, zoo_task

ORDERS, DRAWN = (3, 4, 5), 4
STAGES = ("token embeddings", "responsibilities", "averaging", "weighting")
PAPER_ADDED = ((0, 0), (1, 1), (2, 2), (4, 3))
"""What each layer's attention writes according to the paper's Table 1: so many times q, so many
times m."""
PAPER_WIDTHS = ((1, 0), (2, 1), (4, 3), (8, 6))
"""The stream after each layer according to it."""
PAPER_GRID_END = 0.1


def dimensions(context: Context, orders: Sequence[int] = ORDERS) -> Reproduction:
    rows = [row for order in orders for row in _width_rows(order)]
    wrong = [row for row in rows if row["stream_paper"] != row["stream_here"]]
    numbers = {
        f"m{order}": [row["stream_here"] for row in rows if row["order"] == order]
        for order in orders
    }
    return Reproduction(
        name="dimensions",
        title="Widths of the residual stream",
        claim="With d_R = m the stream of the three-layer construction has q, 2q + m, 4q + 3m and "
        "8q + 6m columns, and "
        "the output matrix reads the last (Appendix A.1 and Table 1).",
        measured=(
            "By the shapes of the constructed models' parameters, "
            + "; ".join(
                f"m = {order}: {', '.join(map(str, numbers[f'm{order}']))}" for order in orders
            )
            + f" columns (q = {VOCAB_SIZE}).",
            f"{len(rows) - len(wrong)} of {len(rows)} widths are the paper's. After layer "
            f"{', '.join(sorted({str(row['layer']) for row in wrong}))} there are 8q + 7m columns "
            "instead: the "
            "paper's own recurrence, d_l = 2·d_(l-1) + d_R, gives that, and its table leaves out "
            "the m zero "
            "columns of the last value table, which its text keeps. Nothing reads them.",
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw_stream(figure, one_step_model(DRAWN)),
        size=(9.0, 4.2),
    )


def one_step_model(order: int) -> LensTransformer:
    """Its length and β decide no width."""
    return one_step(zoo_task(order).transition, order, length=4 * order, beta=1.0)


def _width_rows(order: int) -> list[dict[str, Any]]:
    model = one_step_model(order)
    widths = [block.reads.stop for block in model.layers] + [model.W_U.shape[0]]
    rows = []
    for layer, (stage, width) in enumerate(zip(STAGES, widths, strict=True)):
        (added_q, added_m), (wide_q, wide_m) = PAPER_ADDED[layer], PAPER_WIDTHS[layer]
        rows.append(
            {
                "order": order,
                "layer": layer,
                "stage": stage,
                "added_paper": added_q * VOCAB_SIZE + added_m * order,
                "added_here": width - widths[layer - 1] if layer else 0,
                "stream_paper": wide_q * VOCAB_SIZE + wide_m * order,
                "stream_here": width,
            }
        )
    return rows


def _draw_stream(figure: Any, model: LensTransformer) -> None:
    """Each layer's stream as a row of its named blocks."""
    axis = figure.subplots()
    purple = LOOKS["construction"].colour
    widths = [block.reads.stop for block in model.layers] + [model.stream.width]
    for layer, width in enumerate(widths):
        for name, part in model.stream.items():
            if part.stop <= width:
                # The token blocks are copies of tokens, the others hold weights over lags.
                lag, left_out = name.endswith("lag"), name == "L3.lag"
                axis.barh(
                    layer,
                    part.stop - part.start,
                    left=part.start,
                    height=0.86,
                    linewidth=1,
                    color="white" if left_out else purple if lag else FAINT,
                    edgecolor=FAINT if left_out else "white",
                    hatch="///" if left_out else None,
                )
                axis.text(
                    (part.start + part.stop) / 2,
                    layer,
                    name,
                    rotation=90,
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if lag and not left_out else INK,
                )
        axis.text(width + 0.6, layer, f"{width}", va="center", fontweight="bold")
    axis.set_yticks(range(len(widths)), [f"{layer}: {stage}" for layer, stage in enumerate(STAGES)])
    axis.invert_yaxis()
    axis.set_ylabel("after layer")
    axis.set_xlabel(
        f"column of the stream (q = {VOCAB_SIZE}, m = {DRAWN}); hatched: not in the paper's table"
    )
    axis.set_xlim(0, widths[-1] + 4)
    axis.tick_params(axis="y", length=0)


def parameters(context: Context) -> Reproduction:
    tuned = {order: tuned_rate(zoo_task(order), 64) for order in ORDERS}
    off = _gibbs_error(context)
    rows = _parameter_rows()
    different = [row for row in rows if row["paper"] != row["here"]]
    return Reproduction(
        name="parameters",
        title="Experimental parameters",
        claim="Alphabet, orders, prior, widths, training and tuning as listed in Appendix B.2 and "
        "Table 2.",
        measured=(
            f"{len(rows) - len(different)} of {len(rows)} entries are the same. Models are trained "
            "by a faster "
            "recipe, shorter sequences and fewer steps; `mtdinterp train --recipe paper` is the "
            "paper's.",
            "Tuned β at T = 64 is "
            + ", ".join(f"{found.beta:.1f}" for found in tuned.values())
            + f" for m = {', '.join(map(str, tuned))}; the listed grid for β ends at "
            f"{PAPER_GRID_END:g}. β is "
            "η·m·(T-m); η itself, for which the same grid is listed, is "
            + ", ".join(f"{found.learning_rate:.3f}" for found in tuned.values())
            + ".",
            f"The listed Gibbs sampler (200 burn-in, 2000 samples) is off by {off['mean']:.4f} in "
            "a weight on "
            f"average and {off['largest']:.3f} at most against the exact posterior mean, over "
            f"{off['sequences']} sequences (m = 4, T = 64).",
        ),
        numbers={
            "beta": {f"m{order}": found.beta for order, found in tuned.items()},
            "gibbs_error": off,
        },
        table=rows,
        draw=lambda figure: _draw_table(figure, rows),
        size=(9.4, 0.5 + 0.24 * len(rows)),
    )


def _gibbs_error(context: Context) -> dict[str, Any]:
    task = zoo_task(4)
    tokens = context.data(task, 64).tokens[: context.count(64)]
    problem = (task.transition, tokens, task.order)
    difference = (
        gibbs_posterior_mean(*problem, seed=context.seed) - exact_posterior_mean(*problem)
    ).abs()
    return {
        "mean": difference.mean().item(),
        "largest": difference.max().item(),
        "sequences": len(tokens),
    }


def _parameter_rows() -> list[dict[str, str]]:
    """Component, parameter, the paper's value and this one; what is read from the code cannot go
    stale."""
    trained = [entry for entry in ENTRIES if entry.recipe == "fast"]
    orders = ", ".join(map(str, sorted({entry.order for entry in trained})))
    lengths = ", ".join(map(str, sorted({entry.length for entry in trained})))
    rows = [
        ("data", "order m", "3, 4, 5", orders),
        ("data", "alphabet q", "5", str(VOCAB_SIZE)),
        ("data", "length T of trained models", "64 to 1984", lengths),
        (
            "data",
            "prior of the weights",
            "Dirichlet(1)",
            f"Dirichlet({zoo_task(3).concentration:g})",
        ),
        ("data", "rows of π", "Dirichlet(1)", f"Dirichlet(1), seed {TASK_SEED}"),
        (
            "mirror descent",
            "search for the rate",
            "η 1e-05 to 0.1, 1000 points",
            f"β {TUNING_BETAS[0]:g} to {TUNING_BETAS[-1]:g}, then golden section",
        ),
        ("mirror descent", "tuned against", "truth (text), Bayes (appendix)", "truth"),
        ("construction", "δ", "100", "100"),
        (
            "Bayes",
            "posterior mean",
            "Gibbs, 200 + 2000 samples",
            f"quadrature, weights to {FIGURE_TOLERANCE:g}",
        ),
        (
            "trained",
            "layers",
            "3 and 5",
            " and ".join(map(str, sorted({entry.layers for entry in trained}))),
        ),
        ("trained", "heads", "1", "1"),
        ("disentangled", "value table's width", "m", "m"),
        ("standard", "embedding width", "32", "32"),
        ("trained", "loss", "MSE, last token", "MSE, last token"),
        ("trained", "targets", _targets(PAPER), _targets(fast())),
    ]
    recipes = {
        "disentangled": fast(),
        "five layers": fast(n_layers=5),
        "standard": fast("standard"),
    }
    for component, recipe in recipes.items():
        later = f"falls to {recipe.later_rate:g} of it" if recipe.later_rate != 1 else "the same"
        rows += [
            (component, "Adam's rate", _rate(PAPER), _rate(recipe)),
            (component, "rate after layer 1", "the same", later),
            (component, "Adam's decays", "not said", "{:g}, {:g}".format(*recipe.adam_betas)),
            (component, "start", "not said", recipe.initialisation),
            (
                component,
                "batch, steps",
                f"{PAPER.batch_size}, {PAPER.steps:,}",
                f"{recipe.batch_size}, {recipe.steps:,}",
            ),
        ]
    return [
        dict(zip(("component", "parameter", "paper", "here"), row, strict=True)) for row in rows
    ]


def _rate(recipe: Recipe) -> str:
    warmup = f", warm-up {recipe.warmup}" if recipe.warmup else ""
    return f"{recipe.learning_rate:g}, {recipe.schedule}{warmup}"


def _targets(recipe: Recipe) -> str:
    return {"sampled": "one-hot of the next token", "expected": "true next distribution"}[
        recipe.targets
    ]


def _draw_table(figure: Any, rows: Sequence[Row]) -> None:
    axis = figure.subplots()
    axis.set_axis_off()
    places = (0.0, 0.14, 0.4, 0.69)
    for place, column in zip(places, rows[0], strict=True):
        axis.text(place, 0, column, fontweight="bold", va="center")
        for line, row in enumerate(rows, start=1):
            differs = column == "here" and row["here"] != row["paper"]
            axis.text(
                place,
                line,
                row[column],
                va="center",
                color=LOOKS["model"].colour if differs else INK,
                fontweight="bold" if differs else "normal",
            )
    axis.hlines([line + 0.5 for line in range(len(rows))], 0, 1, color=FAINT, linewidth=0.6)
    axis.set(xlim=(0, 1), ylim=(len(rows) + 0.6, -0.6))
