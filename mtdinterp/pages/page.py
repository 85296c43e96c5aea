"""A document as HTML: a self-contained page, or one element for a notebook.

Pages are readable on a phone and in print. Nothing is fetched, and all text is escaped, because it
may come from somebody else's checkpoint. Charts are inline SVG (`svg`), heat maps are inline
pictures (`heatmaps`). Only a page has a script, which shows the value of the cell under the
pointer; without scripts, everything is still visible.
"""

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mtdinterp.pages import svg
from mtdinterp.pages.blocks import (
    Bars,
    Block,
    Cell,
    Chart,
    Columns,
    Document,
    Facets,
    Groups,
    Heading,
    Image,
    Intervals,
    Lines,
    Link,
    Links,
    Maps,
    Matrices,
    Section,
    State,
    Table,
    Text,
)
from mtdinterp.pages.heatmaps import data_url, heat_maps

LONG_CELL = 28
"""Table cells with more characters than this may be broken into lines."""
SENTENCE_CELL = 60
"""Table cells with more characters than this are sentences, which need a wider column."""
MANY_COLUMNS = 5
"""Tables with more columns than this are set in a smaller font."""


def render(document: Document) -> str:
    """A document as a self-contained HTML page."""
    title = escape(document.title)
    script = _file("page.js")
    anchors = [_anchor(section, index) for index, section in enumerate(document.sections)]
    contents = ""
    body = ""
    for anchor, section in zip(anchors, document.sections, strict=True):
        body += _section(section, anchor)
        if section.level == 2:
            contents += f'<a href="#{anchor}">{escape(section.title)}</a>'
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        f"<title>{title}</title><style>{_file('page.css')}</style></head>"
        f'<body class="mtd-page"><h1>{title}</h1><nav>{contents}</nav>{body}'
        f"<script>{script}</script></body></html>"
    )


def fragment(document: Document) -> str:
    """A document as one HTML element for a notebook: no script, and its style stays inside it."""
    body = "".join(_section(section) for section in document.sections)
    style = f"<style>{_file('page.css')}</style>"
    return f'<div class="mtd-page">{style}<h1>{escape(document.title)}</h1>{body}</div>'


def panel(blocks: Sequence[Block]) -> str:
    """Blocks as one HTML element without a title, script or style, for a page with `page.css`."""
    return f'<div class="mtd-page">{_blocks(blocks, 3, interactive=False)}</div>'


def style_sheet() -> str:
    """The style of pages, fragments and panels, as CSS."""
    return _file("page.css")


