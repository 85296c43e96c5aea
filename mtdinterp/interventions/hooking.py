"""Hooks on a model for the time of a run, and what hook points show in one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from mtdinterp.models import LensTransformer

SWITCHES = {
    "hook_result": "use_attn_result",
    "hook_attn_in": "use_attn_in",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
}
"""Hook points that only fire when TransformerLens' switch for them is on."""

Hook = tuple[str, Callable[..., Tensor | None]]
"""The name of a hook point, and a function of its activation and itself."""


@contextmanager
def hooked(model: LensTransformer, hooks: Sequence[Hook]) -> Iterator[None]:
    """Inside, the hooks are on the model and the hook points they need are switched on; nothing of
    it stays after."""
    switches = {
        SWITCHES[kind] for name, _ in hooks if (kind := name.rsplit(".", 1)[-1]) in SWITCHES
    }
    if {"use_attn_in", "use_split_qkv_input"} <= switches:
        raise ValueError(
            "edits: hook_attn_in and the hook_q_input, hook_k_input, hook_v_input exclude each "
            "other"
        )
    before = {switch: getattr(model.cfg, switch) for switch in SWITCHES.values()}
    try:
        for switch in (
            ("use_attn_in", "use_split_qkv_input") if switches - {"use_attn_result"} else ()
        ):
            setattr(model.cfg, switch, switch in switches)
        model.cfg.use_attn_result = before["use_attn_result"] or "use_attn_result" in switches
        with model.hooks(fwd_hooks=list(hooks)):
            yield
    finally:
        for switch, value in before.items():
            setattr(model.cfg, switch, value)


def activations(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], names: Sequence[str]
) -> dict[str, Tensor]:
    """What some hook points show in a run, in full."""
    seen: dict[str, Tensor] = {}

    def look(value: Tensor, hook: Any) -> None:
        seen[hook.name] = value

    with torch.no_grad(), hooked(model, [(name, look) for name in dict.fromkeys(names)]):
        model(tokens)
    return seen
