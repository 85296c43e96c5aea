"""Attention of trained models next to the construction's: the paper's Figures 4 (left) and 8."""

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float64, Int64
from torch import Tensor

from mtdinterp.construction import one_step
from mtdinterp.models import LensTransformer
from mtdinterp.plotting import probability_map
from mtdinterp.readings import attention_of
from mtdinterp.reproduce.figure import Context, Reproduction
from mtdinterp.reproduce.methods import label_of, method_of
from mtdinterp.reproduce.models import available, say_missing
from mtdinterp.reproduce.registry import register_figure
from mtdinterp.reproduce.scores import tuned_rate
from mtdinterp.training.zoo import Entry, zoo_task
from probes.compare_attention import AttentionComparison, compare_attention

LENGTH = 64
N_LAYERS = 3
LAYER_LABELS = ("layer 1: responsibilities", "layer 2: averaging", "layer 3: prediction")
SCALE = {0.0: "0", 0.01: "0.01", 0.05: "0.05", 0.25: "0.25", 0.5: "0.5", 1.0: "1"}
"""Ticks of the colour bar."""
CAVEAT = (
    "Layers 2 and 3 are trained at the last query only, and the construction is exact there only, "
    "so their other rows are unconstrained. Distances are means over sequences to the construction "
    "with the model's own β. The maps show one sequence, and the construction with the tuned β."
)

Maps = dict[tuple[int, str], list[Float64[Tensor, "query key"]]]
"""One map per layer, by order and method."""


@register_figure(
    "attention",
    summary="attention of trained models and of the construction, m = 4",
    rank=1,
)
def attention_maps(context: Context, length: int = LENGTH) -> Reproduction:
    """The paper's Figure 4 (left)."""
    return _reproduction(
        context,
        name="attention",
        title="Attention of trained and constructed transformers, m = 4",
        entries=[Entry(4, length), Entry(4, length, "standard")],
        claim="On a sequence of 64 tokens with m = 4, trained disentangled and standard "
        "transformers have high and low attention where the construction has, with the same band "
        "of m lags in layer 1. This shows that they compute the responsibilities (Section 6 and "
        "Figure 4, left).",
    )


@register_figure("attention-grids", summary="attention maps for m = 3 and m = 5", rank=6)
def attention_grids(context: Context, length: int = LENGTH) -> Reproduction:
    """The paper's Figure 8."""
    return _reproduction(
        context,
        name="attention-grids",
        title="Attention of trained and constructed transformers, m = 3 and m = 5",
        entries=[Entry(3, length), Entry(5, length)],
        claim="The same holds for disentangled transformers with m = 3 and m = 5 (Appendix E and "
        "Figure 8).",
    )


def _reproduction(
    context: Context, name: str, title: str, entries: Sequence[Entry], claim: str
) -> Reproduction:
    checkpoints, missing = available(context.models, entries)
    maps: Maps = {}
    numbers: dict[str, Any] = {}
    sentences = []
    length = entries[0].length
    orders = dict.fromkeys(entry.order for entry in entries)
    for order in orders:
        task = zoo_task(order)
        tokens = context.data(task, length).tokens
        shown = tokens[:1]
        for entry in entries:
            if entry.order != order or entry.name not in checkpoints:
                continue
            model = checkpoints[entry.name].model
            maps[order, method_of(entry.architecture)] = _maps(model, shown)
            found = compare_attention(model, task, tokens[: context.count(256)])
            sentences.append(_sentence(entry, found))
            numbers[entry.name] = _numbers(found)
        built = one_step(task.transition, order, length, tuned_rate(task, length).beta)
        maps[order, "construction"] = _maps(built, shown)
    return Reproduction(
        name=name,
        title=title,
        claim=claim,
        numbers=numbers,
        table=_rows(maps),
        measured=(*sentences, CAVEAT, *say_missing(missing, context.models)),
        draw=lambda figure: _draw(figure, maps),
        size=(8.4, 2.25 * len(maps) + 0.6),
    )


def _maps(
    model: LensTransformer, tokens: Int64[Tensor, "batch pos"]
) -> list[Float64[Tensor, "query key"]]:
    """The attention of each layer on the first sequence, averaged over heads."""
    found = attention_of(model, tokens, patterns=range(N_LAYERS), last_only=False)
    return [found.patterns[layer][0].double().mean(0) for layer in range(N_LAYERS)]


def _rows(maps: Maps) -> list[dict[str, Any]]:
    """One row per pair of positions."""
    rows = []
    for (order, method), layers in maps.items():
        for layer, values in enumerate(layers, start=1):
            for query in range(len(values)):
                for key in range(query + 1):
                    row = {
                        "order": order,
                        "method": method,
                        "layer": layer,
                        "query": query,
                        "key": key,
                        "attention": values[query, key].item(),
                    }
                    rows.append(row)
    return rows


def _numbers(found: AttentionComparison) -> dict[str, Any]:
    first, *_, last = found.layers
    return {
        "beta": found.constants["beta"],
        "total_variation": [layer.distance for layer in found.layers],
        "total_variation_of_uniform": [layer.uniform_distance for layer in found.layers],
        "mass_on_lags": [first.mass_on_lags, last.mass_on_lags],
        "correlation_with_responsibilities": first.responsibility_correlation,
    }


def _sentence(entry: Entry, found: AttentionComparison) -> str:
    first, second, last = found.layers
    label = label_of(method_of(entry.architecture)).capitalize()
    return (
        f"{label}, m = {entry.order}: over the lags, the attention "
        f"of layer 1 correlates with the responsibilities at "
        f"{first.responsibility_correlation:.3f}, but only {first.mass_on_lags:.0%} of it is on "
        f"the lags (total variation to the construction {first.distance:.2f}; uniform attention "
        f"{first.uniform_distance:.2f}). At the last query, the total variation is "
        f"{second.distance:.2f} in layer 2 (uniform {second.uniform_distance:.2f}) and "
        f"{last.distance:.3f} in layer 3, which holds the weights (uniform "
        f"{last.uniform_distance:.2f})."
    )


def _draw(figure: Any, maps: Maps) -> None:
    axes = figure.subplots(len(maps), N_LAYERS, sharex=True, sharey=True, squeeze=False)
    several_orders = len({order for order, _ in maps}) > 1
    for row, ((order, method), layers) in enumerate(maps.items()):
        for layer, values in enumerate(layers):
            image = probability_map(axes[row, layer], values.numpy(), root=True)
        label = label_of(method)
        if several_orders:
            kind = "construction" if method == "construction" else "trained"
            label = f"m = {order}, {kind}"
        axes[row, 0].set_ylabel(f"{label}\nquery position")
    for layer, title in enumerate(LAYER_LABELS):
        axes[0, layer].set_title(title)
        axes[-1, layer].set_xlabel("key position")
    ticks = range(0, len(layers[0]), 16)
    axes[0, 0].set_xticks(ticks)
    axes[0, 0].set_yticks(ticks)
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, ticks=list(SCALE))
    bar.set_label("attention (colour by its square root)")
    bar.ax.set_yticklabels(list(SCALE.values()))