def _policy(script: str) -> str:
    """A content security policy that allows our own script and nothing else.

    Pages are passed around. Whatever gets into one, it must not contact a server or run code.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:"
    )


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _anchor(section: Section, index: int) -> str:
    return escape(section.name or f"s{index}", quote=True)


def _section(section: Section, anchor: str = "") -> str:
    """A section; consecutive charts are put in a row. Sections of a notebook have no anchor."""
    identity = f' id="{anchor}"' if anchor else ""
    heading = f"<h{section.level}{identity}>{escape(section.title)}</h{section.level}>"
    return heading + _blocks(section.blocks, section.level + 1, interactive=bool(anchor))


def _blocks(blocks: Sequence[Block], level: int, interactive: bool) -> str:
    """Blocks in their order; `level` is the level of headings among them."""
    parts = []
    charts: list[str] = []
    for block in blocks:
        if isinstance(block, Chart):
            charts.append(_chart(block))
            continue
        parts.append(_row(charts))
        parts.append(_block(block, level, interactive))
        charts = []
    parts.append(_row(charts))
    return "".join(parts)


def _row(figures: list[str]) -> str:
    return f'<div class="row">{"".join(figures)}</div>' if figures else ""


def _block(block: Block, level: int, interactive: bool) -> str:
    """A block that is not a chart; `level` is the level of headings inside the section."""
    if isinstance(block, Heading):
        return f"<h{level}>{escape(block.text)}</h{level}>"
    if isinstance(block, Columns):
        return _columns(block, level)
    if isinstance(block, Maps):
        return heat_maps(block, level, interactive)
    return BLOCKS[type(block)](block)


def _chart(block: Chart) -> str:
    drawing = CHARTS[type(block)](block)
    return f"<figure>{_title(block.title)}{drawing}</figure>" if drawing else ""


def _title(title: str) -> str:
    return f'<div class="title">{escape(title)}</div>'


def _matrices(block: Matrices) -> str:
    panels = "".join(f"<div>{svg.matrix(panel, block.largest)}</div>" for panel in block.panels)
    return f'<figure>{_title(block.title)}<div class="row small">{panels}</div></figure>'


def _facets(block: Facets) -> str:
    """Small charts in rows, below their common title and legend; empty if there is nothing."""
    charts = "".join(f"<div>{chart}</div>" for chart in svg.facets(block))
    if not charts:
        return ""
    entries = "".join(f"<span>{sign}{escape(label)}</span>" for sign, label in svg.legend(block))
    legend = f'<div class="legend">{entries}</div>'
    kind = "row" if len(block.facets) <= svg.MOST_WIDE else "row facets"
    return f'<figure>{_title(block.title)}{legend}<div class="{kind}">{charts}</div></figure>'


def _columns(block: Columns, level: int) -> str:
    columns = "".join(
        f"<div><h{level}>{escape(title)}</h{level}>{_paragraphs(lines)}</div>"
        for title, lines in block.columns
    )
    return f'<div class="columns">{columns}</div>'


def _links(block: Links) -> str:
    links = ", ".join(
        f'<a href="{escape(file, quote=True)}">{escape(label)}</a>' for label, file in block.links
    )
    return f'<p class="soft">{links}</p>'


def _image(block: Image) -> str:
    label = escape(block.title, quote=True)
    return f'<img class="drawn" alt="{label}" src="{data_url(block.png)}">'


def _paragraphs(lines: tuple[str, ...]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _text(block: Text) -> str:
    return _folded(block.folded, _unfolded_text(block))


def _folded(summary: str, content: str) -> str:
    """Content that is hidden until the reader clicks on the summary; shown if there is none."""
    if not summary:
        return content
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def _unfolded_text(block: Text) -> str:
    if block.kind == "code":
        code = escape("\n".join(block.lines))
        return f"<pre>{code}</pre>"
    if block.kind == "list":
        items = "".join(f"<li>{escape(line)}</li>" for line in block.lines)
        return f"<ol>{items}</ol>"
    paragraphs = _paragraphs(block.lines)
    if block.kind == "plain":
        return paragraphs
    return f'<div class="{escape(block.kind, quote=True)}">{paragraphs}</div>'


def _table(block: Table) -> str:
    """A table in a box that scrolls if the table is wider than the page."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in block.header)
    rows = "".join(f"<tr>{_cells(row)}</tr>" for row in block.rows)
    wide = ' class="wide"' if len(block.header) > MANY_COLUMNS else ""
    table = f'<div class="scroll"><table{wide}><tr>{head}</tr>{rows}</table></div>'
    return _folded(block.folded, table)


def _cells(row: tuple[Cell, ...]) -> str:
    return "".join(map(_cell, row))


def _cell(cell: Cell) -> str:
    if isinstance(cell, State):
        return _state(cell)
    if isinstance(cell, Link):
        return f'<td><a href="{escape(quote(cell.file), quote=True)}">{escape(cell.text)}</a></td>'
    if cell in ("yes", "no"):
        return f'<td><span class="{cell}">{cell}</span></td>'
    length = "short"
    if len(cell) > LONG_CELL:
        length = "long sentence" if len(cell) > SENTENCE_CELL else "long"
    return f'<td class="{length}">{escape(cell)}</td>'


def _state(cell: State) -> str:
    state = escape(cell.state, quote=True)
    mark = f'<span class="{state}">{state}</span>'
    if not cell.reason:
        return f"<td>{mark}</td>"
    return f'<td class="long">{mark} {escape(cell.reason)}</td>'


CHARTS: dict[type, Callable[[Any], str]] = {
    Bars: svg.bars,
    Groups: svg.groups,
    Intervals: svg.intervals,
    Lines: svg.lines,
}
BLOCKS: dict[type, Callable[[Any], str]] = {
    Text: _text,
    Table: _table,
    Facets: _facets,
    Matrices: _matrices,
    Links: _links,
    Image: _image,
}
