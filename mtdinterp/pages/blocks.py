"""What a document is made of, before it is a page, Markdown or a cell's output: text, tables and
pictures as data."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

Point = tuple[float, float]


@dataclass(frozen=True)
class Text:
    """Paragraphs. `kind` is plain, soft (an aside), answer, misfit (what does not fit), list or
    code."""

    lines: tuple[str, ...]
    kind: str = "plain"


@dataclass(frozen=True)
class Heading:
    words: str


@dataclass(frozen=True)
class Columns:
    """Paragraphs under headings, side by side where there is room; the last column is the one that
    counts."""

    columns: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Links:
    """Words and the files they lead to, in the document's own folder."""

    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """Cells as text; a cell that is just "yes" or "no" is a verdict."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    folded: str = ""
    """What to click on to see it; a table without such words is open."""


@dataclass(frozen=True)
class Bar:
    """`key` says whose it is (`style.LOOKS`), and so its colour."""

    key: str
    words: str
    value: float
    stderr: float


@dataclass(frozen=True)
class Bars:
    title: str
    bars: tuple[Bar, ...]
    unit: str


@dataclass(frozen=True)
class Series:
    """One value a category."""

    key: str
    words: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Groups:
    """Standing bars in groups, one group a category and one bar a series; the truth's are
    hollow."""

    title: str
    categories: tuple[str, ...]
    series: tuple[Series, ...]


@dataclass(frozen=True)
class Level:
    """A value to compare with."""

    key: str
    words: str
    value: float


@dataclass(frozen=True)
class Reading:
    """A number and its standard error, which is not a number where there is none."""

    words: str
    value: float
    stderr: float
    note: str


@dataclass(frozen=True)
class Intervals:
    """Readings of one quantity with 95% intervals, and the values they ought to have."""

    title: str
    readings: tuple[Reading, ...]
    levels: tuple[Level, ...]
    unit: str


@dataclass(frozen=True)
class Line:
    key: str
    words: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Lines:
    title: str
    lines: tuple[Line, ...]
    x_name: str
    y_name: str
    logarithmic: bool = False
    """Of the vertical axis."""
    levels: tuple[Level, ...] = ()
    moments: tuple[tuple[float, str], ...] = ()
    """Places on the horizontal axis where something happened."""


@dataclass(frozen=True, eq=False)
class Matrix:
    title: str
    subtitle: str
    values: Float[Tensor, "row column"]


@dataclass(frozen=True)
class Matrices:
    """Small matrices with their numbers, on one scale from 0 to `most`, which is above 0."""

    title: str
    panels: tuple[Matrix, ...]
    most: float


@dataclass(frozen=True, eq=False)
class Map:
    """A heat map of many cells. Rows have names, or count from `first_row`; columns count from
    `first_column`."""

    title: str
    values: Float[Tensor, "row column"]
    row_names: tuple[str, ...] = ()
    first_row: int = 0
    first_column: int = 0
    outlines: tuple[tuple[Point, ...], ...] = ()
    """Closed shapes to mark, as (column, row) corners counted in cells from the upper left."""


@dataclass(frozen=True)
class Maps:
    """Heat maps on one scale: 0 to `most`, or for changes -most to most. There is at least one."""

    title: str
    panels: tuple[Map, ...]
    most: float
    down: str
    across: str
    changes: bool = False
    note: str = ""

    @property
    def square(self) -> bool:
        """Rows and columns are the same thing."""
        return not self.panels[0].row_names


@dataclass(frozen=True)
class Image:
    """A picture that is drawn already."""

    title: str
    png: bytes


Chart = Bars | Groups | Intervals | Lines
Picture = Chart | Matrices | Maps
Block = Text | Heading | Columns | Links | Table | Image | Picture


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]
    level: int = 2
    """Of its title; in a comparison the evidence of each model stands one below the model's own."""
    name: str = ""
    """What a link to it on the page is called, where that should last."""


@dataclass(frozen=True)
class Document:
    title: str
    sections: tuple[Section, ...]
