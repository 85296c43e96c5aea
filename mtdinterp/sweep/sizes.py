"""The sizes of cells: everything that decides how long a step takes and how much memory it needs.

Cells of one size differ in seeds, learning rates and the number of steps only, so one of them is
measured for all. If there are many sizes, some lengths of each family are measured, and the others
follow from them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtdinterp.sweep.cells import Cell, canonical

MOST_MEASURED = 24
"""With more sizes than this, only three lengths of each family are measured."""
RECIPE_FIELDS = ("batch_size", "micro_batch_size", "targets", "loss", "supervision", "device")
"""The fields of a recipe that decide the time of a step."""
USUAL = {"d_mlp": 0, "micro_batch_size": None, "loss": "mse", "supervision": "last"}
"""Values that a label leaves out, even if other sizes have others."""


@dataclass(frozen=True)
class Size:
    """What decides the time and the memory of a step."""

    fields: Mapping[str, Any] = field(compare=False)
    key: str
    length: int
    family: str
    """The key without the length: sizes of one family can be interpolated."""
    probed_like: str
    """Cells with the same value take about as long to probe and report on, at the same length."""


def size_of(cell: Cell) -> Size:
    """The size of a cell."""
    task = {name: value for name, value in cell.task.items() if _is_scalar(value)}
    model = {name: value for name, value in cell.model.items() if name != "length"}
    recipe = {name: cell.recipe[name] for name in RECIPE_FIELDS}
    fields = {**model, **task, **recipe, "threads": cell.threads}
    measure = cell.measure.to_dict()
    length = cell.model["length"]
    family = canonical({**fields, "measure": measure})
    kind = {name: cell.model[name] for name in ("architecture", "n_layers", "n_heads")}
    return Size(
        fields={"length": length, **fields},
        key=canonical([length, family]),
        length=length,
        family=family,
        probed_like=canonical([kind, measure]),
    )


def labels(sizes: Sequence[Size]) -> dict[str, str]:
    """A short name for every size, which shows what differs between them.

    Returns:
        The names by the sizes' keys.
    """
    # What differs between architectures only goes without saying.
    values: dict[tuple[str, str], set[str]] = {}
    for size in sizes:
        for name, value in size.fields.items():
            values.setdefault((name, size.fields["architecture"]), set()).add(canonical(value))
    varied = list(dict.fromkeys(name for (name, _), some in values.items() if len(some) > 1))
    found = {}
    for size in sizes:
        parts = [str(size.fields["architecture"]), f"T={size.length}"]
        for name in varied:
            if name == "length":
                continue
            value = size.fields.get(name)
            # The width of the value tables is the order unless somebody sets it.
            is_implied = name == "d_rel" and value == size.fields.get("order")
            if value is not None and value != USUAL.get(name) and not is_implied:
                parts.append(f"{name}={value}")
        found[size.key] = " ".join(parts)
    return found


def to_measure(sizes: Sequence[Size]) -> list[Size]:
    """The sizes to measure: all, or of each family the shortest, a middle and the longest length.

    Args:
        sizes: all sizes, each once.

    Returns:
        Those to measure, in the same order.
    """
    if len(sizes) <= MOST_MEASURED:
        return list(sizes)
    chosen: set[str] = set()
    for family in families(sizes):
        chosen |= {family[place].key for place in (0, len(family) // 2, -1)}
    return [size for size in sizes if size.key in chosen]


def families(sizes: Sequence[Size]) -> list[list[Size]]:
    """Sizes that differ only in length, each family in the order of its lengths."""
    found: dict[str, list[Size]] = {}
    for size in sizes:
        found.setdefault(size.family, []).append(size)
    return [sorted(family, key=lambda size: size.length) for family in found.values()]


def interpolate(known: Mapping[int, float], length: int) -> float:
    """The value at a length: a power law through its neighbours, or through the two nearest ends.

    Args:
        known: positive values by length, at least one; with only one, the value is proportional to
            the length.
        length: where to read the value.

    Returns:
        The value.
    """
    lengths = sorted(known)
    if length in known:
        return known[length]
    if len(lengths) == 1:
        return known[lengths[0]] * length / lengths[0]
    place = sum(entry < length for entry in lengths)
    place = min(max(place, 1), len(lengths) - 1)
    low, high = lengths[place - 1], lengths[place]
    exponent = math.log(known[high] / known[low]) / math.log(high / low)
    return known[low] * (length / low) ** exponent


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)
