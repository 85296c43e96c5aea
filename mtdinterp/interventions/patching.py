"""Run a model with edits, next to the same run without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.interventions.edits import Edit
from mtdinterp.interventions.hooking import Hook, hooked
from mtdinterp.interventions.places import SCORES, hook_name, place_of
from mtdinterp.interventions.sources import activations_for, check_source, fitted
from mtdinterp.metrics import clip_to_distribution, kl_divergence, total_variation
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
        return kl_divergence(
            clip_to_distribution(self.before)[0], clip_to_distribution(self.after)[0]
        )

    def recovered(
        self, metric: Callable[[Tensor], Tensor | float], target: Float[Tensor, "batch vocab"]
    ) -> float:
        """How much of the way the edits go from before to `target`, by a metric of predictions: 1
        is all of it."""
        before, after, aim = (
            float(metric(outputs)) for outputs in (self.before, self.after, target)
        )
        if before == aim:
            raise ValueError(
                f"metric: it is {aim:g} for the target as before the edits: there is nothing to "
                "recover"
            )
        return (after - before) / (aim - before)

    def summary(self) -> str:
        moved = total_variation(self.weights_after, self.weights_before).mean().item()
        return (
            f"KL(before ‖ after): mean {self.kl.mean().item():.3g} over {len(self.kl)} sequences; "
            "the last layer's "
            f"attention moved by {moved:.3f} in total variation."
        )


def patch(model: LensTransformer, tokens: ArrayLike | str, edits: Sequence[Edit]) -> PatchResult:
    """The model's predictions and in-context weights without and with the edits; the model is left
    as it was."""
    sequence = model.check_tokens(tokens)
    hooks = hooks_for(model, sequence, edits)
    before, weights_before = _run(model, sequence, [])
    after, weights_after = _run(model, sequence, hooks)
    return PatchResult(before, after, weights_before, weights_after)


def _run(model: LensTransformer, tokens: Tensor, hooks: Sequence[Hook]) -> tuple[Tensor, Tensor]:
    """Outputs at the last position and the last layer's attention there, seen after any edit of
    it."""
    seen: dict[str, Tensor] = {}

    def look(value: Tensor, hook: object) -> None:
        seen["pattern"] = value[:, :, -1:]

    last = f"blocks.{len(model.blocks) - 1}.attn.hook_pattern"
    with torch.no_grad(), hooked(model, [*hooks, (last, look)]):
        outputs = model.to_probabilities(model(tokens)[:, -1])
    return outputs, attention_by_offset(seen["pattern"])[:, :, 0]


def hooks_for(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], edits: Sequence[Edit]
) -> list[Hook]:
    """One hook an edit, in their order; sources that are runs are run here, once each."""
    if isinstance(edits, Edit) or not all(isinstance(edit, Edit) for edit in edits):
        raise ValueError("edits: expected a list of Edit objects")
    for edit in edits:
        check_source(edit.source)
    names = [hook_name(model, edit) for edit in edits]
    places = [
        place_of(model, edit, name, tokens.shape[1])
        for edit, name in zip(edits, names, strict=True)
    ]
    seen = activations_for(model, tokens, edits, names)
    return [
        (name, _hook(edit, name, place, seen.get(number)))
        for number, (edit, name, place) in enumerate(zip(edits, names, places, strict=True))
    ]


def _hook(
    edit: Edit, name: str, place: tuple[Any, ...], activation: Tensor | None
) -> Callable[..., Tensor]:
    position_axis = 2 if name.rsplit(".", 1)[-1] in SCORES else 1

    def change(value: Tensor, hook: Any) -> Tensor:
        there = value[place]
        changed = value.clone()
        changed[place] = fitted(edit, there, activation, position_axis)
        return changed

    return change
