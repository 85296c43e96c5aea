"""From a scene to the numbers of the page: pure, and the same for page, notebook and report."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mtdinterp.app.models import BARS
from mtdinterp.app.runs import Run
from mtdinterp.app.scene import Scene
from mtdinterp.app.words import HOOKS, describe, describe_extra, reference_name
from mtdinterp.errors import CannotCompute
from mtdinterp.metrics import clip_to_distribution, kl_divergence, to_distribution
from mtdinterp.models import LensTransformer
from mtdinterp.registry import ESTIMATORS
from mtdinterp.style import style_of
from mtdinterp.tasks import Task


@dataclass(frozen=True, eq=False)
class View:
    """Everything on the page except the attention maps, which are large and sent separately."""

    model: dict[str, Any]
    construction: dict[str, Any]
    """The reference construction's constants, or why there is none."""
    labels: dict[str, str]
    """Labels of the methods in `predictions` and `kl`."""
    weight_labels: dict[str, str]
    """Labels of the methods in `weights`; a model with several heads shows their mean."""
    weights: dict[str, list[float]]
    """By method: one entry per lag, then the attention to other positions."""
    predictions: dict[str, list[float]]
    """By method: the distribution of the next token."""
    kl: dict[str, float]
    """By method: KL(judge ‖ prediction)."""
    judge: str
    """The truth, or the first estimator that can be computed if the true weights are unknown."""
    missing: dict[str, str]
    """Estimators that cannot be computed here, with the reason."""
    notes: dict[str, str]
    """How accurate the weights are of estimators that are not computed exactly here."""
    change: float
    """KL(before ‖ after)."""
    clipped: float
    """How far clipping moved the edited model's output, in total variation."""
    blocks: list[dict[str, Any]]
    """The values of each named block of the stream at the selected position."""
    edits: list[dict[str, Any]]
    """A line for every edit, and whether it is on."""


def view(scene: Scene) -> View:
    """All numbers of a scene except the attention maps."""
    estimates, missing = estimated_weights(scene)
    runs = shown_runs(scene)
    weights = {name: _with_rest(found) for name, found in estimates.items()}
    weights |= {name: in_context_weights(run, scene.task) for name, run in runs.items()}
    weights |= head_weights(scene)
    predictions = {}
    for name, found in estimates.items():
        predictions[name] = scene.evidence.predict(found[None])[0]
    for name, run in runs.items():
        predictions[name] = to_distribution(run.outputs)
    judge = next(iter(estimates))
    kl = {
        name: kl_divergence(predictions[judge], found).item() for name, found in predictions.items()
    }
    _, clipped = clip_to_distribution(scene.after.outputs)
    return View(
        model=_model(scene),
        construction=_construction(scene),
        labels=method_labels(scene),
        weight_labels=weight_labels(scene),
        weights={name: found.tolist() for name, found in weights.items()},
        predictions={name: found.tolist() for name, found in predictions.items()},
        kl=kl,
        judge=judge,
        missing=missing,
        notes=_accuracy_notes(scene, estimates),
        change=kl_divergence(predictions["before"], predictions["after"]).item(),
        clipped=clipped.item(),
        blocks=_blocks(scene),
        edits=_edits(scene),
    )


def estimated_weights(scene: Scene) -> tuple[dict[str, Float64[Tensor, " lag"]], dict[str, str]]:
    """The true weights if they are known, and those of the estimators that are bars.

    Returns:
        Weights by method, and the reason for each estimator that has none.
    """
    found: dict[str, Float64[Tensor, " lag"]] = {}
    missing: dict[str, str] = {}
    if scene.state.weights is not None:
        found["truth"] = torch.tensor(scene.state.weights, dtype=torch.float64)
    for name in BARS:
        try:
            found[name] = scene.estimate(name)
        except CannotCompute as error:
            missing[name] = str(error)
    return found, missing


def _accuracy_notes(scene: Scene, computed: Container[str]) -> dict[str, str]:
    """What the estimators that are bars say about the accuracy of their weights."""
    notes = {}
    for name in BARS:
        note = scene.accuracy_note(name) if name in computed else None
        if note is not None:
            notes[name] = note
    return notes


def shown_runs(scene: Scene) -> dict[str, Run]:
    """The runs that are bars, by method: the reference if there is one, the model before, after."""
    runs = {"before": scene.before, "after": scene.after}
    reference = scene.reference_run
    return runs if reference is None else {"construction": reference, **runs}


def in_context_weights(run: Run, task: Task) -> Float64[Tensor, " bar"]:
    """The last layer's attention at the last position, mean over heads.

    Args:
        run: a model's run.
        task: where the last query reads each component.

    Returns:
        One entry per component (NaN if it is read nowhere), then the sum over other positions.
    """
    return _weights_by_component(run.patterns[-1].mean(0), task)


def head_weights(scene: Scene) -> dict[str, Float64[Tensor, " bar"]]:
    """The in-context weights of each head of the edited model; empty if there is only one head."""
    heads = scene.after.patterns[-1]
    if len(heads) == 1:
        return {}
    return {
        head_method(number): _weights_by_component(pattern, scene.task)
        for number, pattern in enumerate(heads)
    }


def head_method(head: int) -> str:
    """The method name of one head's weights; heads count from 0."""
    return f"head_{head + 1}"


def _weights_by_component(
    pattern: Float[Tensor, "query key"], task: Task
) -> Float64[Tensor, " bar"]:
    by_offset = pattern[-1].double().flip(-1)
    entries = [
        by_offset.new_tensor(torch.nan) if offset is None else by_offset[offset]
        for offset in task.read_offsets
    ]
    read = [offset for offset in task.read_offsets if offset is not None]
    rest = by_offset.sum() - by_offset[read].sum()
    return torch.stack([*entries, rest])


