"""The statistics of a sweep's page: which settings become axes, which cells belong together, and
means with intervals. Numbers only; drawing is left to `charts`."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mtdinterp.catalogue import check_known
from mtdinterp.formatting import printable
from mtdinterp.sweep.directory import Entry, Sweep

SEEDS = ("seed", "task_seed")
"""Settings that only repeat a run."""
LEVEL = 0.95
LARGEST = 1e300
"""Larger numbers are not drawn."""
LONGEST_TEXT = 200
"""A longer value of a setting is cut where it is shown."""
UNSET = "not set"
"""What stands for a setting that a cell does not have."""

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Axes:
    """What the charts of a page show where."""

    x: str | None
    """The setting along x; None if nothing varies."""
    facets: str | None
    """The setting with one chart for each of its values; None for one chart."""
    lines: tuple[str, ...]
    """The settings with one line for each combination of their values."""
    together: tuple[str, ...] = ()
    """Settings that vary, but only together with the others, so that they need no axis."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval; both ends are NaN if nothing is known about its error."""

    mean: float
    low: float
    high: float
    count: int
    """How many values there are."""


@dataclass(frozen=True)
class Group:
    """Cells that differ in their seeds only, or in what varies with the axes."""

    facet: Any
    line: tuple[Any, ...]
    """The values of the settings that become lines."""
    x: Any
    entries: tuple[Entry, ...]

    @cached_property
    def line_key(self) -> str:
        """What tells its line apart from others."""
        return key_of(list(self.line))


def choose_axes(sweep: Sweep, x: str | None = None, facets: str | None = None) -> Axes:
    """The axes of a sweep's charts.

    Args:
        sweep: the sweep.
        x: the setting along x; if None, the varied number with most values.
        facets: the setting with a chart for each value; if None, the next such setting.

    Returns:
        The axes. A seed is an axis only if it is asked for.

    Raises:
        ValueError: if a setting is unknown, with the known ones.
    """
    known = setting_names(sweep)
    for flag, name in (("x", x), ("facets", facets)):
        if name is not None:
            check_known(name, known, flag)
    if x is not None and x == facets:
        raise ValueError(f"facets: expected another setting than that of x, got {x!r} for both")
    candidates = [name for name in ranked(sweep) if name not in (x, facets)]
    chosen = [name for name in (x, facets) if name is not None]
    free: list[str] = []
    together: list[str] = []
    for name in candidates:
        if chosen + free and is_determined(name, chosen + free, sweep.entries):
            together.append(name)
        else:
            free.append(name)
    if x is None and free:
        x = free.pop(0)
    if facets is None and free:
        facets = free.pop(0)
    return Axes(x, facets, tuple(free), tuple(together))


def setting_names(sweep: Sweep) -> list[str]:
    """All settings, the varied ones first."""
    varied = dict.fromkeys(varied_settings(sweep))
    every: dict[str, None] = {}
    for entry in sweep.entries:
        every.update(dict.fromkeys(entry.settings))
    return list(varied | every)


def varied_settings(sweep: Sweep) -> list[str]:
    """The settings that differ between the cells, seeds included."""
    return [name for name in sweep.varied if len(values_of(name, sweep.entries)) > 1]


def ranked(sweep: Sweep) -> list[str]:
    """The varied settings without seeds: numbers first, and those with most values first."""
    names = [name for name in varied_settings(sweep) if name not in SEEDS]

    def rank(name: str) -> tuple[bool, int]:
        values = values_of(name, sweep.entries)
        return not all(map(is_number, values)), -len(values)

    return sorted(names, key=rank)


def values_of(name: str, entries: Sequence[Entry]) -> list[Any]:
    """The values of a setting, each once: numbers in order, or as the grid has them."""
    found = {key_of(entry.settings.get(name)): entry.settings.get(name) for entry in entries}
    values = list(found.values())
    return sorted(values) if all(map(is_number, values)) else values


def is_determined(name: str, others: Sequence[str], entries: Sequence[Entry]) -> bool:
    """Whether other settings leave only one value to a setting.

    Args:
        name: the setting.
        others: the settings that may decide it.
        entries: the cells.

    Returns:
        True if cells that agree in the other settings agree in this one.
    """
    seen: dict[tuple[str, ...], str] = {}
    for entry in entries:
        place = tuple(key_of(entry.settings.get(other)) for other in others)
        value = key_of(entry.settings.get(name))
        if seen.setdefault(place, value) != value:
            return False
    return True


def grouped(entries: Sequence[Entry], axes: Axes) -> list[Group]:
    """The cells that stand at the same place of the same line, in the order of the axes' values."""
    members: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        members.setdefault(_place(entry, axes), []).append(entry)
    groups = []
    for found in members.values():
        settings = found[0].settings
        line = tuple(settings.get(name) for name in axes.lines)
        facet = None if axes.facets is None else settings.get(axes.facets)
        x = None if axes.x is None else settings.get(axes.x)
        groups.append(Group(facet, line, x, tuple(found)))
    return groups


def _place(entry: Entry, axes: Axes) -> tuple[str, ...]:
    names = [name for name in (axes.facets, *axes.lines, axes.x) if name is not None]
    return tuple(key_of(entry.settings.get(name)) for name in names)


def estimate(values: Sequence[float], stderr: float | None = None) -> Estimate:
    """The mean of repeated runs with its 95% interval.

    With two runs or more, the interval comes from the standard error over runs with Student's
    factor. With one, it comes from the run's own standard error, if there is one.

    Args:
        values: the finite values of all runs, at least one.
        stderr: the standard error of a single value.

    Returns:
        The mean and its interval.
    """
    count = len(values)
    mean = math.fsum(values) / count
    half = math.nan
    if count > 1:
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
        half = student_factor(count - 1) * math.sqrt(variance / count)
    elif stderr is not None:
        half = normal_factor() * stderr
    return Estimate(mean, mean - half, mean + half, count)


def student_factor(freedom: int) -> float:
    """Half the width of a 95% interval in standard errors, by Student's t distribution.

    Args:
        freedom: the degrees of freedom, one less than the number of values.
    """
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))


def normal_factor() -> float:
    """The same for a standard error that is known."""
    from scipy.special import ndtri

    return float(ndtri((1 + LEVEL) / 2))


def number(value: Any) -> float | None:
    """A value as a finite number, truth values as 0 or 1; None if it is not one."""
    if isinstance(value, bool):
        return float(value)
    return float(value) if is_number(value) else None


def is_number(value: Any) -> bool:
    """Whether a value is a finite number of a size that can be drawn."""
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and -LARGEST < value < LARGEST


def key_of(value: Any) -> str:
    """What tells two values of a setting apart; a list and a truth value have one, too."""
    return json.dumps(value, sort_keys=True)


def shown(value: Any) -> str:
    """A value of a setting as text; a list as on a command line."""
    if value is None:
        return UNSET
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(map(shown, value))[:LONGEST_TEXT]
    return printable(str(value)[:LONGEST_TEXT])
