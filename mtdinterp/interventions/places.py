"""Where an edit is: the hook point it means, and the index of its place in what that shows.

Everything is checked before the model runs; a wrong name or size is an error that says what exists.
"""

from typing import Any

from torch import Tensor

from mtdinterp.checks import check_option
from mtdinterp.interventions.edits import Edit
from mtdinterp.interventions.indices import counted, positions_of
from mtdinterp.models import LensTransformer

SCORES = ("hook_attn_scores", "hook_rel_scores", "hook_pattern")
"""Hook points with axes [batch, head, query, key]."""
BY_HEAD = (
    "hook_q",
    "hook_k",
    "hook_v",
    "hook_p",
    "hook_z",
    "hook_result",
    "hook_attn_in",
    "hook_q_input",
    "hook_k_input",
    "hook_v_input",
)
"""Hook points with axes [batch, pos, head, d]; all others have [batch, pos, d_model]."""
STREAM_WIDE = (
    "hook_embed",
    "hook_resid_pre",
    "hook_resid_post",
    "hook_attn_out",
    "hook_mlp_in",
    "hook_mlp_out",
    "hook_result",
    "hook_attn_in",
    "hook_q_input",
    "hook_k_input",
    "hook_v_input",
)
"""Hook points whose last axis is the final stream, where blocks have their columns."""


def hook_name(model: LensTransformer, edit: Edit) -> str:
    """The full name of the hook point that an edit means."""
    names = list(model.hook_dict)
    if edit.layer is None:
        return check_option("hook", edit.hook, names)
    layer = counted("layer", edit.layer, len(model.blocks), "expected a layer of")
    short = str(edit.hook).removeprefix("hook_")
    prefix = f"blocks.{layer}."
    here = {name.rsplit("hook_", 1)[1]: name for name in names if name.startswith(prefix)}
    return here[check_option("hook", short, here)]


def place_of(model: LensTransformer, edit: Edit, name: str, length: int) -> tuple[Any, ...]:
    """The index of the edited place in what the hook point shows."""
    kind = name.rsplit(".", 1)[-1]
    position = positions_of(edit.position, length)
    if edit.key is not None and kind not in SCORES:
        raise ValueError(f"key: {name} has no keys; those are at {', '.join(SCORES)}")
    if kind in SCORES:
        keys = positions_of(edit.key, length, "key")
        if isinstance(position, Tensor) and isinstance(keys, Tensor):
            position = position[:, None]  # every chosen key of every chosen query, not pair by pair
        place: tuple[Any, ...] = (slice(None), _head(model, edit, name), position, keys)
    elif kind in BY_HEAD:
        place = (slice(None), position, _head(model, edit, name), slice(None))
    else:
        if edit.head is not None:
            raise ValueError(
                f"head: {name} has no heads; try hook_z, hook_result or hook_pattern of its layer"
            )
        place = (slice(None), position, slice(None))
    if edit.block is None:
        return place
    if kind not in STREAM_WIDE:
        raise ValueError(
            f"block: {name} does not show the stream; blocks can be edited at "
            f"{', '.join(STREAM_WIDE)}"
        )
    return (*place[:-1], _columns(model, edit.block, name, kind))


def _head(model: LensTransformer, edit: Edit, name: str) -> slice:
    n_heads = model.layers[int(name.split(".")[1])].attn.n_heads
    if edit.head is None:
        return slice(None)
    head = counted("head", edit.head, n_heads, f"{name} has heads")
    return slice(head, head + 1)


def _columns(model: LensTransformer, block: str, name: str, kind: str) -> slice:
    """The block's columns, if they exist at this point of the model."""
    columns = model.stream[block]
    if kind == "hook_embed":
        exist = model.layers[0].reads
    else:
        layer = model.layers[int(name.split(".")[1])]
        after = slice(0, max(layer.reads.stop, layer.writes.stop))
        exist = {
            "hook_attn_out": layer.writes,
            "hook_result": layer.writes,
            "hook_resid_post": after,
            "hook_mlp_in": after,
            "hook_mlp_out": after,
        }.get(kind, layer.reads)
    if not (exist.start <= columns.start and columns.stop <= exist.stop):
        there = [
            other
            for other, part in model.stream.items()
            if exist.start <= part.start and part.stop <= exist.stop
        ]
        raise ValueError(f"block: {block} does not exist at {name}; there are {', '.join(there)}")
    return columns
