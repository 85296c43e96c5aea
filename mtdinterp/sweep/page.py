"""The page of a sweep: what was varied, small charts of the results, and links to every cell."""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtdinterp.checkpoints.save import versions
from mtdinterp.formatting import MISSING, counted, listed, measured, printable
from mtdinterp.pages.blocks import Block, Cell, Document, Link, Links, Section, Table, Text
from mtdinterp.pages.page import render
from mtdinterp.storage import write_file
from mtdinterp.style import MOST_SERIES
from mtdinterp.sweep import attempts
from mtdinterp.sweep.board import clock
from mtdinterp.sweep.cells import CHECKPOINT, REPORT
from mtdinterp.sweep.charts import MOST_FACETS, Results, chart, numbers
from mtdinterp.sweep.directory import CELLS, Sweep
from mtdinterp.sweep.statistics import (
    SEEDS,
    Axes,
    choose_axes,
    number,
    setting_names,
    shown,
    values_of,
    varied_settings,
)
from mtdinterp.sweep.status import BLOCKED, BROKEN, STATES, Status, counts, statuses
from mtdinterp.sweep.table import CSV, PARQUET, Row, read_rows

PAGE = "index.html"
DEFAULT_COLUMNS = ("kl", "ratio", "beta")
MOST_ROWS = 40
"""A longer table is folded."""
MOST_NAMED = 20
"""Columns that an error message names."""
MOST_VALUES = 12
"""Values of a setting that are listed."""


def write_page(
    sweep: Sweep,
    x: str | None = None,
    facets: str | None = None,
    columns: list[str] | None = None,
) -> Path:
    """Write the page into the sweep's directory.

    Args:
        sweep: the sweep, whose cells may be in any state.
        x: the setting along the x axes; the varied number with most values if None.
        facets: the setting with one chart per value; the next such setting if None.
        columns: the columns of the table to draw; kl, ratio and beta if None.

    Returns:
        The path of the page.

    Raises:
        ValueError: if a setting or a column is unknown.
    """
    rows = {row["name"]: row for row in read_rows(sweep)}
    results = Results(sweep, choose_axes(sweep, x, facets), rows)
    known = numeric_columns(sweep, [*rows.values()])
    drawn = chosen_columns(known, columns) if rows else list(columns or ())
    document = compose(results, statuses(sweep), drawn)
    path = sweep.path / PAGE
    write_file(path, render(document).encode(errors="replace"))
    return path


def numeric_columns(sweep: Sweep, rows: Sequence[Row]) -> list[str]:
    """The columns that have a number in some row, without the settings."""
    settings = set(setting_names(sweep))
    names = [name for name in rows[0] if name not in settings] if rows else []
    return [name for name in names if any(number(row[name]) is not None for row in rows)]


