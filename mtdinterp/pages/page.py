"""A document as HTML: one page that stands alone, or one element for a notebook. Readable on a
phone and in print.

Charts are inline SVG. Heat maps, which have thousands of cells, are inline pictures, and on a page
the value under the pointer is told by a short script; without scripts all is still there to see.
Nothing is fetched, and everything that comes from a checkpoint is escaped.
"""

import base64
import hashlib
import io
import json
from collections.abc import Callable
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.pages import svg
from mtdinterp.pages.blocks import (
    Bars,
    Block,
    Chart,
    Columns,
    Document,
    Groups,
    Heading,
    Image,
    Intervals,
    Lines,
    Links,
    Map,
    Maps,
    Matrices,
    Section,
    Table,
    Text,
)
from mtdinterp.style import CHANGE, OUTLINE, amounts

LONG_CELL = 28
"""Cells with more letters than this may be broken into lines."""
MOST_TOLD = 2**14
"""Maps with more cells than this are pictures only: telling every value would make the page several
times as large."""


def render(document: Document) -> str:
    """A page."""
    title, script = escape(document.title), _file("page.js")
    names = [
        escape(section.name or f"s{index}", quote=True)
        for index, section in enumerate(document.sections)
    ]
    contents = "".join(
        f'<a href="#{name}">{escape(section.title)}</a>'
        for name, section in zip(names, document.sections, strict=True)
        if section.level == 2
    )
    body = "".join(
        _section(section, f' id="{name}"')
        for name, section in zip(names, document.sections, strict=True)
    )
    # A page that is handed around may not call anybody, nor run anything but our own script,
    # whatever is put into it.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:"
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>{title}</title><style>{_file('page.css')}</style></head>"
        f'<body class="mtd-page"><h1>{title}</h1><nav>{contents}</nav>{body}'
        f"<script>{script}</script></body></html>"
    )


def fragment(document: Document) -> str:
    """One element without a script, for a notebook; its style reaches nothing else."""
    body = "".join(_section(section) for section in document.sections)
    style = f"<style>{_file('page.css')}</style>"
    return f'<div class="mtd-page">{style}<h1>{escape(document.title)}</h1>{body}</div>'


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text()


def _section(section: Section, anchor: str = "") -> str:
    """Charts that follow each other stand side by side where there is room. Only a page has
    anchors, and a script."""
    parts, row = [f"<h{section.level}{anchor}>{escape(section.title)}</h{section.level}>"], []
    for block in section.blocks:
        if isinstance(block, Chart):
            row.append(_chart(block))
            continue
        parts += [_row(row), _block(block, section.level + 1, live=bool(anchor))]
        row = []
    return "".join([*parts, _row(row)])


def _row(figures: list[str]) -> str:
    return f'<div class="row">{"".join(figures)}</div>' if figures else ""


CHARTS: dict[type, Callable[[Any], str]] = {
    Bars: svg.bars,
    Groups: svg.groups,
    Intervals: svg.intervals,
    Lines: svg.lines,
}


def _chart(block: Chart) -> str:
    drawn = CHARTS[type(block)](block)
    return f"<figure>{_title(block.title)}{drawn}</figure>" if drawn else ""


def _title(words: str) -> str:
    return f'<div class="title">{escape(words)}</div>'


def _block(block: Block, level: int, live: bool) -> str:
    """`level` is that of headings within the section."""
    if isinstance(block, Heading):
        return f"<h{level}>{escape(block.words)}</h{level}>"
    if isinstance(block, Columns):
        return _columns(block, level)
    if isinstance(block, Maps):
        return _maps(block, level, live)
    return BLOCKS[type(block)](block)


def _matrices(block: Matrices) -> str:
    panels = "".join(f"<div>{svg.matrix(panel, block.most)}</div>" for panel in block.panels)
    return f'<figure>{_title(block.title)}<div class="row small">{panels}</div></figure>'


def _columns(block: Columns, level: int) -> str:
    columns = "".join(
        f"<div><h{level}>{escape(title)}</h{level}>{_lines(lines)}</div>"
        for title, lines in block.columns
    )
    return f'<div class="columns">{columns}</div>'


def _links(block: Links) -> str:
    links = ", ".join(
        f'<a href="{escape(file, quote=True)}">{escape(words)}</a>' for words, file in block.links
    )
    return f'<p class="soft">{links}</p>'


def _image(block: Image) -> str:
    return f'<img class="drawn" alt="{escape(block.title, quote=True)}" src="{_data(block.png)}">'


