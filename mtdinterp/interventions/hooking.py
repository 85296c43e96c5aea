"""Temporary hooks on a model, and the activations that hook points see in one run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mtdinterp.models import LensTransformer

SWITCHES = {
    "hook_result": "use_attn_result",
    "hook_attn_in": "use_attn_in",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
}
"""Hook points that fire only while their TransformerLens switch is on."""
FORKS = ("use_attn_in", "use_split_qkv_input")
"""Switches of which at most one may be on."""

Hook = tuple[str, Callable[..., Tensor | None]]
"""The name of a hook point, and a function of its activation and the hook point itself."""


@contextmanager
def hooked(model: LensTransformer, hooks: Sequence[Hook]) -> Iterator[None]:
    """Attach hooks inside the `with` block, and switch on the hook points that they need.

    On leaving the block, hooks are removed and switches are restored.
    """
    needed = _needed_switches(hooks)
    if needed.issuperset(FORKS):
        raise ValueError(
            "edits: hook_attn_in and hook_q_input, hook_k_input, hook_v_input cannot be combined"
        )
    before = {switch: getattr(model.cfg, switch) for switch in SWITCHES.values()}
    try:
        if needed.intersection(FORKS):
            for switch in FORKS:
                setattr(model.cfg, switch, switch in needed)
        if "use_attn_result" in needed:
            model.cfg.use_attn_result = True
        with model.hooks(fwd_hooks=list(hooks)):
            yield
    finally:
        for switch, value in before.items():
            setattr(model.cfg, switch, value)


def _needed_switches(hooks: Sequence[Hook]) -> set[str]:
    kinds = {name.rsplit(".", 1)[-1] for name, _ in hooks}
    return {switch for kind, switch in SWITCHES.items() if kind in kinds}


def activations(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], names: Sequence[str]
) -> dict[str, Tensor]:
    """Run the model and record the activations at some hook points.

    Args:
        model: the model to run, without gradients.
        tokens: token ids [batch, pos].
        names: full names of hook points; duplicates are recorded once.

    Returns:
        The complete activation of each hook point, by its name.
    """
    seen: dict[str, Tensor] = {}

    def record(value: Tensor, hook: HookPoint) -> None:
        seen[str(hook.name)] = value

    recorders: list[Hook] = [(name, record) for name in dict.fromkeys(names)]
    with torch.no_grad(), hooked(model, recorders):
        model(tokens)
    return seen
