"""A document as Markdown with PNG files in a folder next to it, for a repository or an issue.

Pictures are named by their place and their contents. New ones are therefore written next to those
of an older page, the page is replaced in one step, and only then are the old pictures removed. At
every moment, the page that is there has all its pictures.
"""

import contextlib
import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from urllib.parse import quote

from mtdinterp.pages.blocks import (
    Block,
    Cell,
    Columns,
    Document,
    Heading,
    Image,
    Link,
    Links,
    Maps,
    Picture,
    Section,
    State,
    Table,
    Text,
)
from mtdinterp.pages.pictures import png
from mtdinterp.storage import calls, write_file

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
"""Characters that Markdown, or HTML inside it, could interpret."""
LIST_START = re.compile(r"^(\s*)([-+=]|\d+(?=[.)]))")
"""The start of a line that Markdown would read as a list item or a heading's underline."""
FEWEST_BACKTICKS = 3
"""Backticks around a block of code."""
DIGEST_LENGTH = 8
"""Hexadecimal digits of the SHA-256 of a picture in its name."""
PICTURE_NAME = re.compile(rf"figure-\d+(-[0-9a-f]{{{DIGEST_LENGTH}}})?\.png")
"""Names that this module gives to pictures; older versions left out the digest."""


def write_markdown(document: Document, path: Path) -> None:
    """Write a document to `path` and its pictures into the folder `<name>-figures` next to it."""
    folder = path.with_name(path.stem + "-figures")
    writer = _Writer(folder.name)
    parts = [f"# {escape(document.title)}"]
    parts += [writer.section(section) for section in document.sections]
    page = "\n\n".join(parts) + "\n"
    for name, content in writer.pictures.items():
        write_file(folder / name, content)
    write_file(path, page.encode())
    if folder.is_dir():
        _remove_old_pictures(folder, writer.pictures)


def _remove_old_pictures(folder: Path, current: Collection[str]) -> None:
    """Remove pictures of older pages; a picture that cannot be removed does no harm."""
    for entry in folder.iterdir():
        if PICTURE_NAME.fullmatch(entry.name) and entry.name not in current:
            with contextlib.suppress(OSError):
                calls.unlink(entry)


def escape(text: str) -> str:
    """Any text as one line of Markdown that shows it literally."""
    # A zero-width space keeps a leading number or dash from starting a list.
    return LIST_START.sub(r"\1\2&#8203;", _escape_inside(text))


def _escape_inside(text: str) -> str:
    """The same within a line, where no list can start, so that numbers can be copied."""
    return " ".join(SPECIAL.sub(r"\\\1", text).splitlines())


class _Writer:
    """Turns sections into Markdown and collects their pictures."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.pictures: dict[str, bytes] = {}
        """Contents of the pictures by the names of their files."""

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
        """Keep a picture and return the Markdown that shows it."""
        content = block.png if isinstance(block, Image) else png(block)
        digest = hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]
        name = f"figure-{len(self.pictures) + 1:02d}-{digest}.png"
        self.pictures[name] = content
        picture = f"![{escape(block.title)}]({quote(self.folder)}/{name})"
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
    if isinstance(cell, Link):
        return f"[{_escape_inside(cell.text)}]({quote(cell.file)})"
    return _escape_inside(cell)
