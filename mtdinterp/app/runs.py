"""One run of a model, observed: what it predicts, where every layer attends, what the stream holds
at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtdinterp.interventions import Edit
from mtdinterp.interventions.hooking import hooked
from mtdinterp.interventions.patching import hooks_for
from mtdinterp.models import LensTransformer


@dataclass(frozen=True, eq=False)
class Run:
    """One sequence through a model, with its edits if there were any."""

    outputs: Float[Tensor, " vocab"]
    """The prediction after the last position, unclipped."""
    patterns: tuple[Float[Tensor, "head query key"], ...]
    """Attention by layer."""
    stream: Float[Tensor, "pos d_model"]
    """After the last layer."""

    def attention(self, layer: int, head: int | None = None) -> Float[Tensor, "query key"]:
        """A layer's attention, mean over heads or of one of them."""
        pattern = self.patterns[layer]
        if head is None:
            return pattern.mean(0)
        if head >= len(pattern):
            raise ValueError(f"head: layer {layer + 1} has heads 0..{len(pattern) - 1}, got {head}")
        return pattern[head]


def observe(
    model: LensTransformer, tokens: Int[Tensor, "1 pos"], edits: Sequence[Edit] = ()
) -> Run:
    """`interventions.patch`'s run with the edits, seen in full; the model is left as it was."""
    seen: dict[str, Tensor] = {}

    def look(value: Tensor, hook: object) -> None:
        seen[hook.name] = value  # type: ignore[attr-defined]

    sequence, n_layers = model.check_tokens(tokens), len(model.blocks)
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in range(n_layers)]
    last = f"blocks.{n_layers - 1}.hook_resid_post"
    # Those who look come after those who change.
    hooks = [*hooks_for(model, sequence, edits), *((name, look) for name in (*patterns, last))]
    with torch.no_grad(), hooked(model, hooks):
        outputs = model.to_probabilities(model(sequence)[0, -1])
    # An edit may write attention to the future; the model does not use it, so it is not shown.
    return Run(outputs, tuple(seen[name][0].tril() for name in patterns), seen[last][0])
