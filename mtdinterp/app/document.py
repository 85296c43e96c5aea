"""Views and sweeps as documents, for notebooks and for the report of a view."""

from collections.abc import Mapping, Sequence

import torch

from mtdinterp import __version__
from mtdinterp.app.scene import Scene
from mtdinterp.app.views import View, maps, view
from mtdinterp.app.words import reference_name
from mtdinterp.formatting import counted
from mtdinterp.interventions import SweepResult
from mtdinterp.pages.blocks import Block, Document, Groups, Map, Maps, Section, Series, Table, Text

LOOK = {"after": "model"}
"""The edited model has the colour of models; the unedited run has its own, grey."""
STRONGEST = 5
"""The number of places that the table of a sweep lists."""


def view_document(scene: Scene, code: str = "") -> Document:
    """A view as a document: the sequence, edits, numbers and maps, and code that recomputes them.

    Args:
        scene: the scene to show.
        code: Python code for the last section; without it the section is left out.

    Returns:
        The document.
    """
    found = view(scene)
    names = found.labels
    sections = [_sequence_section(scene)]
    if found.edits:
        sections.append(_edits_section(found))
    sections.append(_numbers_section(scene, found, names))
    sections.append(Section("Attention", _attention(scene)))
    position = scene.state.position % scene.length
    sections.append(Section(f"Stream at position {position}", (_stream(found),)))
    if code:
        sections.append(_code_section(code))
    return Document(f"{scene.state.model.name}: a view", tuple(sections))


def _sequence_section(scene: Scene) -> Section:
    tokens = " ".join(map(str, scene.state.tokens))
    return Section("The sequence", (Text((_about(scene),), "soft"), Text((tokens,), "code")))


def _about(scene: Scene) -> str:
    model = scene.state.model
    role = scene.model.config.architecture
    if model.role == "construction":
        role = "the construction for its task"
    about = (
        f"{role}, {counted(len(scene.model.blocks), 'layer')}, m = {scene.task.n_components}, "
        f"T = {scene.length}; β = {scene.beta:.4g}"
    )
    if scene.reference is None:
        return f"{about}. {scene.no_reference}"
    return f"{about}, δ = {model.delta:g}" if scene.reading.adjustable else about


def _edits_section(found: View) -> Section:
    lines = []
    for edit in found.edits:
        lines.append(edit["text"] if edit["on"] else f"{edit['text']} (off)")
    return Section("Edits", (Text(tuple(lines), "list"),))


def _numbers_section(scene: Scene, found: View, names: Mapping[str, str]) -> Section:
    lags = [f"lag {lag}" for lag in range(1, scene.task.n_components + 1)]
    tokens = [str(token) for token in range(scene.task.vocab_size)]
    blocks = (
        _bars("In-context weights", [*lags, "other"], found.weights, found.weight_labels),
        _bars("Prediction of the next token", tokens, found.predictions, names),
        *_scores(found, names),
    )
    return Section("In-context weights and predictions", blocks)


def _bars(
    title: str,
    categories: Sequence[str],
    values: Mapping[str, Sequence[float]],
    names: Mapping[str, str],
) -> Groups:
    series = []
    for method, found in values.items():
        series.append(Series(LOOK.get(method, method), names[method], tuple(found)))
    return Groups(title, tuple(categories), tuple(series))


def _scores(found: View, names: Mapping[str, str]) -> tuple[Block, ...]:
    rows = []
    for method, value in found.kl.items():
        if method != found.judge:
            rows.append((names[method], f"{value:.5f}"))
    notes = [f"{names[method]}: {note}" for method, note in found.notes.items()]
    return (
        Table(("method", f"KL({names[found.judge]} ‖ ·)"), tuple(rows)),
        Text((f"KL(before ‖ after) = {found.change:.5f}", *notes), "soft"),
    )


def _attention(scene: Scene) -> tuple[Block, ...]:
    columns = {"before": "before", "after": "after"}
    if scene.reference is not None:
        columns["reference"] = reference_name(scene)
    if scene.source is not None:
        columns["source"] = "source sequence"
    found = {which: maps(scene, which) for which in columns}
    largest = max(values.max().item() for values in found.values())
    scale = "All maps share one scale, coloured by the square root of the attention."
    blocks: list[Block] = [Text((scale + _shown_heads(scene),), "soft")]
    for layer in range(len(scene.model.blocks)):
        panels = []
        for which, label in columns.items():
            panels.append(Map(f"{label}, attention of layer {layer + 1}", found[which][layer]))
        blocks.append(Maps(f"Layer {layer + 1}", tuple(panels), largest, "query", "key"))
    return tuple(blocks)


def _shown_heads(scene: Scene) -> str:
    """Which head the maps show, as a sentence; empty if no layer has several."""
    if max(len(pattern) for pattern in scene.before.patterns) == 1:
        return ""
    if scene.state.head is None:
        return " They show the mean over heads."
    return f" They show head {scene.state.head + 1}."


def _stream(found: View) -> Table:
    rows = []
    for block in found.blocks:
        rows.append((block["name"], _numbers(block["before"]), _numbers(block["after"])))
    return Table(("block", "before", "after"), tuple(rows))


def _numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _code_section(code: str) -> Section:
    version = Text((f"mtdinterp {__version__}",), "soft")
    return Section("As Python", (Text(tuple(code.splitlines()), "code"), version))


def sweep_document(result: SweepResult) -> Document:
    """A sweep as a document: how far each patch moves the metric, and the strongest patches."""
    panels = []
    for layer in range(len(result.values)):
        effects = result.effects(layer)
        if effects:
            rows = torch.stack(list(effects.values())).abs()
            panels.append(Map(f"layer {layer + 1}", rows, tuple(effects)))
    largest = max(panel.values.nan_to_num().max().item() for panel in panels)
    blocks = (
        Text((result.summary(),)),
        Maps("Change of the metric", tuple(panels), largest, "part", "position"),
        Table(("layer", "position", "part", "metric"), _strongest_rows(result)),
    )
    return Document("Patch sweep", (Section("Which patches change the metric", blocks),))


def _strongest_rows(result: SweepResult) -> tuple[tuple[str, ...], ...]:
    rows = []
    for layer, position, part in result.strongest(STRONGEST):
        value = result.values[layer, position, part].item()
        rows.append((str(layer + 1), str(position), result.parts[part], f"{value:.5f}"))
    return tuple(rows)
