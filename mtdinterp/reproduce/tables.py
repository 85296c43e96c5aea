"""The paper's two tables: widths of the stream, and parameters of its experiments."""

from collections.abc import Iterable, Sequence
from typing import Any

from mtdinterp.construction import one_step
from mtdinterp.estimators import exact_posterior_mean, gibbs_posterior_mean
from mtdinterp.models import DisentangledTransformer
from mtdinterp.reproduce.figure import Context, Reproduction, Row, column
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.reproduce.scores import FIGURE_TOLERANCE, TUNING_BETAS, tuned_rate
from mtdinterp.style import FAINT, INK, style_of
from mtdinterp.training.recipes import PAPER, Recipe, fast
from mtdinterp.training.zoo import ENTRIES, VOCAB_SIZE, Entry, zoo_task

ORDERS = (3, 4, 5)
DRAWN = 4
"""The order whose stream is drawn."""
STAGES = ("token embeddings", "responsibilities", "averaging", "weighting")
PAPER_ADDED = ((0, 0), (1, 1), (2, 2), (4, 3))
"""Columns that each layer's attention adds according to the paper's Table 1: multiples of q and
of m."""
PAPER_WIDTHS = ((1, 0), (2, 1), (4, 3), (8, 6))
"""Columns of the stream after each layer according to the same table."""
PAPER_GRID_END = 0.1
"""The upper end of the grid for β in the paper's Table 2."""
NOT_IN_PAPER = "L3.lag"
"""The block that the paper's table leaves out."""
COLUMN_PLACES = {"component": 0.0, "parameter": 0.14, "paper": 0.4, "here": 0.69}
"""Where each column of the drawn table begins, as a share of its width."""
TARGETS = {"sampled": "one-hot of the next token", "expected": "true next distribution"}


@register_figure(
    "dimensions", summary="widths of the residual stream (the paper's Table 1)", rank=7
)
def dimensions(context: Context, orders: Sequence[int] = ORDERS) -> Reproduction:
    """The paper's Table 1."""
    rows: list[dict[str, Any]] = []
    numbers: dict[str, list[int]] = {}
    widths = []
    for order in orders:
        some = _width_rows(order)
        rows += some
        numbers[f"m{order}"] = column(some, "stream_here")
        widths.append(f"m = {order}: {_listed(column(some, 'stream_here'))}")
    wrong = [row for row in rows if row["stream_paper"] != row["stream_here"]]
    wrong_layers = _listed(sorted(set(column(wrong, "layer"))))
    return Reproduction(
        name="dimensions",
        title="Widths of the residual stream",
        claim="With d_R = m, the stream of the three-layer construction has q, 2q + m, 4q + 3m and "
        "8q + 6m columns, and the output matrix reads the last (Appendix A.1 and Table 1).",
        measured=(
            f"The parameters of the constructed models have shapes for {'; '.join(widths)} columns "
            f"(q = {VOCAB_SIZE}).",
            f"{len(rows) - len(wrong)} of {len(rows)} widths are the paper's. After layer "
            f"{wrong_layers} there are 8q + 7m columns instead: this is what the paper's own "
            "recurrence, d_l = 2·d_(l-1) + d_R, gives. Its table leaves out the m zero columns of "
            "the last value table, which its text keeps. Nothing reads them.",
        ),
        numbers=numbers,
        table=rows,
        draw=lambda figure: _draw_stream(figure, one_step_model(DRAWN)),
        size=(9.0, 4.2),
    )


def one_step_model(order: int) -> DisentangledTransformer:
    """A one-step construction; no width depends on its length and β."""
    return one_step(zoo_task(order).transition, order, length=4 * order, beta=1.0)


def stream_widths(model: DisentangledTransformer) -> list[int]:
    """The columns of the stream before each layer and after the last, by the parameters' shapes."""
    read_by_layers = [attention.W_A.shape[-1] for attention in model.attention]
    return [*read_by_layers, model.W_U.shape[0]]


def _width_rows(order: int) -> list[dict[str, Any]]:
    """One row per layer; layer 0 is the embedding."""
    widths = stream_widths(one_step_model(order))
    rows = []
    previous = widths[0]
    for layer, (stage, width) in enumerate(zip(STAGES, widths, strict=True)):
        added_q, added_m = PAPER_ADDED[layer]
        wide_q, wide_m = PAPER_WIDTHS[layer]
        row = {
            "order": order,
            "layer": layer,
            "stage": stage,
            "added_paper": added_q * VOCAB_SIZE + added_m * order,
            "added_here": width - previous,
            "stream_paper": wide_q * VOCAB_SIZE + wide_m * order,
            "stream_here": width,
        }
        rows.append(row)
        previous = width
    return rows


