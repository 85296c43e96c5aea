"""From a scene to the numbers of the page: pure, and the same for the page, the notebook and the
report."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from mtdinterp.app.runs import Run
from mtdinterp.app.scene import Scene
from mtdinterp.app.words import HOOKS, describe, describe_extra
from mtdinterp.fitting import Evidence, one_step_weights
from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.models import LensTransformer

METHODS = {
    "truth": "truth",
    "exact_bayes": "exact posterior mean",
    "one_step": "one-step MD",
    "construction": "construction",
    "before": "model",
    "after": "model, edited",
}
"""What bars stand side by side, in this order. The construction's are the checkpoint's where the
construction is the model."""


@dataclass(frozen=True, eq=False)
class View:
    """Everything on the page but the maps, which are large and have their own way there."""

    model: dict[str, Any]
    construction: dict[str, Any]
    weights: dict[str, list[float]]
    """By method: one entry a lag, then what is left for other positions."""
    predictions: dict[str, list[float]]
    """By method: the distribution of the next token."""
    kl: dict[str, float]
    """By method: KL(truth ‖ prediction), or from the exact posterior mean's where the truth is
    unknown."""
    judge: str
    """Which of the two it is."""
    change: float
    """KL(before ‖ after)."""
    clipped: float
    """How much of the edited model's output was no distribution, in total variation."""
    blocks: list[dict[str, Any]]
    """What each named block of the stream holds at the chosen position."""
    edits: list[dict[str, Any]]
    """A line for every edit, and whether it is on."""


def view(scene: Scene) -> View:
    evidence = Evidence(scene.task, scene.tokens)
    order, state = scene.task.order, scene.state
    estimates = {
        "exact_bayes": scene.posterior,
        "one_step": one_step_weights(evidence, scene.beta)[0],
    }
    if state.weights is not None:
        estimates = {"truth": torch.tensor(state.weights, dtype=torch.float64), **estimates}
    runs = {"construction": scene.reference_run, "before": scene.before, "after": scene.after}
    weights = {name: _with_rest(found) for name, found in estimates.items()}
    weights |= {name: in_context_weights(run, order) for name, run in runs.items()}
    predictions = {name: evidence.predict(found[None])[0] for name, found in estimates.items()}
    predictions |= {name: clip_to_distribution(run.outputs)[0] for name, run in runs.items()}
    judge = "exact_bayes" if state.weights is None else "truth"
    clipped = clip_to_distribution(scene.after.outputs)[1]
    return View(
        model=_model(scene),
        construction=_construction(scene),
        weights={name: weights[name].tolist() for name in METHODS if name in weights},
        predictions={name: predictions[name].tolist() for name in METHODS if name in predictions},
        kl={
            name: kl_divergence(predictions[judge], predictions[name]).item()
            for name in METHODS
            if name in predictions
        },
        judge=judge,
        change=kl_divergence(predictions["before"], predictions["after"]).item(),
        clipped=clipped.item(),
        blocks=_blocks(scene),
        edits=[
            *({"text": describe(scene, edit), "on": edit.on} for edit in state.edits),
            *({"text": describe_extra(scene, edit), "on": True} for edit in scene.extra),
        ],
    )


def in_context_weights(run: Run, order: int) -> Float64[Tensor, " lag"]:
    """The last layer's attention at the last position, mean over heads: lags 1..m of the next
    token, then the rest."""
    by_offset = run.patterns[-1].double().mean(0)[-1].flip(-1)
    return torch.cat([by_offset[:order], by_offset[order:].sum()[None]])


def _with_rest(weights: Float64[Tensor, " lag"]) -> Float64[Tensor, " bar"]:
    return torch.cat([weights, weights.new_zeros(1)])


def maps(scene: Scene, which: str) -> Float[Tensor, "layer query key"]:
    """Attention of every layer in one of the runs on the page; for the reference model, the
    corresponding layers."""
    layers, head = range(len(scene.model.blocks)), scene.state.head
    if which == "reference":
        return torch.stack(
            [scene.reference_run.attention(scene.corresponding_layer(layer)) for layer in layers]
        )
    run = {"before": scene.before, "after": scene.after, "source": scene.of_source}[which]
    if run is None:
        raise ValueError("source: there is no source sequence to show; sample or type one")
    return torch.stack([run.attention(layer, head) for layer in layers])


def _model(scene: Scene) -> dict[str, Any]:
    config = scene.model.config
    named = len(scene.model.stream) > 1
    here = {
        name.rsplit("hook_", 1)[1] for name in scene.model.hook_dict if name.startswith("blocks.0.")
    }
    return {
        "architecture": config.architecture,
        "layers": len(scene.model.blocks),
        "heads": max(len(pattern) for pattern in scene.before.patterns),
        "order": scene.task.order,
        "vocab_size": scene.task.vocab_size,
        "longest": config.length,
        "exact_length": config.exact_length,
        "named_stream": named,
        "blocks": [_place(scene.model, name) for name in scene.model.stream],
        "shared_blocks": [name for name in scene.model.stream if _shared(scene, name)],
        "hooks": [name for name in HOOKS if name in here],
        "transition": scene.task.transition.tolist(),
    }


def _place(model: LensTransformer, name: str) -> dict[str, Any]:
    """A block, the layer that writes it (-1 for the input), the first that reads it, and where to
    edit it.

    Blocks of a concatenated stream are edited where they are first read. An additive stream goes on
    being added to, so there it is after the last layer: what the page shows is what is written.
    """
    columns, layers = model.stream[name], model.layers
    additive = layers[0].reads.stop == model.stream.width
    reads = next(
        (number for number, layer in enumerate(layers) if columns.stop <= layer.reads.stop),
        len(layers),
    )
    last = len(layers) - 1
    hook, layer = ("resid_post", last) if additive or reads > last else ("resid_pre", reads)
    return {
        "name": name,
        "width": model.stream.width_of(name),
        "reads": reads,
        "writes": None if additive else reads - 1,
        "hook": hook,
        "layer": layer,
    }


def _construction(scene: Scene) -> dict[str, Any]:
    two_step = scene.constants.two_step
    return {
        "beta": scene.beta,
        "fitted_beta": scene.constants.beta,
        "delta": scene.state.model.delta,
        "steps": 1 if two_step is None else 2,
        "constants": None if two_step is None else list(two_step),
    }


def _blocks(scene: Scene) -> list[dict[str, Any]]:
    """Named blocks at the chosen position: before, after, in the source's run and in the reference
    model."""
    position, stream = scene.state.position, scene.model.stream
    of_source = scene.of_source
    found = []
    for name, columns in stream.items():
        values = {"before": scene.before.stream, "after": scene.after.stream}
        if of_source is not None:
            values["source"] = of_source.stream
        entry: dict[str, Any] = {
            kind: rows[position, columns].tolist() for kind, rows in values.items()
        }
        if _shared(scene, name):
            entry["reference"] = scene.reference_run.stream[
                position, scene.reference.stream[name]
            ].tolist()
        found.append({"name": name, **entry})
    return found


def _shared(scene: Scene, name: str) -> bool:
    """Whether the reference model has this block too, with the same width."""
    here, there = scene.model.stream, scene.reference.stream
    return name in there and there.width_of(name) == here.width_of(name)
