"""The blocks that are charts, as plain data.

Charts name methods by `key` ("model", "one_step"), which decides their colour, marker and line
(`mtdinterp.style.style_of`), and by `label`, the text that readers see.
"""

from dataclasses import dataclass

Point = tuple[float, float]


@dataclass(frozen=True)
class Bar:
    """One bar with its standard error; both may be NaN."""

    key: str
    label: str
    value: float
    stderr: float


@dataclass(frozen=True)
class Bars:
    """Horizontal bars with their values."""

    title: str
    bars: tuple[Bar, ...]
    unit: str


@dataclass(frozen=True)
class Series:
    """One value per category."""

    key: str
    label: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Groups:
    """Vertical bars: one group per category, one bar per series; bars of the truth are hollow."""

    title: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Level:
    """A value to compare with, drawn as a line across the chart."""

    key: str
    label: str
    value: float


@dataclass(frozen=True)
class Reading:
    """A measured value; the standard error is NaN if there is none."""

    label: str
    value: float
    stderr: float
    note: str


@dataclass(frozen=True)
class Intervals:
    """Readings of one quantity with 95% intervals, and the levels that they should have."""

    title: str
    readings: tuple[Reading, ...]
    levels: tuple[Level, ...]
    unit: str


@dataclass(frozen=True)
class Line:
    """One line of a chart, as (x, y) points."""

    key: str
    label: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Lines:
    """Lines over a common x axis."""

    title: str
    lines: tuple[Line, ...]
    x_name: str
    y_name: str
    logarithmic: bool = False
    """Whether the y axis is logarithmic."""
    levels: tuple[Level, ...] = ()
    moments: tuple[tuple[float, str], ...] = ()
    """Events on the x axis: where, and the label."""
    logarithmic_x: bool = False
    """Whether the x axis is logarithmic; points and events at 0 are then not shown."""


@dataclass(frozen=True)
class Dot:
    """One measured value."""

    x: float
    value: float
    label: str
    """What was measured, for the tooltip."""
    file: str = ""
    """A file in the document's own folder that the dot links to, if not empty."""


@dataclass(frozen=True)
class Mean:
    """A mean with its interval; both ends are NaN if there is none."""

    x: float
    value: float
    low: float
    high: float
    label: str
    """What was averaged, for the tooltip."""
    file: str = ""
    """A file in the document's own folder that the mark links to, if not empty."""


@dataclass(frozen=True)
class Sample:
    """Repeated measurements: a dot for each, and at every x the mean."""

    key: str
    label: str
    dots: tuple[Dot, ...]
    means: tuple[Mean, ...]


@dataclass(frozen=True)
class Facet:
    """One of several small charts."""

    title: str
    samples: tuple[Sample, ...]
    references: tuple[Line, ...] = ()
    """What the measurements are compared with; it may have another value at every x."""


@dataclass(frozen=True)
class Facets:
    """Small charts of one quantity with common axes and one legend."""

    title: str
    facets: tuple[Facet, ...]
    x_name: str
    y_name: str
    ticks: tuple[tuple[float, str], ...]
    """The ticks of the x axis with their labels."""
    connected: bool = True
    """Whether x is a quantity, so that lines connect the means; it is a category otherwise."""
    logarithmic: bool = False
    """Whether the y axis is logarithmic."""
