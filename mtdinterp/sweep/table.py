"""The results of a sweep as one tidy table: one row per finished cell.

name            the cell
the settings    as the grid names them
the metrics     of the last evaluation; `kl_of_…` is the KL of an estimator on the same sequences
probe.field     every scalar that a probe found
run.…           where and how long the cell ran; only these columns differ between two equal sweeps
"""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mtdinterp.storage import write_file
from mtdinterp.sweep.cells import DONE, CellError, read_json
from mtdinterp.sweep.directory import Entry, Sweep

PARQUET = "results.parquet"
CSV = "results.csv"
GROUPS = ("metrics", "probes", "run")
"""The parts of done.json that become columns."""

Row = dict[str, Any]


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
    rows = []
    for entry in sweep.entries:
        try:
            done = read_json(sweep.directory(entry.name) / DONE)
        except CellError:
            continue
        if done is not None:
            rows.append(_row(entry, done))
    names = column_names(rows)
    return [{name: row.get(name) for name in names} for row in rows]


def column_names(rows: Iterable[Row]) -> list[str]:
    """The columns of all rows: in the order in which they first appear, those of the run last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return sorted(names, key=lambda name: name.startswith("run."))


def _row(entry: Entry, done: dict[str, Any]) -> Row:
    row: Row = {"name": entry.name}
    for name, value in entry.settings.items():
        row[name] = json.dumps(value) if isinstance(value, list | dict) else value
    for group in GROUPS:
        values = done.get(group)
        for name, value in (values if isinstance(values, dict) else {}).items():
            column = f"run.{name}" if group == "run" else name
            # A metric may have the name of a setting, such as "step"; the setting was given.
            row.setdefault(column, value)
    row["weights_sha256"] = done.get("weights_sha256")
    return row


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

    columns = {name: _column([row[name] for row in rows]) for name in rows[0]}
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
