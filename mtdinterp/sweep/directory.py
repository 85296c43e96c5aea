"""The directory of a sweep: which cells belong to it, and where they are.

sweep.json     the cells of the grid as it was last run, in order
cells/         one directory per cell; cells of earlier grids stay
results.*      the table; see `table`
index.html     the page; see `page`
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp.bounded_files import expanded
from mtdinterp.checks import check_count
from mtdinterp.storage import write_file
from mtdinterp.sweep.cells import Cell, CellError, read_json, write_cell
from mtdinterp.sweep.planning import Plan
from mtdinterp.sweep.schedule import remaining_chains

SWEEP = "sweep.json"
CELLS = "cells"
SCHEMA = 1
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
CELL_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")


class SweepError(ValueError):
    """A directory that cannot be used for a sweep, with the reason in one sentence."""


@dataclass(frozen=True)
class Entry:
    """One cell of a sweep."""

    name: str
    parent: str | None
    settings: Mapping[str, Any]
    cost: float
    """The size of its training in arbitrary units, to order cells and to guess the time left."""
    threads: int = 1


@dataclass(frozen=True)
class Sweep:
    """A sweep on disk."""

    path: Path
    title: str
    varied: tuple[str, ...]
    """The settings that differ between cells."""
    entries: tuple[Entry, ...]
    """The cells in the order of the grid; a parent precedes its children."""
    command: str = ""
    """The command line that made it."""

    def directory(self, name: str) -> Path:
        """The directory of a cell."""
        return self.path / CELLS / name

    @property
    def directories(self) -> list[Path]:
        """The directories of all cells, in order."""
        return [self.directory(entry.name) for entry in self.entries]


def sweep_path(text: str) -> Path:
    """The directory that a command line names.

    Raises:
        SweepError: for a URL.
    """
    if URL.match(text):
        raise SweepError(
            f"{text}: expected a directory; a sweep needs one that all its workers share, such as "
            "a network file system, and cannot be on an object store"
        )
    return expanded(text)


def check_place(path: Path) -> None:
    """Refuse a directory that holds anything other than a sweep."""
    if not path.exists():
        return
    if not path.is_dir():
        raise SweepError(f"{path}: expected a directory, got a file")
    if any(path.iterdir()) and not (path / SWEEP).exists():
        raise SweepError(
            f"{path}: contains something other than a sweep; choose another directory with --out"
        )


def write_sweep(path: Path, plan: Plan, command: str) -> Sweep:
    """Write the files of all cells, and then the list of cells.

    Args:
        path: the sweep's directory; an older list of cells is replaced, its cells stay.
        plan: the cells.
        command: the command line that makes the sweep.

    Returns:
        The sweep.
    """
    check_place(path)
    entries = tuple(entry_of(cell) for cell in plan.cells)
    sweep = Sweep(path, plan.title, plan.varied, entries, command)
    # The list comes first, so that an interrupted call leaves a directory that is known as a sweep.
    content = json.dumps(as_dict(sweep), indent=1) + "\n"
    write_file(path / SWEEP, content.encode())
    for cell in plan.cells:
        write_cell(sweep.directory(cell.name), cell)
    return sweep


def entry_of(cell: Cell) -> Entry:
    """What the list of cells says about a cell."""
    return Entry(cell.name, cell.parent, dict(cell.settings), training_cost(cell), cell.threads)


def training_cost(cell: Cell) -> float:
    """Attention entries over the whole training, to compare cells with each other."""
    model = cell.model
    positions = model["length"] ** 2 if cell.recipe["supervision"] == "all" else model["length"]
    entries = positions * model["length"] * model["n_layers"] * model["n_heads"]
    return float(cell.recipe["steps"] * cell.recipe["batch_size"] * entries)


def as_dict(sweep: Sweep) -> dict[str, Any]:
    """A sweep as sweep.json contains it."""
    cells = []
    for entry in sweep.entries:
        cells.append(
            {
                "name": entry.name,
                "parent": entry.parent,
                "settings": dict(entry.settings),
                "cost": entry.cost,
                "threads": entry.threads,
            }
        )
    return {
        "schema": SCHEMA,
        "title": sweep.title,
        "varied": list(sweep.varied),
        "command": sweep.command,
        "cells": cells,
    }


def read_sweep(path: Path) -> Sweep:
    """The sweep in a directory.

    Raises:
        SweepError: if there is none, or its file is damaged.
    """
    try:
        values = read_json(path / SWEEP)
    except CellError as error:
        raise SweepError(str(error)) from None
    if values is None:
        raise SweepError(f"{path}: not a sweep ({SWEEP} is missing)")
    try:
        if values["schema"] != SCHEMA:
            raise SweepError(f"{path / SWEEP}: expected sweep schema {SCHEMA}")
        entries = tuple(_entry(entry) for entry in values["cells"])
        _check_parents(path, entries)
        varied = tuple(map(str, values["varied"]))
        return Sweep(path, str(values["title"]), varied, entries, str(values["command"]))
    except SweepError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SweepError(f"{path / SWEEP}: not written by mtdinterp sweep ({error})") from None


def _entry(values: Mapping[str, Any]) -> Entry:
    names = [name for name in (values["name"], values["parent"]) if name is not None]
    for name in names:
        # A name becomes part of a path.
        if not CELL_NAME.fullmatch(name) or name.startswith("."):
            raise SweepError(f"{SWEEP}: expected the name of a cell, got {name!r:.80}")
    settings = dict(values["settings"])
    cost = float(values["cost"])
    threads = check_count("threads", values["threads"])
    return Entry(values["name"], values["parent"], settings, cost, threads)


def _check_parents(path: Path, entries: Sequence[Entry]) -> None:
    """Refuse a list in which a cell comes before the one that it starts from."""
    seen: set[str | None] = {None}
    for entry in entries:
        if entry.parent not in seen:
            raise SweepError(f"{path / SWEEP}: {entry.name} comes before the cell it starts from")
        seen.add(entry.name)


def longest_first(entries: Sequence[Entry]) -> list[Entry]:
    """Cells in the order in which they should start: by what still depends on them.

    Starting with the longest chain, and the longest cell, keeps all workers busy until the end.
    """
    costs = {entry.name: entry.cost for entry in entries}
    parents = {entry.name: entry.parent for entry in entries}
    remaining = remaining_chains(costs, parents)
    return sorted(entries, key=lambda entry: -remaining[entry.name])