def _data(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _lines(lines: tuple[str, ...]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def _paragraphs(block: Text) -> str:
    if block.kind == "code":
        return "<pre>" + escape("\n".join(block.lines)) + "</pre>"
    if block.kind == "list":
        return "<ol>" + "".join(f"<li>{escape(line)}</li>" for line in block.lines) + "</ol>"
    lines = _lines(block.lines)
    return lines if block.kind == "plain" else f'<div class="{block.kind}">{lines}</div>'


def _table(block: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in block.header)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in block.rows)
    table = f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
    return (
        f"<details><summary>{escape(block.folded)}</summary>{table}</details>"
        if block.folded
        else table
    )


def _cell(words: str) -> str:
    if words in ("yes", "no"):
        return f'<td><span class="{words}">{words}</span></td>'
    return f'<td class="{"long" if len(words) > LONG_CELL else "short"}">{escape(words)}</td>'


def _maps(block: Maps, level: int, live: bool) -> str:
    live = live and all(panel.values.numel() <= MOST_TOLD for panel in block.panels)
    tip = '<div class="tip">Point at a cell for its value.</div>' if live else ""
    figures = "".join(
        f"<figure><figcaption>{escape(panel.title)}</figcaption>"
        f"{_map(block, panel, live)}{tip}</figure>"
        for panel in block.panels
    )
    least = f"{-block.most:.2g}" if block.changes else "0"
    scale = (
        f'<div class="scale">{least}<i style="background:{_gradient(block)}"></i>{block.most:.2g}'
        f"<span>{escape(block.note)}</span></div>"
    )
    inside = f'<div class="row maps">{figures}</div>' if block.square else figures
    return f"<h{level}>{escape(block.title)}</h{level}>{scale}{inside}"


def _map(block: Maps, panel: Map, live: bool) -> str:
    rows, columns = panel.values.shape
    shares = (panel.values.nan_to_num() / max(block.most, 1e-9)).clamp(-1, 1)
    label = escape(f"{panel.title}: {block.down} by {block.across}", quote=True)
    height = f"aspect-ratio:{columns}/{rows}" if block.square else f"height:{max(18, 15 * rows)}px"
    picture = (
        f'<img class="cells" alt="{label}" style="{height}" '
        f'src="{_data(_png(_colours(block, shares)))}"'
        f"{_told(block, panel, shares) if live else ''}>"
    )
    paths = "".join(
        f'<path d="M{" L".join(f"{x:g} {y:g}" for x, y in outline)}Z"/>'
        for outline in panel.outlines
    )
    marks = (
        f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" '
        f'stroke="{OUTLINE}">{paths}</svg>'
        if paths
        else ""
    )
    side = (
        "".join(f"<span>{escape(name)}</span>" for name in panel.row_names)
        if panel.row_names
        else f'<span class="down">{escape(block.down)}</span>'
    )
    ends = (
        f"<span>{panel.first_column}</span><span>{escape(block.across)}</span>"
        f"<span>{panel.first_column + columns - 1}</span>"
    )
    return (
        f'<div class="map"><div class="names">{side}</div><div class="field">{picture}{marks}</div>'
        f'<div class="across">{ends}</div></div>'
    )


def _told(block: Maps, panel: Map, shares: Float[Tensor, "row column"]) -> str:
    """What the script needs to tell a cell's value: two bytes a cell, and how rows and columns are
    called."""
    data = {
        "cells": base64.b64encode(
            (shares * 32767).round().to(torch.int16).numpy().astype("<i2").tobytes()
        ).decode(),
        "rows": shares.shape[0],
        "columns": shares.shape[1],
        "most": f"{block.most:.8g}",
        "first-row": panel.first_row,
        "first-column": panel.first_column,
        "down": block.down,
        "across": block.across,
        "names": json.dumps(panel.row_names, ensure_ascii=False) if panel.row_names else "",
    }
    return "".join(
        f' data-{name}="{escape(str(value), quote=True)}"' for name, value in data.items()
    )


def _colours(block: Maps, shares: Float[Tensor, "*cell"]) -> Any:
    """Of shares of the scale. Amounts by the square root: an average over many positions is small
    everywhere and would not be seen."""
    from matplotlib import colormaps

    if block.changes:
        return colormaps[CHANGE]((shares.double().numpy() + 1) / 2)
    return amounts()(shares.double().clamp(min=0).sqrt().numpy())


def _gradient(block: Maps) -> str:
    from matplotlib.colors import to_hex

    shares = torch.linspace(-1, 1, 9) if block.changes else torch.linspace(0, 1, 9) ** 2
    low = shares[0].item()
    stops = (
        f"{to_hex(colour)} {100 * (share - low) / (1 - low):.3g}%"
        for colour, share in zip(_colours(block, shares), shares.tolist(), strict=True)
    )
    return f"linear-gradient(90deg,{','.join(stops)})"


def _png(colours: Any) -> bytes:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, colours, format="png", metadata={"Software": "mtdinterp"})
    return buffer.getvalue()


BLOCKS: dict[type, Callable[[Any], str]] = {
    Text: _paragraphs,
    Table: _table,
    Matrices: _matrices,
    Links: _links,
    Image: _image,
}