def chosen_columns(known: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    """The columns to draw.

    Args:
        known: the columns that have numbers.
        columns: the columns that were asked for, or None for the usual ones.

    Returns:
        The columns, each once.

    Raises:
        ValueError: if a column is unknown or has no numbers.
    """
    if columns is None:
        return [name for name in DEFAULT_COLUMNS if name in known]
    for name in columns:
        if name not in known:
            raise ValueError(_unknown_column(name, known))
    return list(dict.fromkeys(columns))


def _unknown_column(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    more = f" and {len(known) - MOST_NAMED} more, see {CSV}" if len(known) > MOST_NAMED else ""
    first = ", ".join(known[:MOST_NAMED])
    return f"y: expected a column of numbers ({first}{more}); got {name[:80]!r}{hint}"


def compose(results: Results, found: Mapping[str, Status], columns: Sequence[str]) -> Document:
    """The document.

    Args:
        results: the finished cells and the axes.
        found: the state of every cell.
        columns: the columns to draw.

    Returns:
        The document.
    """
    sweep = results.sweep
    sections = [Section("What was varied", tuple(_varied(sweep, found)), name="varied")]
    failed = [status for status in found.values() if status.state in (BROKEN, BLOCKED)]
    if failed:
        sections.append(Section("Failures", (_failures(sweep, failed),), name="failures"))
    sections.append(Section("Results", tuple(_charts(results, columns)), name="results"))
    cells = (_cells(results, found, columns),)
    sections.append(Section("Cells", cells, name="cells"))
    origin = tuple(_origin(results))
    sections.append(Section("How it was made", origin, name="origin"))
    title = printable(sweep.title) or sweep.path.absolute().name
    return Document(f"Sweep: {title}", tuple(sections))


def _varied(sweep: Sweep, found: Mapping[str, Status]) -> list[Block]:
    """How many cells there are in each state, the varied settings and the common ones."""
    number_of = counts(dict(found))
    states = [f"{number_of[state]} {state}" for state in STATES if number_of[state]]
    cells = counted(len(found), "cell")
    sentence = f"{cells}: {', '.join(states)}." if states else f"{cells}."
    varied = varied_settings(sweep)
    rows = [(name, _values(values_of(name, sweep.entries))) for name in varied]
    common = []
    for name in setting_names(sweep):
        if name not in varied:
            common.append(f"{name} {shown(sweep.entries[0].settings.get(name))}")
    blocks: list[Block] = [Text((sentence,))]
    if rows:
        blocks.append(Table(("varied setting", "values"), tuple(rows)))
    if common:
        blocks.append(Text((f"The same everywhere: {', '.join(common)}.",), "soft"))
    return blocks


def _values(values: Sequence[Any]) -> str:
    texts = [shown(value) for value in values[:MOST_VALUES]]
    if len(values) > MOST_VALUES:
        texts.append(f"… ({len(values)} values, the last is {shown(values[-1])})")
    return ", ".join(texts)


def _failures(sweep: Sweep, failed: Sequence[Status]) -> Table:
    """The cells that failed, or that wait for one that did, with the reason."""
    rows = []
    for status in failed:
        name = status.entry.name
        rows.append((name, status.state, printable(status.reason), _log(sweep, name)))
    folded = f"{len(rows)} failures" if len(rows) > MOST_ROWS else ""
    return Table(("cell", "state", "reason", "log"), tuple(rows), folded)


def _log(sweep: Sweep, name: str) -> Cell:
    newest = attempts.newest(sweep.directory(name))
    if newest is None or not (newest.path / attempts.LOG).exists():
        return MISSING
    return Link("log", f"{CELLS}/{name}/{attempts.ATTEMPTS}/{newest.path.name}/{attempts.LOG}")


def _charts(results: Results, columns: Sequence[str]) -> list[Block]:
    """How to read the charts, and one row of them for each column."""
    if not results.rows:
        return [Text(("No cell is finished yet.",))]
    if not columns:
        return [Text(("No finished cell has any of the usual columns; choose some with --y.",))]
    blocks: list[Block] = [Text(tuple(_explanation(results.axes, results)), "soft")]
    for column in columns:
        blocks += [chart(results, column), numbers(results, column)]
    return blocks


def _explanation(axes: Axes, results: Results) -> list[str]:
    """What circles, marks and bars are, and what is not drawn."""
    seeds = [name for name in varied_settings(results.sweep) if name in SEEDS and name != axes.x]
    runs = "A mark is a run, and links to its report."
    if seeds:
        runs = (
            f"A mark is the mean over the values of {listed(seeds)}, and a small circle is a run; "
            "a mark without circles is a single run. Runs link to their reports."
        )
    lines = [
        f"{runs} Bars are 95% intervals: from two runs on from their standard error with Student's "
        "factor, for a single run from the metric's own standard error, if it has one. A bar "
        "without a cap leaves the frame."
    ]
    if axes.together:
        lines.append(f"Without an axis, as the other settings decide it: {listed(axes.together)}.")
    if len(results.lines) > MOST_SERIES:
        lines.append(f"Only the first {MOST_SERIES} of {len(results.lines)} lines are drawn.")
    if len(results.facets) > MOST_FACETS:
        lines.append(f"Only the first {MOST_FACETS} of {len(results.facets)} charts are drawn.")
    return lines


def _cells(results: Results, found: Mapping[str, Status], columns: Sequence[str]) -> Table:
    """All cells with their settings, numbers and files; folded if there are many."""
    varied = varied_settings(results.sweep)
    rows = []
    for name, status in found.items():
        settings = [shown(status.entry.settings.get(setting)) for setting in varied]
        row = results.rows.get(name, {})
        values = [_number(row, column) for column in columns]
        files = [_link(results.sweep, name, file) for file in (REPORT, CHECKPOINT)]
        rows.append((*settings, *values, status.state, *files, name))
    header = (*varied, *columns, "state", "report", "checkpoint", "cell")
    folded = f"All {len(rows)} cells" if len(rows) > MOST_ROWS else ""
    return Table(header, tuple(rows), folded)


def _number(row: Row, column: str) -> str:
    value = number(row.get(column))
    stderr = number(row.get(f"{column}_stderr"))
    if value is None:
        return MISSING
    return measured(value) if stderr is None else measured(value, stderr)


def _link(sweep: Sweep, name: str, file: str) -> Cell:
    """A link to a file of a cell if it is there."""
    if not (sweep.directory(name) / file).exists():
        return MISSING
    return Link(file.removesuffix(".html"), f"{CELLS}/{name}/{file}")


def _origin(results: Results) -> list[Block]:
    """The command, the files of the table, the versions of everything."""
    blocks: list[Block] = []
    if results.sweep.command:
        blocks.append(Text((printable(results.sweep.command),), "code"))
    files = [name for name in (PARQUET, CSV) if (results.sweep.path / name).exists()]
    if files:
        blocks.append(Links(tuple((f"All columns: {name}", name) for name in files)))
    lines = []
    for software, count in _made_with(results).items():
        lines.append(f"{counted(count, 'finished cell')}, run with {software}.")
    seconds = [number(row.get("run.seconds")) for row in results.rows.values()]
    total = sum(value for value in seconds if value is not None)
    if total:
        lines.append(f"Training took {clock(total)} in all.")
    lines.append(f"This page was made with {_versions(versions())}.")
    blocks.append(Text(tuple(lines), "soft"))
    return blocks


def _made_with(results: Results) -> Counter[str]:
    """How many cells were run with which versions."""
    found: Counter[str] = Counter()
    software = tuple(versions())
    for row in results.rows.values():
        known = {name: row.get(f"run.{name}") for name in software}
        recorded = {name: shown(value) for name, value in known.items() if value is not None}
        found[_versions(recorded) or "unknown versions"] += 1
    return found


def _versions(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())