def _draw_stream(figure: Any, model: DisentangledTransformer) -> None:
    """Each layer's stream as a row of its named blocks."""
    axis = figure.subplots()
    widths = stream_widths(model)
    for layer, width in enumerate(widths):
        for name, columns in model.stream.items():
            if columns.stop <= width:
                _draw_block(axis, layer, name, columns)
        axis.text(width + 0.6, layer, f"{width}", va="center", fontweight="bold")
    labels = [f"{layer}: {stage}" for layer, stage in enumerate(STAGES)]
    axis.set_yticks(range(len(widths)), labels)
    axis.invert_yaxis()
    axis.set_ylabel("after layer")
    axis.set_xlabel(
        f"column of the stream (q = {VOCAB_SIZE}, m = {DRAWN}); hatched: not in the paper's table"
    )
    axis.set_xlim(0, widths[-1] + 4)
    axis.tick_params(axis="y", length=0)


def _draw_block(axis: Any, layer: int, name: str, columns: slice) -> None:
    """One block: token blocks are grey, lag blocks coloured."""
    fill, edge, ink, hatch = FAINT, "white", INK, None
    if name == NOT_IN_PAPER:
        fill, edge, hatch = "white", FAINT, "///"
    elif name.endswith("lag"):
        fill, ink = style_of("construction").colour, "white"
    axis.barh(
        layer,
        columns.stop - columns.start,
        left=columns.start,
        height=0.86,
        linewidth=1,
        color=fill,
        edgecolor=edge,
        hatch=hatch,
    )
    axis.text(
        (columns.start + columns.stop) / 2,
        layer,
        name,
        rotation=90,
        ha="center",
        va="center",
        fontsize=6.5,
        color=ink,
    )


@register_figure(
    "parameters", summary="experimental parameters: the paper's and ours (Table 2)", rank=8
)
def parameters(context: Context) -> Reproduction:
    """The paper's Table 2."""
    tuned = {order: tuned_rate(zoo_task(order), 64) for order in ORDERS}
    betas = ", ".join(found.beta_text() for found in tuned.values())
    rates = ", ".join(f"{found.learning_rate:.3f}" for found in tuned.values())
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
            "with faster recipes and for fewer steps; "
            "`mtdinterp train --recipe paper` is the paper's recipe.",
            f"Tuned β at T = 64 is {betas} for m = {_listed(tuned)}; the listed grid for β ends at "
            f"{PAPER_GRID_END:g}. β is η·m·(T-m); η itself, for which the paper lists the same "
            f"grid, is {rates}.",
            f"The listed Gibbs sampler (200 burn-in, 2000 samples) is off by {off['mean']:.4f} per "
            f"weight on average and by {off['largest']:.3f} at most, compared with the exact "
            f"posterior mean on {off['sequences']} sequences (m = 4, T = 64).",
        ),
        numbers={
            "beta": {f"m{order}": found.beta for order, found in tuned.items()},
            "beta_interval": {f"m{order}": list(found.interval) for order, found in tuned.items()},
            "gibbs_error": off,
        },
        table=rows,
        draw=lambda figure: _draw_table(figure, rows),
        size=(9.4, 0.5 + 0.24 * len(rows)),
    )


def _gibbs_error(context: Context) -> dict[str, Any]:
    """How far the paper's Gibbs sampler is from the exact posterior mean."""
    task = zoo_task(4)
    tokens = context.data(task, 64).tokens[: context.count(64)]
    sampled = gibbs_posterior_mean(task.transition, tokens, task.order, seed=context.seed)
    exact = exact_posterior_mean(task.transition, tokens, task.order)
    difference = (sampled - exact).abs()
    return {
        "mean": difference.mean().item(),
        "largest": difference.max().item(),
        "sequences": len(tokens),
    }


