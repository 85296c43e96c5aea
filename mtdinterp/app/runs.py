"""One observed run of a model: its prediction, the attention of every layer, the final stream."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mtdinterp.interventions import Edit
from mtdinterp.interventions.hooking import Hook, hooked
from mtdinterp.interventions.patching import hooks_for
from mtdinterp.models import LensTransformer


@dataclass(frozen=True, eq=False)
class Run:
    """One sequence through a model, with or without edits."""

    outputs: Float[Tensor, " vocab"]
    """The prediction after the last position, unclipped."""
    patterns: tuple[Float[Tensor, "head query key"], ...]
    """Attention by layer."""
    stream: Float[Tensor, "pos d_model"]
    """The stream after the last layer."""

    def attention(self, layer: int, head: int | None = None) -> Float[Tensor, "query key"]:
        """The attention of one head of a layer, or the mean over its heads if `head` is None."""
        pattern = self.patterns[layer]
        if head is None:
            return pattern.mean(0)
        if head >= len(pattern):
            raise ValueError(f"head: layer {layer + 1} has heads 0..{len(pattern) - 1}, got {head}")
        return pattern[head]


def observe(
    model: LensTransformer, tokens: Int[Tensor, "1 pos"], edits: Sequence[Edit] = ()
) -> Run:
    """Run a model with edits, as `interventions.patch` does, and record attention and stream.

    Args:
        model: the model to run; it is not changed.
        tokens: token ids [1, pos].
        edits: the edits, applied in this order.

    Returns:
        The observed run.
    """
    seen: dict[str, Tensor] = {}

    def record(value: Tensor, hook: HookPoint) -> None:
        seen[str(hook.name)] = value

    sequence = model.check_tokens(tokens)
    n_layers = len(model.blocks)
    pattern_names = [f"blocks.{layer}.attn.hook_pattern" for layer in range(n_layers)]
    stream_name = f"blocks.{n_layers - 1}.hook_resid_post"
    recorders: list[Hook] = [(name, record) for name in (*pattern_names, stream_name)]
    # Recorders come after the edits, so that they see edited activations.
    hooks = hooks_for(model, sequence, edits) + recorders
    with torch.no_grad(), hooked(model, hooks):
        outputs = model.to_probabilities(model(sequence)[0, -1])
    # An edit may write attention to future keys; the model ignores it, so it is not shown.
    patterns = tuple(seen[name][0].tril() for name in pattern_names)
    return Run(outputs, patterns, seen[stream_name][0])
