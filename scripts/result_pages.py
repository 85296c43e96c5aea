"""Pages of results as Markdown, shared by the scripts that measure them."""

import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from mtdinterp.checkpoints.provenance import Provenance

RESULTS = Path(__file__).parent.parent / "docs" / "results"
WIDTH = 100
"""Columns of paragraphs."""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [_row(header), "|---" * len(header) + "|"]
    lines += [_row(cells) for cells in rows]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page(title: str, provenance: Provenance, parts: Iterable[str]) -> str:
    """A page of results.

    Args:
        title: its heading.
        provenance: what made it.
        parts: its paragraphs, headings and tables.

    Returns:
        The page as Markdown.
    """
    filled = [part if part.startswith(("#", "|")) else textwrap.fill(part, WIDTH) for part in parts]
    return "\n\n".join([f"# {title}", *provenance.markdown(), *filled]) + "\n"


def replace_section(path: Path, section: str) -> None:
    """Write a section into a page in the place of the one with the same name, or at the end.

    Args:
        path: the page.
        section: starts with a heading "## name: title".
    """
    name = section.partition(":")[0]
    sections = re.split(r"^(?=## )", path.read_text(), flags=re.MULTILINE)
    places = [place for place, old in enumerate(sections) if old.partition(":")[0] == name]
    place = places[0] if places else len(sections)
    sections[place : place + 1] = [section]
    path.write_text("\n".join(part.rstrip("\n") + "\n" for part in sections))


def row_of(page: str, heading: str, name: str) -> list[str]:
    """The cells of one row of a page.

    Args:
        page: the text of the page.
        heading: the start of the heading above the table.
        name: the first cell of the row.

    Returns:
        All cells of the row, the first included.
    """
    section = page.split(f"\n{heading}", 1)[1]
    found = re.search(rf"^\| ({re.escape(name)} \|.*) \|$", section, re.MULTILINE)
    if found is None:
        raise LookupError(f"the section {heading!r} has no row {name!r}")
    return found[1].split(" | ")
