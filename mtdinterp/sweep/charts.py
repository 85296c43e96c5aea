"""The charts of a sweep's page: one small chart per facet, with a line per group of models."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mtdinterp.formatting import measured, with_interval
from mtdinterp.pages.blocks import Dot, Facet, Facets, Line, Mean, Sample, Table
from mtdinterp.style import MOST_SERIES
from mtdinterp.sweep.axis import LARGE_SHARE, Scale, scale_of
from mtdinterp.sweep.cells import REPORT
from mtdinterp.sweep.directory import CELLS, Entry, Sweep
from mtdinterp.sweep.statistics import (
    Axes,
    Estimate,
    Group,
    estimate,
    grouped,
    is_number,
    key_of,
    number,
    shown,
    values_of,
)
from mtdinterp.sweep.table import Row

Y_NAMES = {
    "kl": "KL(truth ‖ prediction), nats",
    "ratio": "KL ÷ KL of one-step mirror descent",
    "beta": "β of the last evaluation",
}
"""The y axes of columns; any other has the column's name."""
ONE_STEP = "one step of mirror descent"
REFERENCES = {
    "kl": {
        "kl_of_one_step": ("one_step", ONE_STEP),
        "kl_of_exact_bayes": ("exact_bayes", "the exact posterior mean"),
    },
    "beta": {"optimal_beta": ("one_step", "tuned β")},
}
"""Columns to compare a column with, each with the key of its style and its label."""
CONSTANTS = {"ratio": (1.0, "one_step", ONE_STEP)}
"""The same for values that are always the same."""
FLAT = {"optimal_beta": "optimal_flat"}
"""Columns of optima, each with the column that says that the optimum is flat. The value of a flat
optimum is noise, so it is left out."""
MOST_FACETS = 12


@dataclass(frozen=True)
class Results:
    """What is drawn: the finished cells and the axes."""

    sweep: Sweep
    axes: Axes
    rows: Mapping[str, Row]
    """The table's rows by the names of their cells."""

    @cached_property
    def finished(self) -> list[Entry]:
        """The cells that have a row."""
        return [entry for entry in self.sweep.entries if entry.name in self.rows]

    @cached_property
    def groups(self) -> list[Group]:
        """The finished cells by facet, line and x."""
        return grouped(self.finished, self.axes)

    @cached_property
    def facets(self) -> list[Any]:
        """The values of the setting with a chart each."""
        return [None] if self.axes.facets is None else values_of(self.axes.facets, self.finished)

    @cached_property
    def lines(self) -> list[tuple[Any, ...]]:
        """The combinations of values with a line each."""
        found = {group.line_key: group.line for group in self.groups}
        if all(is_number(value) for line in found.values() for value in line):
            return sorted(found.values())
        return list(found.values())

    @cached_property
    def scale(self) -> Scale:
        """The x axis. It has room for the cells that are not finished, too."""
        name = self.axes.x
        if name is None:
            return Scale({key_of(None): 0.0}, ((0.0, "all"),), "", connected=False)
        return scale_of(name, values_of(name, self.sweep.entries))

    @cached_property
    def by_facet(self) -> dict[str, list[Group]]:
        """The groups of each facet by its key, from left to right."""
        places = self.scale.places
        found: dict[str, list[Group]] = {}
        for group in sorted(self.groups, key=lambda group: places[key_of(group.x)]):
            found.setdefault(key_of(group.facet), []).append(group)
        return found

    def values(self, group: Group, column: str) -> dict[str, float]:
        """The numbers of a group's cells in a column, by the cells' names."""
        flat = FLAT.get(column)
        rows = {entry.name: self.rows[entry.name] for entry in group.entries}
        if flat is not None:
            rows = {name: row for name, row in rows.items() if not row.get(flat)}
        found = {name: number(row.get(column)) for name, row in rows.items()}
        return {name: value for name, value in found.items() if value is not None}

    def summary(self, group: Group, column: str) -> Estimate | None:
        """The mean of a group with its interval; None if no cell has a number."""
        values = self.values(group, column)
        if not values:
            return None
        stderr = None
        if len(values) == 1:
            only = next(iter(values))
            stderr = number(self.rows[only].get(f"{column}_stderr"))
        return estimate([*values.values()], stderr)


def chart(results: Results, column: str) -> Facets:
    """The small charts of one column."""
    title = f"{column}, against {results.axes.x}" if results.axes.x else column
    facets = tuple(
        Facet(
            _facet_title(results.axes, value),
            tuple(_samples(results, value, column)),
            tuple(_references(results, value, column)),
        )
        for value in results.facets[:MOST_FACETS]
    )
    scale = results.scale
    return Facets(
        title,
        facets,
        scale.name,
        Y_NAMES.get(column, column),
        scale.ticks,
        scale.connected,
        _spans_magnitudes(facets),
    )


