"""Grid files: YAML that lists the settings of many cells.

A key is a flag of `mtdinterp train`, with underscores, and its value one value or a list of them;
the cells are all combinations. Five keys have a meaning of their own:

grids     a list of grids; the keys next to it are their common settings
zip       lists that vary together instead of being combined
exclude   combinations to leave out
from      a key along which each cell starts from the model of the cell before
title     what the grid is about

Nothing heavy is imported, and nothing in a grid file causes an import.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp.bounded_files import UnreadableFile, expanded, read_bounded
from mtdinterp.sweep.grid_values import GridError, parse, parse_json, shown

SHIPPED = Path(__file__).parent / "grids"
"""The grid files that ship with the package."""
SUFFIXES = (".yaml", ".yml", ".json")
MOST_BYTES = 10**6
MOST_CELLS = 100_000
JOINED = ("zip", "exclude")
"""Keys of which a grid has its own entries and the common ones."""
RESERVED = ("title", "grids", "zip", "exclude", "from")
"""Keys that are not settings."""

Settings = dict[str, Any]


@dataclass(frozen=True)
class Combination:
    """One combination of settings."""

    settings: Settings
    parent: int | None = None
    """The place in the grid of the cell whose model this one starts from."""


@dataclass(frozen=True)
class Grid:
    """All combinations of a grid file, in its order; a parent always precedes its children."""

    title: str
    combinations: tuple[Combination, ...]
    varied: tuple[str, ...]
    """The settings that differ between combinations, in the order of the file."""


def shipped_grids() -> dict[str, Path]:
    """The grids that ship with the package, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.yaml"))}


def find_grid(name: str) -> Path:
    """The grid file that a path or the name of a shipped grid refers to.

    A file that exists takes precedence over a name.
    """
    path = expanded(name)
    if path.exists():
        return path
    known = shipped_grids()
    if name in known:
        return known[name]
    raise GridError(
        f"{name}: no such grid file, and no grid of that name ships with mtdinterp (expected one "
        f"of {', '.join(known)})"
    )


def read_grid(path: Path) -> Grid:
    """Read a grid file and expand it.

    Args:
        path: a YAML or JSON file.

    Returns:
        The grid.

    Raises:
        GridError: with one sentence that names the file and the key.
    """
    if path.suffix not in SUFFIXES:
        raise GridError(f"{path}: expected a grid file that ends in .yaml, .yml or .json")
    try:
        content = read_bounded(path, MOST_BYTES)
    except UnreadableFile as error:
        raise GridError(f"{path}: {error}") from None
    try:
        return expand(parse_json(content) if path.suffix == ".json" else parse(content))
    except GridError as error:
        raise GridError(f"{path}: {error}") from None


def expand(contents: Any) -> Grid:
    """All combinations of the contents of a grid file."""
    if not isinstance(contents, Mapping):
        raise GridError(f"expected settings by name, got {type(contents).__name__}")
    title = contents.get("title", "")
    if not isinstance(title, str):
        raise GridError(f"title: expected a text, got {shown(title)}")
    combinations: list[Combination] = []
    for part in _parts(contents):
        offset = len(combinations)
        for found in _combinations(part):
            parent = None if found.parent is None else found.parent + offset
            combinations.append(Combination(found.settings, parent))
            if len(combinations) > MOST_CELLS:
                raise GridError(f"expected at most {MOST_CELLS:,} cells, got more")
    if not combinations:
        raise GridError("expected at least one cell, but every combination is excluded")
    return Grid(title, tuple(combinations), _varied(combinations))


