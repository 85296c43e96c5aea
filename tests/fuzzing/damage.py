"""Damage that can be written down: a case is plain JSON, and these functions carry it out.

A value of a case may be a marked object, for what JSON cannot hold or should not spell out:

{"$text": [["[", 500], ["]", 500]]}   raw JSON text, pieces repeated
{"$tensor": [2, 3], "dtype": "int64", "fill": 1.0}
{"$tuple": [...]}   {"$set": [...]}   {"$complex": [re, im]}   {"$float": "nan"}
{"$canary": "reduce"}   an object whose pickle would leave a mark when it is loaded
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT = "$text"
PLACE = "\u0000place-{}\u0000"
"""Stands for a raw text while the rest is serialised; no case can contain it by accident."""


class Canary:
    """An object whose pickle creates a file when it is loaded by a reader that executes pickles."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.mark, "w"))


def marked(value: Any) -> str | None:
    """The mark of a value that stands for another one, or None."""
    if not isinstance(value, dict):
        return None
    marks = [name for name in value if isinstance(name, str) and name.startswith("$")]
    return marks[0] if len(marks) == 1 else None


def _unchanged(value: Any) -> Any:
    return value


def edited(values: Any, edits: list[Any], decode: Callable[[Any], Any] = _unchanged) -> Any:
    """Nested lists and dictionaries with some entries changed.

    An edit that does not fit is skipped.

    Args:
        values: the nested values; changed in place.
        edits: ["set", path, value], ["drop", path], ["rename", path, name] or ["swap", path, path].
        decode: what to do with each value before it is stored.

    Returns:
        The values.
    """
    for kind, path, *arguments in edits:
        if not path:
            if kind == "set":
                values = decode(arguments[0])
            continue
        found, holder = _find(values, path[:-1])
        key = path[-1]
        if not found or not _holds(holder, key, adding=kind == "set"):
            continue
        if kind == "set":
            holder[key] = decode(arguments[0])
        elif kind == "drop":
            del holder[key]
        elif kind == "rename" and isinstance(holder, dict):
            holder[arguments[0]] = holder.pop(key)
        elif kind == "swap":
            _swap(values, holder, key, arguments[0])
    return values


def _find(values: Any, path: list[Any]) -> tuple[bool, Any]:
    """Whether a path exists, and what is there."""
    for key in path:
        if not _holds(values, key):
            return False, None
        values = values[key]
    return True, values


def _holds(holder: Any, key: Any, adding: bool = False) -> bool:
    if isinstance(holder, dict):
        return adding or key in holder
    is_index = isinstance(key, int) and not isinstance(key, bool)
    return isinstance(holder, list) and is_index and 0 <= key < len(holder)


def _swap(values: Any, holder: Any, key: Any, other: list[Any]) -> None:
    """Exchange two entries, unless one contains the other."""
    found, other_holder = _find(values, other[:-1])
    if found and other and _holds(other_holder, other[-1]) and other_holder is holder:
        holder[key], holder[other[-1]] = holder[other[-1]], holder[key]


def render(value: Any) -> bytes:
    """A value as JSON text, with its raw texts put in."""
    raw: list[str] = []

    def shelve(entry: Any) -> Any:
        mark = marked(entry)
        if mark == TEXT:
            raw.append("".join(text * times for text, times in entry[TEXT]))
            return PLACE.format(len(raw) - 1)
        if mark == "$float":
            return float(entry["$float"])
        if isinstance(entry, dict):
            return {name: shelve(item) for name, item in entry.items()}
        if isinstance(entry, list):
            return [shelve(item) for item in entry]
        return entry

    text = json.dumps(shelve(value))
    for index, piece in enumerate(raw):
        text = text.replace(json.dumps(PLACE.format(index)), piece)
    return text.encode("utf-8", "surrogatepass")


def damaged(content: bytes, damages: list[Any]) -> bytes:
    """Bytes after a list of damages; positions count modulo the length.

    Args:
        content: the original bytes.
        damages: ["flip", place, bit], ["truncate", place], ["insert", place, text, times],
            ["delete", place, count], ["copy", place, count, target] or ["replace", text].

    Returns:
        The damaged bytes.
    """
    for kind, *arguments in damages:
        if kind == "replace":
            content = _as_bytes(arguments[0])
            continue
        place = arguments[0] % (len(content) + 1)
        if kind == "flip" and place < len(content):
            flipped = content[place] ^ (1 << arguments[1] % 8)
            content = content[:place] + bytes([flipped]) + content[place + 1 :]
        elif kind == "truncate":
            content = content[:place]
        elif kind == "insert":
            content = content[:place] + _as_bytes(arguments[1]) * arguments[2] + content[place:]
        elif kind == "delete":
            content = content[:place] + content[place + arguments[1] :]
        elif kind == "copy":
            target = arguments[2] % (len(content) + 1)
            part = content[place : place + arguments[1]]
            content = content[:target] + part + content[target:]
    return content


def _as_bytes(text: str) -> bytes:
    """Bytes written as text, one character each where possible."""
    return text.encode("latin-1", "replace")


def python_value(value: Any, mark: Path) -> Any:
    """A value of a case as the Python object that it stands for.

    Args:
        value: the value, perhaps a marked object.
        mark: the file that a canary would create.

    Returns:
        The object.
    """
    import torch

    kind = marked(value)
    if kind == "$tensor":
        dtype = getattr(torch, value.get("dtype", "float32"))
        return torch.full(value["$tensor"], value.get("fill", 0.0), dtype=torch.float64).to(dtype)
    if kind == "$tuple":
        return tuple(python_value(entry, mark) for entry in value["$tuple"])
    if kind == "$set":
        return {python_value(entry, mark) for entry in value["$set"]}
    if kind == "$complex":
        return complex(*value["$complex"])
    if kind == "$float":
        return float(value["$float"])
    if kind == "$canary":
        return Canary(str(mark))
    if kind == TEXT:
        return "".join(text * times for text, times in value[TEXT])
    if isinstance(value, dict):
        return {name: python_value(entry, mark) for name, entry in value.items()}
    if isinstance(value, list):
        return [python_value(entry, mark) for entry in value]
    return value
