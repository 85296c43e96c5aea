"""Guided experiments for a first visit: what to expect, the edits that show it, and the outcome."""

from collections.abc import Callable
from dataclasses import dataclass

from mtdinterp.app.scene import Scene
from mtdinterp.app.state import EditState, SourceState
from mtdinterp.app.views import in_context_weights, method_labels, view
from mtdinterp.metrics import to_distribution, total_variation


@dataclass(frozen=True)
class Experiment:
    """Edits that replace those of a scene, and a sentence about their effect."""

    title: str
    expect: str
    edits: Callable[[Scene], tuple[EditState, ...]]
    outcome: Callable[[Scene], str]
    needs_reference: bool = False
    """Whether it copies from the reference model; if so, it is hidden without one."""


def _steer(scene: Scene) -> tuple[EditState, ...]:
    lightest = _lightest(scene)
    weights = [0.0] * scene.task.n_components
    weights[lightest] = 1.0
    source = SourceState("weights", values=tuple(weights))
    return (EditState("pattern", source, layer=len(scene.model.blocks) - 1),)


def _lightest(scene: Scene) -> int:
    """The lag, counted from 0, to which the unedited model gives the smallest weight."""
    weights = in_context_weights(scene.before, scene.task)[:-1]
    return int(weights.nan_to_num(nan=float("inf")).argmin())


def _steered(scene: Scene) -> str:
    lag = _lightest(scene)
    row = scene.evidence.rows[0, lag]
    before = to_distribution(scene.before.outputs)
    after = to_distribution(scene.after.outputs)
    moved = total_variation(after, before).item()
    distance = total_variation(after, row).item()
    return (
        f"All weight is on lag {lag + 1}{_token_at(scene, lag)}. The prediction moved by "
        f"{moved:.3f} in total variation and is now at a distance of {distance:.3f} from what "
        "that lag predicts."
    )


def _token_at(scene: Scene, lag: int) -> str:
    """Which token the last query reads for a lag, in brackets."""
    offset = scene.task.read_offsets[lag]
    return "" if offset is None else f" (token {scene.state.tokens[-1 - offset]})"


def _transplant(scene: Scene) -> tuple[EditState, ...]:
    return (EditState("pattern", SourceState("reference"), layer=len(scene.model.blocks) - 1),)


def _transplanted(scene: Scene) -> str:
    found = view(scene)
    layer = len(scene.model.blocks)
    return (
        f"Replacing all attention of layer {layer} gives a KL(before ‖ after) of "
        f"{found.change:.2g}. {_kl_change(scene)}"
    )


def _break(scene: Scene) -> tuple[EditState, ...]:
    layer = min(1, len(scene.model.blocks) - 1)
    position = (scene.length - 1, scene.length)
    return (EditState("pattern", SourceState("zero"), layer=layer, position=position),)


def _broken(scene: Scene) -> str:
    return f"{_kl_change(scene)} KL(before ‖ after) is {view(scene).change:.2g}."


def _kl_change(scene: Scene) -> str:
    found = view(scene)
    judge = method_labels(scene)[found.judge]
    return f"KL to the {judge} went from {found.kl['before']:.4f} to {found.kl['after']:.4f}."


EXPERIMENTS = {
    "steer": Experiment(
        "Steer the weights",
        "The last layer's attention at the last position is the model's estimate of the mixture "
        "weights. Put all of it on the lag with the smallest weight: the prediction should become "
        "what that lag alone predicts.",
        _steer,
        _steered,
    ),
    "transplant": Experiment(
        "Transplant an attention map",
        "The last layer of the reference construction attends with the algorithm's weights. Copy "
        "its whole last map into the model: if both compute the same weights, the prediction "
        "should hardly move.",
        _transplant,
        _transplanted,
        needs_reference=True,
    ),
    "break": Experiment(
        "Break layer 2",
        "In the construction, layer 2 averages the evidence of all positions into Γ. Set its "
        "attention at the last position to zero: on most sequences, the weights should lose that "
        "evidence and the KL should rise.",
        _break,
        _broken,
    ),
}