def _facet_title(axes: Axes, value: Any) -> str:
    return "" if axes.facets is None else f"{axes.facets} = {shown(value)}"


def _spans_magnitudes(facets: Sequence[Facet]) -> bool:
    """Whether all values are positive, and some much larger than others."""
    samples = [sample for facet in facets for sample in facet.samples]
    values = [dot.value for sample in samples for dot in sample.dots]
    values += [mean.value for sample in samples for mean in sample.means]
    if not values or min(values) <= 0:
        return False
    return max(values) > LARGE_SHARE * min(values)


def _samples(results: Results, facet: Any, column: str) -> list[Sample]:
    """The lines of one chart; one without any number is left out."""
    samples = []
    for index, line in enumerate(results.lines[:MOST_SERIES]):
        line_key = key_of(list(line))
        groups = [group for group in results.by_facet[key_of(facet)] if group.line_key == line_key]
        label = line_label(results.axes, line)
        key = f"series_{index + 1}" if results.axes.lines else "model"
        sample = _sample(results, groups, column, key, label)
        if sample.means:
            samples.append(sample)
    return samples


def _sample(results: Results, groups: Sequence[Group], column: str, key: str, label: str) -> Sample:
    """One line; a group of a single run has a mean and no dot."""
    dots: list[Dot] = []
    means: list[Mean] = []
    for group in groups:
        found = results.summary(group, column)
        if found is None:
            continue
        x = results.scale.places[key_of(group.x)]
        ends = (found.low, found.high)
        runs = [
            Dot(x, value, name, _report(results, name))
            for name, value in results.values(group, column).items()
        ]
        if len(runs) == 1:
            means.append(Mean(x, found.mean, *ends, runs[0].label, runs[0].file))
        else:
            means.append(Mean(x, found.mean, *ends, f"{label}, mean of {found.count}"))
            dots += runs
    return Sample(key, label, tuple(dots), tuple(means))


def line_label(axes: Axes, line: tuple[Any, ...]) -> str:
    """The settings that tell a line apart."""
    parts = []
    for name, value in zip(axes.lines, line, strict=True):
        parts.append(shown(value) if isinstance(value, str) else f"{name} {shown(value)}")
    return ", ".join(parts) or "trained models"


def _report(results: Results, name: str) -> str:
    """The address of a cell's report on the page, or nothing if it has none."""
    has_report = (results.sweep.directory(name) / REPORT).exists()
    return f"{CELLS}/{name}/{REPORT}" if has_report else ""


def _references(results: Results, facet: Any, column: str) -> list[Line]:
    """What a column is compared with in one facet."""
    if column in CONSTANTS:
        value, key, label = CONSTANTS[column]
        points = [(place, value) for place in results.scale.places.values()]
        return [Line(key, label, tuple(points))]
    lines = []
    for source, (key, label) in REFERENCES.get(column, {}).items():
        found = _reference_points(results, facet, source)
        common = _common(found)
        if common is not None:
            lines.append(Line(key, label, common))
        else:
            each = f"{label}, for each line"
            lines += [Line(key, each, tuple(points)) for points in found]
    return lines


Points = list[tuple[float, float]]


def _reference_points(results: Results, facet: Any, source: str) -> list[Points]:
    """The mean reference at every x, for each line that has any."""
    found: dict[str, Points] = {}
    for group in results.by_facet[key_of(facet)]:
        summary = results.summary(group, source)
        if summary is not None:
            x = results.scale.places[key_of(group.x)]
            found.setdefault(group.line_key, []).append((x, summary.mean))
    return list(found.values())


def _common(lines: Sequence[Points]) -> tuple[tuple[float, float], ...] | None:
    """One line in place of several that agree wherever they overlap; None if they do not."""
    merged: dict[float, float] = {}
    for points in lines:
        for x, y in points:
            if not math.isclose(merged.setdefault(x, y), y, rel_tol=1e-6):
                return None
    return tuple(sorted(merged.items()))


def numbers(results: Results, column: str) -> Table:
    """The means of a column with their intervals, folded."""
    axes = results.axes
    names = [name for name in (axes.facets, *axes.lines, axes.x) if name is not None]
    rows = []
    for facet in results.facets:
        for group in results.by_facet[key_of(facet)]:
            found = results.summary(group, column)
            if found is not None:
                settings = group.entries[0].settings
                values = [shown(settings.get(name)) for name in names]
                rows.append((*values, str(found.count), _text(found)))
    header = (*names, "runs", f"{column}: mean (95% interval)")
    return Table(header, tuple(rows), folded="The numbers")


def _text(found: Estimate) -> str:
    if math.isfinite(found.low):
        return with_interval(found.mean, found.low, found.high)
    return measured(found.mean)