def _parameter_rows() -> list[dict[str, str]]:
    """Component, parameter, the paper's value and ours, read from the code where possible."""
    trained = [entry for entry in ENTRIES if entry.recipe != "paper"]
    orders = sorted({entry.order for entry in trained})
    lengths = [entry.length for entry in trained]
    layers = sorted({entry.layers for entry in trained})
    task_seeds = sorted({entry.task_seed for entry in trained})
    prior = f"Dirichlet({zoo_task(3).concentration:g})"
    grid = f"β {TUNING_BETAS[0]:g} to {TUNING_BETAS[-1]:g}, then golden section"
    rows = [
        _row("data", "order m", "3, 4, 5", _listed(orders)),
        _row("data", "alphabet q", "5", str(VOCAB_SIZE)),
        _row(
            "data", "length T of trained models", "64 to 1984", f"{min(lengths)} to {max(lengths)}"
        ),
        _row("data", "prior of the weights", "Dirichlet(1)", prior),
        _row("data", "rows of π", "Dirichlet(1)", f"Dirichlet(1), seeds {_listed(task_seeds)}"),
        _row("mirror descent", "search for the rate", "η 1e-05 to 0.1, 1000 points", grid),
        _row("mirror descent", "tuned against", "truth (text), Bayes (appendix)", "truth"),
        _row("construction", "δ", "100", "100"),
        _row(
            "Bayes",
            "posterior mean",
            "Gibbs, 200 + 2000 samples",
            f"quadrature, weights to {FIGURE_TOLERANCE:g}",
        ),
        _row("trained", "layers", "3 and 5", " and ".join(map(str, layers))),
        _row("trained", "heads", "1", "1"),
        _row("disentangled", "value table's width", "m", "m"),
        _row("standard", "embedding width", "32", "32"),
        _row("trained", "loss", "MSE, last token", "MSE, last token"),
        _row("trained", "targets", TARGETS[PAPER.targets], TARGETS[fast().targets]),
    ]
    rows += _recipe_rows("disentangled", fast())
    rows += _recipe_rows("five layers", fast(n_layers=5))
    rows += _recipe_rows("standard", fast("standard"))
    rows += _growing_rows(entry for entry in trained if entry.grown_from is not None)
    return rows


def _row(component: str, parameter: str, paper: str, here: str) -> dict[str, str]:
    return {"component": component, "parameter": parameter, "paper": paper, "here": here}


def _recipe_rows(component: str, recipe: Recipe) -> list[dict[str, str]]:
    """How one kind of model is trained."""
    later = "the same"
    if recipe.later_rate != 1:
        later = f"falls to {recipe.later_rate:g} of it"
    first_decay, second_decay = recipe.adam_betas
    return [
        _row(component, "peak Adam learning rate", _rate(PAPER), _rate(recipe)),
        _row(component, "rate after layer 1", "the same", later),
        _row(component, "Adam decay rates", "not stated", f"{first_decay:g}, {second_decay:g}"),
        _row(component, "initialisation", "not stated", recipe.initialisation),
        _row(component, "batch, steps", _batch_and_steps(PAPER), _batch_and_steps(recipe)),
    ]


def _growing_rows(entries: Iterable[Entry]) -> list[dict[str, str]]:
    """How models are trained that start from the weights of a shorter one."""
    recipes = [entry.full_recipe for entry in entries]
    batches = sorted({recipe.batch_size for recipe in recipes})
    steps = sorted({recipe.steps for recipe in recipes})
    trained = f"{batches[0]} to {batches[-1]}, {steps[0]:,} to {steps[-1]:,}"
    return [
        _row("grown models", "initialisation", "not stated", "weights of a shorter model"),
        _row("grown models", "batch, steps", _batch_and_steps(PAPER), trained),
    ]


def _rate(recipe: Recipe) -> str:
    warmup = f", warm-up {recipe.warmup}" if recipe.warmup else ""
    return f"{recipe.learning_rate:g}, {recipe.schedule}{warmup}"


def _batch_and_steps(recipe: Recipe) -> str:
    return f"{recipe.batch_size}, {recipe.steps:,}"


def _listed(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


def _draw_table(figure: Any, rows: Sequence[Row]) -> None:
    """The table as text; our values are highlighted where they differ from the paper's."""
    axis = figure.subplots()
    axis.set_axis_off()
    highlight = style_of("model").colour
    for name, place in COLUMN_PLACES.items():
        axis.text(place, 0, name, fontweight="bold", va="center")
        for line, row in enumerate(rows, start=1):
            differs = name == "here" and row["here"] != row["paper"]
            axis.text(
                place,
                line,
                row[name],
                va="center",
                color=highlight if differs else INK,
                fontweight="bold" if differs else "normal",
            )
    rules = [line + 0.5 for line in range(len(rows))]
    axis.hlines(rules, 0, 1, color=FAINT, linewidth=0.6)
    axis.set(xlim=(0, 1), ylim=(len(rows) + 0.6, -0.6))
