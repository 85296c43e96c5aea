"""Results as plain values: what JSON can hold, with nothing left out."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor


def to_plain(value: Any) -> Any:
    """Dataclasses by field and property, named tuples by field, tensors as lists, and null for what
    is not a number."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        names += [name for name, entry in vars(type(value)).items() if isinstance(entry, property)]
        return {name: to_plain(getattr(value, name)) for name in names}
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
