"""A document as Markdown with PNG files in a folder next to it, for a repository or an issue."""

import re
from pathlib import Path
from urllib.parse import quote

from mtdinterp.pages.blocks import (
    Block,
    Cell,
    Columns,
    Document,
    Heading,
    Image,
    Links,
    Maps,
    Picture,
    Section,
    State,
    Table,
    Text,
)
from mtdinterp.pages.pictures import draw

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
"""Characters that Markdown, or HTML inside it, could interpret."""
LIST_START = re.compile(r"^(\s*)([-+=]|\d+(?=[.)]))")
"""The start of a line that Markdown would read as a list item or a heading's underline."""
FEWEST_BACKTICKS = 3
"""Backticks around a block of code."""


def write_markdown(document: Document, path: Path) -> None:
    """Write a document to `path` and its pictures into the folder `<name>-figures` next to it."""
    folder = path.with_name(path.stem + "-figures")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("figure-*.png"):
        stale.unlink()
    writer = _Writer(folder)
    parts = [f"# {escape(document.title)}"]
    parts += [writer.section(section) for section in document.sections]
    path.write_text("\n\n".join(parts) + "\n")


def escape(text: str) -> str:
    """Any text as one line of Markdown that shows it literally."""
    # A zero-width space keeps a leading number or dash from starting a list.
    return LIST_START.sub(r"\1\2&#8203;", _escape_inside(text))


def _escape_inside(text: str) -> str:
    """The same within a line, where no list can start, so that numbers can be copied."""
    return " ".join(SPECIAL.sub(r"\\\1", text).splitlines())


class _Writer:
    """Turns sections into Markdown and numbers their pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def section(self, section: Section) -> str:
        parts = [f"{'#' * section.level} {escape(section.title)}"]
        parts += [self.block(block, section.level + 1) for block in section.blocks]
        return "\n\n".join(parts)

    def block(self, block: Block, level: int) -> str:
        """One block; `level` is the level of headings inside the section."""
        if isinstance(block, Heading):
            return f"{'#' * level} {escape(block.text)}"
        if isinstance(block, Text):
            return _text(block)
        if isinstance(block, Table):
            return _table(block)
        if isinstance(block, Columns):
            return _columns(block)
        if isinstance(block, Links):
            return ", ".join(f"[{escape(label)}]({quote(file)})" for label, file in block.links)
        return self.picture(block)

    def picture(self, block: Image | Picture) -> str:
        """Write a picture to its file and return the Markdown that shows it."""
        self.count += 1
        name = f"figure-{self.count:02d}.png"
        if isinstance(block, Image):
            (self.folder / name).write_bytes(block.png)
        else:
            draw(block, self.folder / name)
        picture = f"![{escape(block.title)}]({quote(self.folder.name)}/{name})"
        if isinstance(block, Maps) and block.note:
            return f"{picture}\n\n{escape(block.note)}"
        return picture


def _columns(block: Columns) -> str:
    columns = []
    for title, lines in block.columns:
        paragraphs = "\n\n".join(map(escape, lines))
        columns.append(f"**{escape(title)}.** {paragraphs}")
    return "\n\n".join(columns)


def _text(block: Text) -> str:
    text = _unfolded_text(block)
    return f"{escape(block.folded)}:\n\n{text}" if block.folded else text


def _unfolded_text(block: Text) -> str:
    if block.kind == "code":
        return _code(block.lines)
    if block.kind == "list":
        return "\n".join(f"{number}. {escape(line)}" for number, line in enumerate(block.lines, 1))
    if block.kind in ("answer", "misfit"):
        return "\n>\n".join(f"> {escape(line)}" for line in block.lines)
    return "\n\n".join(map(escape, block.lines))


def _code(lines: tuple[str, ...]) -> str:
    """A block of code, fenced by more backticks than any line contains in a row."""
    runs = re.findall("`+", "\n".join(lines))
    longest = max(map(len, runs), default=0)
    fence = "`" * max(FEWEST_BACKTICKS, longest + 1)
    single_lines = [" ".join(line.splitlines()) for line in lines]
    return "\n".join([fence, *single_lines, fence])


def _table(block: Table) -> str:
    rule = _table_row(["---"] * len(block.header))
    lines = [_table_row([_cell(cell) for cell in block.header]), rule]
    for row in block.rows:
        lines.append(_table_row([_cell(cell) for cell in row]))
    table = "\n".join(lines)
    return f"{escape(block.folded)}:\n\n{table}" if block.folded else table


def _table_row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell) -> str:
    if isinstance(cell, State):
        reason = f": {_escape_inside(cell.reason)}" if cell.reason else ""
        return f"**{_escape_inside(cell.state)}**{reason}"
    return _escape_inside(cell)
