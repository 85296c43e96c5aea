"""The same document as Markdown with PNGs beside it, for a repository or an issue."""

import re
from pathlib import Path

from mtdinterp.report.blocks import Block, Document, Heading, Maps, Section, Table, Text
from mtdinterp.report.pictures import draw

SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$!&])")
"""What Markdown, or HTML within it, might take for more than a letter."""


def write_markdown(document: Document, path: Path) -> None:
    """Write the text to `path` and its pictures into a folder of the same name beside it."""
    folder = path.with_name(path.stem + "-figures")
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("figure-*.png"):
        stale.unlink()
    writer = _Writer(folder)
    parts = [f"# {escape(document.title)}", *(writer.section(section) for section in document.sections)]
    path.write_text("\n\n".join(parts) + "\n")


def escape(words: str) -> str:
    return SPECIAL.sub(r"\\\1", words).replace("\n", " ")


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
        self.count += 1
        name = f"figure-{self.count:02d}.png"
        draw(block, self.folder / name)
        picture = f"![{escape(block.title)}]({self.folder.name.replace(' ', '%20')}/{name})"
        return f"{picture}\n\n{escape(block.note)}" if isinstance(block, Maps) and block.note else picture


def _text(block: Text) -> str:
    if block.kind == "code":
        fence = "`" * (1 + max((len(run) for line in block.lines for run in re.findall("`+", line)), default=2))
        return "\n".join([fence, *block.lines, fence])
    mark = "> " if block.kind in ("answer", "misfit") else ""
    return f"\n{mark.rstrip()}\n".join(f"{mark}{escape(line)}" for line in block.lines)


def _table(block: Table) -> str:
    lines = [block.header, ("---",) * len(block.header), *block.rows]
    return "\n".join("| " + " | ".join(cell if cell == "---" else escape(cell) for cell in line) + " |"
                     for line in lines)
