"""A scene and a sweep as documents: for notebooks, and as the report of a view."""

from collections.abc import Mapping, Sequence

import torch

from mtdinterp import __version__
from mtdinterp.app.scene import Scene
from mtdinterp.app.views import METHODS, View, maps, view
from mtdinterp.app.words import beside
from mtdinterp.interventions import SweepResult
from mtdinterp.pages.blocks import Block, Document, Groups, Map, Maps, Section, Series, Table, Text

LOOK = {"after": "model"}
"""The edited model has the colour of models; what it was before stands grey beside it."""


def view_document(scene: Scene, code: str = "") -> Document:
    """What is looked at, the numbers, the maps, and the code that gives them again."""
    found, names = view(scene), {**METHODS, "construction": beside(scene)}
    state = scene.state
    edits = tuple(entry["text"] + ("" if entry["on"] else " (off)") for entry in found.edits)
    lags = (*(f"lag {lag + 1}" for lag in range(scene.task.order)), "other")
    tokens = tuple(map(str, range(scene.task.vocab_size)))
    sections = [
        Section(
            "The sequence",
            (Text((_about(scene),), "soft"), Text((" ".join(map(str, state.tokens)),), "code")),
        ),
        Section("Edits", (Text(edits, "list"),)) if edits else None,
        Section(
            "In-context weights and predictions",
            (
                _bars("In-context weights", lags, found.weights, names),
                _bars("Prediction of the next token", tokens, found.predictions, names),
                *_scores(found, names),
            ),
        ),
        Section("Attention", _attention(scene)),
        Section(f"Stream at position {state.position % scene.length}", (_stream(found),)),
        Section(
            "As Python",
            (Text(tuple(code.splitlines()), "code"), Text((f"mtdinterp {__version__}",), "soft")),
        )
        if code
        else None,
    ]
    return Document(
        f"{state.model.name}: a view", tuple(section for section in sections if section is not None)
    )


def _about(scene: Scene) -> str:
    model = scene.state.model
    role = (
        "the construction for its task"
        if model.role == "construction"
        else scene.model.config.architecture
    )
    return (
        f"{role}, {len(scene.model.blocks)} layers, m = {scene.task.order}, T = {scene.length}; "
        f"β = {scene.beta:.4g}, δ = {model.delta:g}"
    )


def _bars(
    title: str,
    categories: tuple[str, ...],
    values: Mapping[str, Sequence[float]],
    names: Mapping[str, str],
) -> Groups:
    return Groups(
        title,
        categories,
        tuple(
            Series(LOOK.get(method, method), names[method], tuple(found))
            for method, found in values.items()
        ),
    )


def _scores(found: View, names: Mapping[str, str]) -> tuple[Block, ...]:
    rows = tuple(
        (names[name], f"{value:.5f}") for name, value in found.kl.items() if name != found.judge
    )
    return (
        Table(("method", f"KL({METHODS[found.judge]} ‖ ·)"), rows),
        Text((f"KL(before ‖ after) = {found.change:.5f}",), "soft"),
    )


def _attention(scene: Scene) -> tuple[Block, ...]:
    columns = {"before": "before", "after": "after", "beside": beside(scene)}
    if scene.source is not None:
        columns["source"] = "source sequence"
    found = {which: maps(scene, which) for which in columns}
    largest = max(values.max().item() for values in found.values())
    layers = []
    for layer in range(len(scene.model.blocks)):
        panels = tuple(
            Map(f"{words}, attention of layer {layer + 1}", found[which][layer])
            for which, words in columns.items()
        )
        layers.append(Maps(f"Layer {layer + 1}", panels, largest, "query", "key"))
    return Text(
        ("All maps have one scale, coloured by the square root of the attention.",), "soft"
    ), *layers


def _stream(found: View) -> Table:
    return Table(
        ("block", "before", "after"),
        tuple(
            (
                block["name"],
                *(" ".join(f"{value:.2f}" for value in block[run]) for run in ("before", "after")),
            )
            for block in found.blocks
        ),
    )


def sweep_document(result: SweepResult) -> Document:
    """A sweep: how far patching each place moves the metric, and the places that move it most."""
    layers = [result.effects(layer) for layer in range(len(result.values))]
    panels = tuple(
        Map(f"layer {number}", torch.stack([*effects.values()]).abs(), tuple(effects))
        for number, effects in enumerate(layers, 1)
        if effects
    )
    strongest = tuple(
        (
            str(layer + 1),
            str(position),
            result.parts[part],
            f"{result.values[layer, position, part].item():.5f}",
        )
        for layer, position, part in result.strongest(5)
    )
    return Document(
        "Patch sweep",
        (
            Section(
                "What moves the metric",
                (
                    Text((result.summary(),)),
                    Maps(
                        "How far the metric moves",
                        panels,
                        max(panel.values.nan_to_num().max().item() for panel in panels),
                        "part",
                        "position",
                    ),
                    Table(("layer", "position", "part", "metric"), strongest),
                ),
            ),
        ),
    )
