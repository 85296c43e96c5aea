"""Converts edits of a state to edits of the library, for sources that need no other run.

`scene` looks up the sources that need another run.
"""

from typing import Any

import torch

from mtdinterp.app.state import EditState, Range
from mtdinterp.interventions import Edit, Share, steering_edit


def plain_edit(edit: EditState) -> Edit:
    """The edit of the library, with "zero" as a placeholder for a source that needs another run.

    Raises:
        ValueError: if the source does not fit the edited hook point.
    """
    source = edit.source
    if source.kind == "weights":
        return _weights_edit(edit)
    if source.kind == "share":
        return _share_edit(edit)
    value: Any = "zero"
    if source.kind == "number":
        value = source.value
    elif source.kind == "values":
        value = torch.tensor(source.values, dtype=torch.float64)
    position = _index(edit.position)
    key = _index(edit.key)
    return Edit(edit.hook, value, position, edit.head, edit.block, edit.layer, key)


def _weights_edit(edit: EditState) -> Edit:
    """Chosen weights in the attention of a layer at the last position."""
    if not _is_pattern(edit) or edit.position is not None or edit.key is not None:
        raise ValueError(
            "source: weights can only be written into a layer's attention at the last position; "
            "choose the hook point pattern, and leave out positions and keys"
        )
    weights = torch.tensor(edit.source.values, dtype=torch.float64)
    return steering_edit(weights, layer=-1 if edit.layer is None else edit.layer)


def _share_edit(edit: EditState) -> Edit:
    """A share of each attention row for some keys."""
    if edit.key is None or not _is_pattern(edit):
        raise ValueError(
            "source: a share of the row applies to attention only; choose the hook point pattern, "
            "and give its keys"
        )
    share = Share(edit.source.value or 0.0, keys=slice(*edit.key))
    return Edit(edit.hook, share, _index(edit.position), edit.head, layer=edit.layer)


def _is_pattern(edit: EditState) -> bool:
    return edit.hook.removeprefix("hook_") == "pattern"


def _index(places: Range | None) -> int | slice | None:
    """One position as its number, several as a slice."""
    if places is None:
        return None
    return places[0] if places[1] == places[0] + 1 else slice(*places)
