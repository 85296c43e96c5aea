"""Three experiments for a first visit: what to expect, the edits that show it, and what came of
them."""

from collections.abc import Callable
from dataclasses import dataclass

from mtdinterp.app.scene import Scene
from mtdinterp.app.state import EditState, SourceState
from mtdinterp.app.views import METHODS, in_context_weights, view
from mtdinterp.metrics import clip_to_distribution, total_variation


@dataclass(frozen=True)
class Experiment:
    """`edits` replace those of the scene; `outcome` says in a sentence what they did there."""

    title: str
    expect: str
    edits: Callable[[Scene], tuple[EditState, ...]]
    outcome: Callable[[Scene], str]


def _steer(scene: Scene) -> tuple[EditState, ...]:
    return (
        EditState(
            "pattern",
            SourceState("weights", values=_all_on(scene, _lightest(scene))),
            layer=len(scene.model.blocks) - 1,
        ),
    )


def _lightest(scene: Scene) -> int:
    """The lag, counted from 0, that the unedited model gives least."""
    return int(in_context_weights(scene.before, scene.task.order)[:-1].argmin())


def _all_on(scene: Scene, lag: int) -> tuple[float, ...]:
    return tuple(float(other == lag) for other in range(scene.task.order))


def _steered(scene: Scene) -> str:
    lag = _lightest(scene)
    token = scene.state.tokens[-1 - lag]
    row = scene.task.transition[token]
    before, after = (clip_to_distribution(run.outputs)[0] for run in (scene.before, scene.after))
    moved, distance = (total_variation(after, other).item() for other in (before, row))
    return (
        f"All weight is on lag {lag + 1}, where the token {token} stands. The prediction moved by "
        f"{moved:.3f} in total variation and is now {distance:.3f} from that token's row of π."
    )


def _transplant(scene: Scene) -> tuple[EditState, ...]:
    return (EditState("pattern", SourceState("reference"), layer=len(scene.model.blocks) - 1),)


def _transplanted(scene: Scene) -> str:
    found = view(scene)
    return (
        f"KL(before ‖ after) is {found.change:.2g} after all of layer {len(scene.model.blocks)}'s "
        "attention was "
        f"replaced; KL to the {METHODS[found.judge]} went from {found.kl['before']:.4f} to "
        f"{found.kl['after']:.4f}."
    )


def _break(scene: Scene) -> tuple[EditState, ...]:
    layer = min(1, len(scene.model.blocks) - 1)
    return (
        EditState(
            "pattern", SourceState("zero"), layer=layer, position=(scene.length - 1, scene.length)
        ),
    )


def _broken(scene: Scene) -> str:
    found = view(scene)
    return (
        f"KL to the {METHODS[found.judge]} went from {found.kl['before']:.4f} to "
        f"{found.kl['after']:.4f}, and "
        f"KL(before ‖ after) is {found.change:.2g}."
    )


EXPERIMENTS = {
    "steer": Experiment(
        "Steer the weights",
        "The last layer's attention at the last position is the model's estimate of the mixture "
        "weights. Put all of it "
        "on the lag it trusts least: the prediction should become π's row of the token there.",
        _steer,
        _steered,
    ),
    "transplant": Experiment(
        "Transplant an attention map",
        "The construction's last layer attends with softmax(β·Γ). Give one model the whole last "
        "map of the other: if "
        "both take the same step, the prediction should hardly move.",
        _transplant,
        _transplanted,
    ),
    "break": Experiment(
        "Break layer 2",
        "Layer 2 averages the evidence of all positions into Γ. Set its attention at the last "
        "position to zero: the "
        "weights should lose what they knew, and the KL should rise, on most sequences.",
        _break,
        _broken,
    ),
}