def _parts(contents: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The grids of a file, each with the common settings."""
    common = {key: value for key, value in contents.items() if key not in ("title", "grids")}
    if "grids" not in contents:
        return [common]
    grids = contents["grids"]
    if not isinstance(grids, list) or not grids:
        raise GridError("grids: expected a list of grids")
    parts = []
    for part in grids:
        if not isinstance(part, Mapping):
            raise GridError(f"grids: expected settings by name, got {shown(part)}")
        for key in ("title", "grids"):
            if key in part:
                raise GridError(f"grids: {key} belongs at the top of the file")
        merged = {**common, **part}
        for key in JOINED:
            if key in common and key in part:
                merged[key] = [*_listed(common[key]), *_listed(part[key])]
        parts.append(merged)
    return parts


def _listed(value: Any) -> list[Any]:
    """A list as it is, and anything else as a list of one."""
    return value if isinstance(value, list) else [value]


Axis = list[Settings]
"""The values of settings that vary together."""


def _combinations(part: Mapping[str, Any]) -> list[Combination]:
    """The combinations of one grid."""
    axes = _axes(part)
    excluded = _excluded(part)
    chained = _chained_axis(part, axes)
    if math.prod(len(axis) for axis in axes) > MOST_CELLS:
        raise GridError(f"expected at most {MOST_CELLS:,} cells, got more")
    found: list[Combination] = []
    places: dict[tuple[int, ...], int] = {}
    for place in itertools.product(*(range(len(axis)) for axis in axes)):
        settings: Settings = {}
        for axis, index in zip(axes, place, strict=True):
            settings |= axis[index]
        if any(_matches(settings, pattern) for pattern in excluded):
            continue
        parent = None
        if chained is not None:
            parent = next(
                (places[step] for step in _before(place, chained) if step in places), None
            )
        places[place] = len(found)
        found.append(Combination(settings, parent))
    return found


def _axes(part: Mapping[str, Any]) -> list[Axis]:
    """One axis per setting, and one per group of zipped settings, in the order of the file."""
    axes: list[Axis] = []
    taken: set[str] = set()
    for key, value in part.items():
        if key == "zip":
            for group in _listed(value):
                axes.append(_zipped(group))
                again = sorted(taken & group.keys())
                if again:
                    raise GridError(f"zip: {again[0]} is given twice")
                taken |= group.keys()
        elif key not in RESERVED:
            axes.append([{key: entry} for entry in _values(key, value)])
    twice = sorted(taken & part.keys())
    if twice:
        raise GridError(f"{twice[0]} is given both in zip and outside of it")
    return axes


def _zipped(group: Any) -> Axis:
    """Settings that vary together."""
    if not isinstance(group, Mapping) or not group:
        raise GridError("zip: expected lists of values by name, of the same length")
    lists = {key: _values(key, value) for key, value in group.items()}
    sizes = {len(values) for values in lists.values()}
    if len(sizes) > 1:
        lengths = ", ".join(f"{key} has {len(values)}" for key, values in lists.items())
        raise GridError(f"zip: expected lists of the same length, but {lengths}")
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _values(key: str, value: Any) -> list[Any]:
    """The values of one setting; a single value is a list of one."""
    values = _listed(value)
    if not values:
        raise GridError(f"{key}: expected at least one value")
    for entry in values:
        for part in _listed(entry):
            if part is not None and not isinstance(part, str | int | float | bool):
                raise GridError(f"{key}: expected numbers, texts, true or false, got {shown(part)}")
    return values


def _excluded(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The patterns of combinations to leave out."""
    patterns = _listed(part.get("exclude") or [])
    named: set[str] = set()
    for axis in _axes(part):
        named |= axis[0].keys()
    for pattern in patterns:
        if not isinstance(pattern, Mapping) or not pattern:
            raise GridError("exclude: expected a list of settings by name")
        unknown = sorted(set(pattern) - named)
        if unknown:
            raise GridError(f"exclude: {unknown[0]} is not a setting of this grid")
    return patterns


def _matches(settings: Settings, pattern: Mapping[str, Any]) -> bool:
    """Whether a combination has all values of a pattern; a list stands for any of its values."""
    for key, wanted in pattern.items():
        if settings[key] not in _listed(wanted) and settings[key] != wanted:
            return False
    return True


def _chained_axis(part: Mapping[str, Any], axes: Sequence[Axis]) -> int | None:
    """The place of the axis along which models are handed on."""
    key = part.get("from")
    if key is None:
        return None
    for place, axis in enumerate(axes):
        if isinstance(key, str) and key in axis[0] and len(axis) > 1:
            return place
    raise GridError(f"from: expected a setting with several values, got {shown(key)}")


def _before(place: tuple[int, ...], axis: int) -> Iterator[tuple[int, ...]]:
    """The combinations before one along an axis, the nearest first."""
    for index in reversed(range(place[axis])):
        yield (*place[:axis], index, *place[axis + 1 :])


def _varied(combinations: Sequence[Combination]) -> tuple[str, ...]:
    """The settings that do not have the same value everywhere."""
    first: Settings = {}
    varied: dict[str, None] = {}
    for number, combination in enumerate(combinations):
        for key in {**first, **combination.settings}:
            value = combination.settings.get(key)
            if number == 0:
                first[key] = value
            elif first.get(key) != value:
                varied[key] = None
    order: dict[str, None] = {}
    for combination in combinations:
        order.update(dict.fromkeys(combination.settings))
    return tuple(key for key in order if key in varied)