def _with_rest(weights: Float64[Tensor, " lag"]) -> Float64[Tensor, " bar"]:
    return torch.cat([weights, weights.new_zeros(1)])


def method_labels(scene: Scene) -> dict[str, str]:
    """Labels of the methods."""
    labels = {"truth": "truth"}
    labels |= {name: ESTIMATORS[name].label.removeprefix("the ") for name in BARS}
    labels["construction"] = reference_name(scene)
    labels["before"] = "model"
    labels["after"] = "model, edited"
    return labels


def weight_labels(scene: Scene) -> dict[str, str]:
    """Labels of the methods next to their in-context weights."""
    labels = method_labels(scene)
    n_heads = len(scene.after.patterns[-1])
    if n_heads == 1:
        return labels
    model = labels["before" if scene.after is scene.before else "after"]
    for method in ("before", "after"):
        labels[method] += ", mean over heads"
    for head in range(n_heads):
        labels[head_method(head)] = f"{model}, head {head + 1}"
    return labels


def bar_colours() -> dict[str, str]:
    """The colour of each method that is a bar, except the truth, which is an outline."""
    methods = (*BARS, "construction", "before", "after")
    return {name: style_of(name).colour for name in methods}


def maps(scene: Scene, which: str) -> Float[Tensor, "layer query key"]:
    """Attention of every layer in one of the runs on the page.

    Args:
        scene: the model, sequences and edits that are shown.
        which: "before", "after", "reference" or "source".

    Returns:
        The attention of the selected head, or the mean over heads; a reference has one head.
    """
    layers = range(len(scene.model.blocks))
    if which == "reference":
        reference = scene.reference_run
        if reference is None:
            raise ValueError(f"which: there is no reference model to show. {scene.no_reference}")
        return torch.stack([reference.attention(layer) for layer in layers])
    run = {"before": scene.before, "after": scene.after, "source": scene.of_source}[which]
    if run is None:
        raise ValueError("source: there is no source sequence to show; sample or type one")
    return torch.stack([run.attention(layer, scene.state.head) for layer in layers])


def _model(scene: Scene) -> dict[str, Any]:
    config = scene.model.config
    here = {
        name.rsplit("hook_", 1)[1] for name in scene.model.hook_dict if name.startswith("blocks.0.")
    }
    return {
        "architecture": config.architecture,
        "task": scene.task.describe,
        "layers": len(scene.model.blocks),
        "heads": max(len(pattern) for pattern in scene.before.patterns),
        "order": scene.task.n_components,
        "vocab_size": scene.task.vocab_size,
        "longest": config.length,
        "exact_length": config.exact_length,
        "named_stream": len(scene.model.stream) > 1,
        "blocks": [_place(scene.model, name) for name in scene.model.stream],
        "shared_blocks": [name for name in scene.model.stream if _is_shared(scene, name)],
        "hooks": [name for name in HOOKS if name in here],
    }


def _place(model: LensTransformer, name: str) -> dict[str, Any]:
    """A block: the layer that writes it (-1: the input), the first that reads it, where to edit it.

    Blocks of a concatenated stream are edited where they are first read. An additive stream is
    edited after the last layer, so that later layers do not add to what the page wrote.
    """
    columns = model.stream[name]
    widths = [layer.reads.stop for layer in model.layers]
    last = len(widths) - 1
    is_additive = widths[0] == model.stream.width
    readers = [number for number, width in enumerate(widths) if columns.stop <= width]
    reads = readers[0] if readers else last + 1
    at_end = is_additive or reads > last
    return {
        "name": name,
        "width": model.stream.width_of(name),
        "reads": reads,
        "writes": None if is_additive else reads - 1,
        "hook": "resid_post" if at_end else "resid_pre",
        "layer": last if at_end else reads,
    }


def _construction(scene: Scene) -> dict[str, Any]:
    reading = scene.reading
    explanation = reading.explanation
    return {
        "beta": scene.beta,
        "fitted_beta": reading.fits["one_step"].constants["beta"],
        "delta": scene.state.model.delta,
        "is_known": scene.reference is not None,
        "why_not": scene.no_reference,
        "is_adjustable": scene.reference is not None and reading.adjustable,
        "algorithm": explanation.algorithm.label,
        "constants": explanation.describe_constants(),
    }


def _blocks(scene: Scene) -> list[dict[str, Any]]:
    """Named blocks at the selected position: before, after, in the source and reference runs."""
    position = scene.state.position
    values = {"before": scene.before.stream, "after": scene.after.stream}
    if scene.of_source is not None:
        values["source"] = scene.of_source.stream
    found = []
    for name, columns in scene.model.stream.items():
        entry: dict[str, Any] = {"name": name}
        for run, stream in values.items():
            entry[run] = stream[position, columns].tolist()
        if _is_shared(scene, name):
            entry["reference"] = _reference_block(scene, name)
        found.append(entry)
    return found


def _reference_block(scene: Scene, name: str) -> list[float]:
    assert scene.reference is not None
    assert scene.reference_run is not None
    columns = scene.reference.stream[name]
    return scene.reference_run.stream[scene.state.position, columns].tolist()


def _is_shared(scene: Scene, name: str) -> bool:
    """Whether the reference model has this block too, with the same width."""
    if scene.reference is None:
        return False
    here = scene.model.stream
    there = scene.reference.stream
    return name in there and there.width_of(name) == here.width_of(name)


def _edits(scene: Scene) -> list[dict[str, Any]]:
    lines = [{"text": describe(scene, edit), "on": edit.on} for edit in scene.state.edits]
    lines += [{"text": describe_extra(scene, edit), "on": True} for edit in scene.extra]
    return lines
