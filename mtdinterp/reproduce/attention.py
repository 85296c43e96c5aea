"""Attention maps of trained models next to the construction's: the paper's Figure 4 (left) and
8."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mtdinterp.construction import one_step
from mtdinterp.models import LensTransformer
from mtdinterp.plotting import probability_map
from mtdinterp.readout import attention
from mtdinterp.reproduce.figure import Context, Reproduction
from mtdinterp.reproduce.methods import label_of
from mtdinterp.reproduce.models import available, say_missing
from mtdinterp.reproduce.scores import tuned_rate
from mtdinterp.training.zoo import Entry, zoo_task
from probes.compare_attention import AttentionComparison, compare_attention

LENGTH, LAYERS = 64, 3
LAYER_WORDS = ("layer 1: responsibilities", "layer 2: averaging", "layer 3: prediction")

Maps = dict[tuple[int, str], list[Tensor]]
"""By order and method, one map a layer."""


def attention_maps(context: Context, length: int = LENGTH) -> Reproduction:
    return _reproduction(
        context,
        "attention",
        "Attention of trained and constructed transformers, m = 4",
        [Entry(4, length), Entry(4, length, "standard")],
        "On a sequence of 64 tokens with m = 4, trained disentangled and standard transformers put "
        "high and low "
        "attention where the construction does, with the same band of m lags in layer 1, which "
        "shows that they compute "
        "the responsibilities (Section 6 and Figure 4, left).",
    )


def attention_grids(context: Context, length: int = LENGTH) -> Reproduction:
    return _reproduction(
        context,
        "attention-grids",
        "Attention of trained and constructed transformers, m = 3 and m = 5",
        [Entry(3, length), Entry(5, length)],
        "The same holds for disentangled transformers of the orders m = 3 and m = 5 (Appendix E "
        "and Figure 8).",
    )


def _reproduction(
    context: Context, name: str, title: str, entries: Sequence[Entry], claim: str
) -> Reproduction:
    checkpoints, missing = available(context.models, entries)
    maps: Maps = {}
    numbers: dict[str, Any] = {}
    sentences = []
    for order in dict.fromkeys(entry.order for entry in entries):
        task, length = zoo_task(order), entries[0].length
        tokens = context.data(task, length).tokens
        for entry in entries:
            if entry.order == order and entry.name in checkpoints:
                model = checkpoints[entry.name].model
                maps[order, _method(entry)] = _maps(model, tokens[:1])
                found = compare_attention(model, task, tokens[: context.count(256)])
                sentences.append(_sentence(entry, found))
                numbers[entry.name] = _numbers(found)
        built = one_step(task.transition, order, length, tuned_rate(task, length).beta)
        maps[order, "construction"] = _maps(built, tokens[:1])
    rows = [
        {
            "order": order,
            "method": method,
            "layer": layer + 1,
            "query": query,
            "key": key,
            "attention": values[query, key].item(),
        }
        for (order, method), layers in maps.items()
        for layer, values in enumerate(layers)
        for query in range(len(values))
        for key in range(query + 1)
    ]
    return Reproduction(
        name=name,
        title=title,
        claim=claim,
        numbers=numbers,
        table=rows,
        measured=(
            *sentences,
            "Layers 2 and 3 are trained at the last query alone, and the construction is exact "
            "there "
            "alone: their other rows are free. Distances are means over sequences to the "
            "construction with the "
            "model's own β; the maps show one sequence, and the construction with the tuned β.",
            *say_missing(missing),
        ),
        draw=lambda figure: _draw(figure, maps),
        size=(8.4, 2.25 * len(maps) + 0.6),
    )


def _method(entry: Entry) -> str:
    return "standard" if entry.architecture == "standard" else "model"


def _maps(model: LensTransformer, tokens: Tensor) -> list[Tensor]:
    patterns = attention(model, tokens, patterns=range(LAYERS), last_only=False).patterns
    return [patterns[layer][0].double().mean(0) for layer in range(LAYERS)]


def _numbers(found: AttentionComparison) -> dict[str, Any]:
    return {
        "beta": found.constants["beta"],
        "total_variation": [layer.distance for layer in found.layers],
        "total_variation_of_uniform": [layer.uniform_distance for layer in found.layers],
        "mass_on_lags": [found.layers[0].mass_on_lags, found.layers[-1].mass_on_lags],
        "correlation_with_responsibilities": found.layers[0].responsibility_correlation,
    }


def _sentence(entry: Entry, found: AttentionComparison) -> str:
    first, second, last = found.layers
    return (
        f"{label_of(_method(entry)).capitalize()}, m = {entry.order}: over the lags layer 1 "
        "correlates with the "
        f"responsibilities at {first.responsibility_correlation:.3f}, but only "
        f"{first.mass_on_lags:.0%} of its "
        f"attention is there (total variation to the construction {first.distance:.2f}; uniform "
        "attention "
        f"{first.uniform_distance:.2f}). At the last query layer 2 is at {second.distance:.2f} "
        "(uniform "
        f"{second.uniform_distance:.2f}) and layer 3, which holds the weights, at "
        f"{last.distance:.3f} (uniform "
        f"{last.uniform_distance:.2f})."
    )


def _draw(figure: Any, maps: Maps) -> None:
    axes = figure.subplots(len(maps), LAYERS, sharex=True, sharey=True, squeeze=False)
    orders = {order for order, _ in maps}
    for row, ((order, method), layers) in enumerate(maps.items()):
        for layer, values in enumerate(layers):
            image = probability_map(axes[row, layer], values.numpy(), root=True)
        words = f"m = {order}, {'construction' if method == 'construction' else 'trained'}"
        axes[row, 0].set_ylabel(f"{words if len(orders) > 1 else label_of(method)}\nquery position")
    for layer, words in enumerate(LAYER_WORDS):
        axes[0, layer].set_title(words)
        axes[-1, layer].set_xlabel("key position")
    last = len(layers[0]) - 1
    axes[0, 0].set_xticks(range(0, last + 1, 16))
    axes[0, 0].set_yticks(range(0, last + 1, 16))
    bar = figure.colorbar(
        image, ax=axes, fraction=0.03, pad=0.01, ticks=[0, 0.01, 0.05, 0.25, 0.5, 1]
    )
    bar.set_label("attention (colour by its square root)")
    bar.ax.set_yticklabels(["0", "0.01", "0.05", "0.25", "0.5", "1"])
