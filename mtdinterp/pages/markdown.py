"""The same document as Markdown with PNGs beside it, for a repository or an issue."""

import re
from pathlib import Path
from urllib.parse import quote

from mtdinterp.pages.blocks import (
    Block,
    Columns,
    Document,
    Heading,
    Image,
    Links,
    Maps,
    Section,
    Table,
    Text,
)
from mtdinterp.pages.pictures import draw

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
"""What Markdown, or HTML within it, might take for more than a letter."""


def write_markdown(document: Document, path: Path) -> None:
    """Write the text to `path` and its pictures into a folder of the same name beside it."""
    folder = path.with_name(path.stem + "-figures")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("figure-*.png"):
        stale.unlink()
    writer = _Writer(folder)
    parts = [
        f"# {escape(document.title)}",
        *(writer.section(section) for section in document.sections),
    ]
    path.write_text("\n\n".join(parts) + "\n")


def escape(words: str) -> str:
    """Plain words on one line, whatever they hold; a number or mark that would begin a list is kept
    from it."""
    line = _cell(words)
    return re.sub(r"^(\s*)([-+=]|\d+(?=[.)]))", r"\1\2&#8203;", line)


def _cell(words: str) -> str:
    """The same within a line, where nothing can begin a list: numbers stay what can be copied."""
    return " ".join(SPECIAL.sub(r"\\\1", words).splitlines())


class _Writer:
    """Counts the pictures as it goes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def section(self, section: Section) -> str:
        blocks = [self.block(block, section.level + 1) for block in section.blocks]
        return "\n\n".join([f"{'#' * section.level} {escape(section.title)}", *blocks])

    def block(self, block: Block, level: int) -> str:
        if isinstance(block, Heading):
            return f"{'#' * level} {escape(block.words)}"
        if isinstance(block, Text):
            return _text(block)
        if isinstance(block, Table):
            return _table(block)
        if isinstance(block, Columns):
            return "\n\n".join(
                f"**{escape(title)}.** " + "\n\n".join(map(escape, lines))
                for title, lines in block.columns
            )
        if isinstance(block, Links):
            return ", ".join(f"[{escape(words)}]({quote(file)})" for words, file in block.links)
        self.count += 1
        name = f"figure-{self.count:02d}.png"
        if isinstance(block, Image):
            (self.folder / name).write_bytes(block.png)
        else:
            draw(block, self.folder / name)
        picture = f"![{escape(block.title)}]({quote(self.folder.name)}/{name})"
        return (
            f"{picture}\n\n{escape(block.note)}"
            if isinstance(block, Maps) and block.note
            else picture
        )


def _text(block: Text) -> str:
    if block.kind == "code":
        fence = "`" * max(
            3,
            1
            + max((len(run) for line in block.lines for run in re.findall("`+", line)), default=0),
        )
        return "\n".join([fence, *(" ".join(line.splitlines()) for line in block.lines), fence])
    if block.kind == "list":
        return "\n".join(f"{number}. {escape(line)}" for number, line in enumerate(block.lines, 1))
    mark = "> " if block.kind in ("answer", "misfit") else ""
    return f"\n{mark.rstrip()}\n".join(f"{mark}{escape(line)}" for line in block.lines)


def _table(block: Table) -> str:
    lines = [block.header, ("---",) * len(block.header), *block.rows]
    table = "\n".join(
        "| " + " | ".join(cell if cell == "---" else _cell(cell) for cell in line) + " |"
        for line in lines
    )
    return f"{escape(block.folded)}:\n\n{table}" if block.folded else table
