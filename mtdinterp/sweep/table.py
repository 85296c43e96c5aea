"""The results of a sweep as one tidy table: one row per finished cell.

name            the cell
the settings    as the grid names them; a list is JSON
the metrics     of the last evaluation; `kl_of_…` is the KL of an estimator on the same sequences
probe.field     every scalar that a probe found, the columns of a probe next to each other
weights_sha256  of the trained weights
run.…           where and how long the cell ran; only these columns differ between two equal sweeps

A value that a cell does not have is missing in both files. CSV cannot tell a missing value from an
empty text; Parquet can.
"""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mtdinterp.storage import write_file
from mtdinterp.sweep.cells import DONE, CellError, is_done, read_cell, read_json
from mtdinterp.sweep.directory import Entry, Sweep

PARQUET = "results.parquet"
CSV = "results.csv"
GROUPS = ("settings", "metrics", "probes", "weights", "run")
"""The columns, from left to right."""
LARGEST_INTEGER = 2**63 - 1
"""Parquet has no larger integers."""

Row = dict[str, Any]
Parts = dict[str, dict[str, Any]]
"""The columns of one cell by group."""


def write_table(sweep: Sweep) -> list[Path]:
    """Write the table as Parquet and as CSV.

    Returns:
        Both paths; none if no cell is finished.
    """
    rows = read_rows(sweep)
    if not rows:
        return []
    paths = [sweep.path / PARQUET, sweep.path / CSV]
    write_file(paths[0], as_parquet(rows))
    write_file(paths[1], as_csv(rows))
    return paths


def read_rows(sweep: Sweep) -> list[Row]:
    """The rows of all finished cells, in the order of the grid; all have the same columns."""
    cells: list[Parts] = []
    for entry in sweep.entries:
        directory = sweep.directory(entry.name)
        try:
            done = read_json(directory / DONE)
            # Numbers of probes that the grid no longer asks for are not those of the table.
            if done is not None and is_done(directory, read_cell(directory)):
                cells.append(_parts(entry, done))
        except CellError:
            continue
    names = column_names(cells)
    return [_row(parts, names) for parts in cells]


def column_names(cells: Iterable[Parts]) -> list[str]:
    """The columns of all cells, group by group; within a group as they first appear.

    A name that two groups have belongs to the first: a metric may have the name of a setting, such
    as `step`, and the setting was given.
    """
    known = list(cells)
    names: dict[str, None] = {}
    for group in GROUPS:
        found = list(dict.fromkeys(name for parts in known for name in parts[group]))
        if group == "probes":
            found = _by_probe(found)
        names.update(dict.fromkeys(found))
    return list(names)


def _by_probe(names: list[str]) -> list[str]:
    """Columns sorted by their probe, in the order in which the probes first appear."""
    probes = list(dict.fromkeys(map(_probe_of, names)))
    places = {probe: place for place, probe in enumerate(probes)}
    return sorted(names, key=lambda name: places[_probe_of(name)])


def _probe_of(name: str) -> str:
    return name.partition(".")[0]


def _parts(entry: Entry, done: Mapping[str, Any]) -> Parts:
    """The columns of one finished cell."""
    run = _named(done.get("run"))
    name = {"name": entry.name}
    return {
        "settings": name | _named(entry.settings) | name,
        "metrics": _named(done.get("metrics")),
        "probes": _named(done.get("probes")),
        "weights": {"weights_sha256": done.get("weights_sha256")},
        "run": {f"run.{name}": value for name, value in run.items()},
    }


def _named(values: Any) -> dict[str, Any]:
    """Values by column; none if a file has something else in their place."""
    if not isinstance(values, Mapping):
        return {}
    return {plain(name): value for name, value in values.items()}


def _row(parts: Parts, names: Iterable[str]) -> Row:
    values: Row = {}
    for group in reversed(GROUPS):
        values |= parts[group]  # the first group that has a name is the last to write it
    return {name: plain(values.get(name)) for name in names}


def plain(value: Any) -> Any:
    """A value as a table can hold it: a finite number, a truth value, a text or None."""
    if isinstance(value, list | dict):
        value = json.dumps(value, ensure_ascii=False)
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # JSON can hold half a character
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and abs(value) > LARGEST_INTEGER:
        return str(value)
    return value


def as_csv(rows: list[Row]) -> bytes:
    """The table as CSV; a missing value is empty."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[Row]) -> bytes:
    """The table as Parquet; a column of mixed types is text."""
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, list[Any]] = {}
    for name in rows[0]:
        columns[name] = _column([row[name] for row in rows])
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), content)
    return content.getvalue()


def _column(values: list[Any]) -> list[Any]:
    """Values of one type: numbers stay numbers, anything mixed becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2:
        return values
    if kinds == {int, float}:
        return [None if value is None else float(value) for value in values]
    return [None if value is None else str(value) for value in values]
