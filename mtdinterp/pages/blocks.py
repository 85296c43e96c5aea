"""The building blocks of a document: text, tables and charts as plain data.

A `Document` has sections, and a section has blocks. `page` turns a document into HTML, `markdown`
into Markdown with PNG files. Blocks hold plain text: escaping is left to whoever shows them.

The blocks of charts are in `charts`; they can be imported from here as well.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mtdinterp.pages.charts import (
    Bar,
    Bars,
    Dot,
    Facet,
    Facets,
    Groups,
    Intervals,
    Level,
    Line,
    Lines,
    Mean,
    Point,
    Reading,
    Sample,
    Series,
)

__all__ = [
    "Bar",
    "Bars",
    "Block",
    "Cell",
    "Chart",
    "Columns",
    "Document",
    "Dot",
    "Facet",
    "Facets",
    "Groups",
    "Heading",
    "Image",
    "Intervals",
    "Level",
    "Line",
    "Lines",
    "Link",
    "Links",
    "Map",
    "Maps",
    "Matrices",
    "Matrix",
    "Mean",
    "Picture",
    "Point",
    "Reading",
    "Sample",
    "Section",
    "Series",
    "State",
    "Table",
    "Text",
]


@dataclass(frozen=True)
class Text:
    """Paragraphs, one per line."""

    lines: tuple[str, ...]
    kind: str = "plain"
    """"plain", "soft" (an aside), "answer", "misfit" (what contradicts it), "list" or "code"."""
    folded: str = ""
    """If not empty, the text is hidden until the reader clicks on this summary."""


@dataclass(frozen=True)
class Heading:
    """A heading inside a section."""

    text: str


@dataclass(frozen=True)
class Columns:
    """Paragraphs under headings, side by side on a wide page; the last column is emphasised."""

    columns: tuple[tuple[str, tuple[str, ...]], ...]
    """Each column's heading with its paragraphs."""


@dataclass(frozen=True)
class Links:
    """Links to files in the document's own folder."""

    links: tuple[tuple[str, str], ...]
    """Each link's text with its file name."""


@dataclass(frozen=True)
class State:
    """A table cell that says whether a claim holds, shown in a colour."""

    state: str
    """"holds", "fails" or "undecidable"."""
    reason: str = ""
    """Shown after the state, such as why the claim is undecidable."""


@dataclass(frozen=True)
class Link:
    """A table cell that links to a file in the document's own folder."""

    text: str
    file: str


Cell = str | State | Link


@dataclass(frozen=True)
class Table:
    """A table of text; a cell may be a `State` or a `Link`.

    A cell "yes" or "no" is coloured like a state.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: str = ""
    """If not empty, the table is hidden until the reader clicks on this text."""


@dataclass(frozen=True, eq=False)
class Matrix:
    """A small square matrix, such as a transition matrix."""

    title: str
    subtitle: str
    values: Float[Tensor, "row column"]


@dataclass(frozen=True)
class Matrices:
    """Small matrices with a number in each cell, on one colour scale."""

    title: str
    panels: tuple[Matrix, ...]
    largest: float
    """The value of the darkest colour, above 0; 0 is white."""


@dataclass(frozen=True, eq=False)
class Map:
    """A heat map with many cells."""

    title: str
    values: Float[Tensor, "row column"]
    row_names: tuple[str, ...] = ()
    """One name per row; if empty, rows are numbered from `first_row`."""
    first_row: int = 0
    first_column: int = 0
    """The number of the first column."""
    outlines: tuple[tuple[Point, ...], ...] = ()
    """Closed shapes to outline, as (column, row) corners in cells from the upper left corner."""


@dataclass(frozen=True)
class Maps:
    """One or more heat maps on one colour scale."""

    title: str
    panels: tuple[Map, ...]
    largest: float
    """The end of the colour scale, which starts at 0, or at -largest for changes."""
    row_axis: str
    """The meaning of rows, such as "query"."""
    column_axis: str
    """The meaning of columns, such as "key"."""
    changes: bool = False
    """Whether the values are changes, which may be negative."""
    note: str = ""

    @property
    def square(self) -> bool:
        """Whether rows and columns are the same kind of thing, such as positions."""
        return not self.panels[0].row_names


@dataclass(frozen=True)
class Image:
    """A finished picture."""

    title: str
    png: bytes


Chart = Bars | Groups | Intervals | Lines
Picture = Chart | Facets | Matrices | Maps
Block = Text | Heading | Columns | Links | Table | Image | Picture


@dataclass(frozen=True)
class Section:
    """A titled part of a document."""

    title: str
    blocks: tuple[Block, ...]
    level: int = 2
    """The level of its heading; only sections of level 2 are in the table of contents."""
    name: str = ""
    """The anchor that links to the section use; numbered if empty."""


@dataclass(frozen=True)
class Document:
    """A title and sections."""

    title: str
    sections: tuple[Section, ...]
