"""Results as plain values that JSON can hold."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor


def to_plain(value: Any) -> Any:
    """Convert a result to dictionaries, lists, strings, numbers and None.

    Dataclasses become dictionaries of their fields and properties, named tuples dictionaries of
    their fields, and tensors nested lists. NaN and infinity become None, because JSON has neither.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name in _public_names(value)}
    if isinstance(value, Tensor):
        return to_plain(value.tolist())
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return to_plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Path):
        return str(value)
    return value


def _public_names(result: Any) -> list[str]:
    """The fields of a dataclass instance, followed by the properties of its class."""
    names = [field.name for field in fields(result)]
    for name, attribute in vars(type(result)).items():
        if isinstance(attribute, property):
            names.append(name)
    return names
