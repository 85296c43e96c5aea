"""Run a model with edits and compare it with the same run without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mtdinterp.checks import ArrayLike
from mtdinterp.formatting import counted
from mtdinterp.interventions.edits import Edit
from mtdinterp.interventions.hooking import Hook, hooked
from mtdinterp.interventions.places import Index, has_keys, hook_name, place_of
from mtdinterp.interventions.sources import activations_for, check_source, value_for_place
from mtdinterp.metrics import kl_divergence, to_distribution, total_variation
from mtdinterp.models import LensTransformer
from mtdinterp.models.attention import attention_by_offset


@dataclass(frozen=True, eq=False)
class PatchResult:
    """A run before and after its edits, at the last position."""

    before: Float[Tensor, "batch vocab"]
    after: Float[Tensor, "batch vocab"]
    weights_before: Float[Tensor, "batch head length"]
    """Attention of the last layer's last query by offset: offset g-1 is lag g of the next token."""
    weights_after: Float[Tensor, "batch head length"]

    @property
    def kl(self) -> Float64[Tensor, " batch"]:
        """KL(before ‖ after) of the predictions, clipped to distributions."""
        before = to_distribution(self.before)
        after = to_distribution(self.after)
        return kl_divergence(before, after)

    def recovered(
        self, metric: Callable[[Tensor], Tensor | float], target: Float[Tensor, "batch vocab"]
    ) -> float:
        """The fraction of the metric's distance to `target` that the edits cover; 1 is all of it.

        Args:
            metric: a number computed from predictions [batch, vocab].
            target: the predictions that the edits should lead to, [batch, vocab].

        Returns:
            (after - before) / (target - before), each as measured by the metric.
        """
        before = float(metric(self.before))
        after = float(metric(self.after))
        aim = float(metric(target))
        if before == aim:
            raise ValueError(
                f"metric: its value is {aim:g} both before the edits and for the target, so there "
                "is nothing to recover"
            )
        return (after - before) / (aim - before)

    def summary(self) -> str:
        """The mean effect of the edits, in one sentence."""
        moved = total_variation(self.weights_after, self.weights_before).mean().item()
        number = counted(len(self.kl), "sequence")
        return (
            f"KL(before ‖ after): mean {self.kl.mean().item():.3g} over {number}; "
            f"the last layer's attention moved by {moved:.3f} in total variation."
        )


def patch(model: LensTransformer, tokens: ArrayLike | str, edits: Sequence[Edit]) -> PatchResult:
    """Run a model without and with edits; the model itself is not changed.

    Args:
        model: the model to run.
        tokens: token ids [batch, pos] or [pos], or text.
        edits: the edits, applied in this order.

    Returns:
        Predictions and in-context weights of both runs at the last position.
    """
    sequence = model.check_tokens(tokens)
    hooks = hooks_for(model, sequence, edits)
    before, weights_before = _run(model, sequence, [])
    after, weights_after = _run(model, sequence, hooks)
    return PatchResult(before, after, weights_before, weights_after)


def _run(model: LensTransformer, tokens: Tensor, hooks: Sequence[Hook]) -> tuple[Tensor, Tensor]:
    """Outputs at the last position, and the last layer's attention by offset there."""
    seen: dict[str, Tensor] = {}

    def record(value: Tensor, hook: HookPoint) -> None:
        seen["pattern"] = value[:, :, -1:]

    last = f"blocks.{len(model.blocks) - 1}.attn.hook_pattern"
    # The recorder comes last, so that it sees the attention after any edit.
    with torch.no_grad(), hooked(model, [*hooks, (last, record)]):
        outputs = model.to_probabilities(model(tokens)[:, -1])
    return outputs, attention_by_offset(seen["pattern"])[:, :, 0]


def hooks_for(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], edits: Sequence[Edit]
) -> list[Hook]:
    """Convert edits into hooks, after checking all of them.

    Args:
        model: the model that the edits are for.
        tokens: token ids [batch, pos] of the edited run.
        edits: the edits; runs that they take activations from are executed here, once each.

    Returns:
        One hook per edit, in the same order.
    """
    if isinstance(edits, Edit) or not all(isinstance(edit, Edit) for edit in edits):
        raise ValueError("edits: expected a list of Edit objects")
    for edit in edits:
        check_source(edit.source)
    names = [hook_name(model, edit) for edit in edits]
    places = []
    for edit, name in zip(edits, names, strict=True):
        places.append(place_of(model, edit, name, tokens.shape[1]))
    taken = activations_for(model, tokens, edits, names)
    hooks: list[Hook] = []
    for number, edit in enumerate(edits):
        change = _change(edit, names[number], places[number], taken.get(number))
        hooks.append((names[number], change))
    return hooks


def _change(
    edit: Edit, name: str, place: Index, activation: Tensor | None
) -> Callable[[Tensor, HookPoint], Tensor]:
    """A hook function that puts the edit's source at its place."""
    position_axis = 2 if has_keys(name) else 1

    def change(value: Tensor, hook: HookPoint) -> Tensor:
        changed = value.clone()
        changed[place] = value_for_place(edit, value[place], activation, position_axis)
        return changed

    return change
