"""Where an edit applies: its hook point, and the index of its place in the activation there.

Everything is checked before the model runs. An error about a wrong name or index lists the valid
ones.
"""

from torch import Tensor

from mtdinterp.checks import check_option
from mtdinterp.interventions.edits import Edit
from mtdinterp.interventions.indices import counted, positions_of
from mtdinterp.models import LensTransformer
from mtdinterp.models.hooked import HookedBlock

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
"""Hook points whose last axis is the final stream, where each block has its columns."""
WRITES = ("hook_attn_out", "hook_result")
"""Stream-wide hook points that show the columns that their layer writes."""
AFTER_THE_LAYER = ("hook_resid_post", "hook_mlp_in", "hook_mlp_out")
"""Stream-wide hook points that show the columns that exist after their layer."""

Index = tuple[slice | Tensor, ...]
"""An index with one entry per axis of an activation."""


def has_keys(name: str) -> bool:
    """Whether a hook point has axes [batch, head, query, key]."""
    return _kind(name) in SCORES


def hook_name(model: LensTransformer, edit: Edit) -> str:
    """The full name of the hook point of an edit."""
    names = list(model.hook_dict)
    if edit.layer is None:
        return check_option("hook", edit.hook, names)
    layer = counted("layer", edit.layer, len(model.blocks), "expected a layer in")
    prefix = f"blocks.{layer}."
    in_layer = {name.rsplit("hook_", 1)[1]: name for name in names if name.startswith(prefix)}
    short = str(edit.hook).removeprefix("hook_")
    return in_layer[check_option("hook", short, in_layer)]


def place_of(model: LensTransformer, edit: Edit, name: str, length: int) -> Index:
    """The index of the edited place in the activation of a hook point.

    Args:
        model: the model that has the hook point.
        edit: the edit, with positions, keys, head and block.
        name: the full name of the hook point.
        length: the number of positions of the run.

    Returns:
        One entry per axis of the activation.
    """
    if edit.key is not None and not has_keys(name):
        raise ValueError(
            f"key: {name} has no key axis; hook points with keys are {', '.join(SCORES)}"
        )
    place = _place_in_all_columns(model, edit, name, length)
    if edit.block is None:
        return place
    if _kind(name) not in STREAM_WIDE:
        raise ValueError(
            f"block: {name} is not the stream; blocks can be edited at {', '.join(STREAM_WIDE)}"
        )
    return (*place[:-1], _columns(model, edit.block, name))


def _place_in_all_columns(model: LensTransformer, edit: Edit, name: str, length: int) -> Index:
    """The place of an edit in all columns of the last axis."""
    everything = slice(None)
    position = positions_of(edit.position, length)
    if has_keys(name):
        keys = positions_of(edit.key, length, "key")
        if isinstance(position, Tensor) and isinstance(keys, Tensor):
            position = position[:, None]  # all chosen keys of all chosen queries, not pairs
        return everything, _head(model, edit, name), position, keys
    if _kind(name) in BY_HEAD:
        return everything, position, _head(model, edit, name), everything
    if edit.head is not None:
        raise ValueError(
            f"head: {name} has no heads; try hook_z, hook_result or hook_pattern of its layer"
        )
    return everything, position, everything


def _kind(name: str) -> str:
    """The last part of a hook point's name, such as hook_pattern."""
    return name.rsplit(".", 1)[-1]


def _layer_of(model: LensTransformer, name: str) -> HookedBlock:
    """The layer that a hook point blocks.LAYER.… belongs to."""
    return model.layers[int(name.split(".")[1])]


def _head(model: LensTransformer, edit: Edit, name: str) -> slice:
    if edit.head is None:
        return slice(None)
    n_heads = _layer_of(model, name).attn.n_heads
    head = counted("head", edit.head, n_heads, f"{name} has heads")
    return slice(head, head + 1)


def _columns(model: LensTransformer, block: str, name: str) -> slice:
    """The columns of a block, if they exist at this hook point."""
    columns = model.stream[block]
    existing = _existing_columns(model, name)
    if not _contains(existing, columns):
        names = [other for other, part in model.stream.items() if _contains(existing, part)]
        raise ValueError(f"block: {name} has no block {block}; its blocks are {', '.join(names)}")
    return columns


def _existing_columns(model: LensTransformer, name: str) -> slice:
    """The columns of the final stream that exist at a stream-wide hook point."""
    kind = _kind(name)
    if kind == "hook_embed":
        return model.layers[0].reads
    layer = _layer_of(model, name)
    if kind in WRITES:
        return layer.writes
    if kind in AFTER_THE_LAYER:
        return slice(0, max(layer.reads.stop, layer.writes.stop))
    return layer.reads


def _contains(outer: slice, inner: slice) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop
