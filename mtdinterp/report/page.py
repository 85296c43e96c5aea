"""One self-contained HTML page from a document: no network, no library, readable on a phone and in print.

Charts are inline SVG. Heat maps, which have thousands of cells, are drawn on a canvas by a short script, and show the
value under the pointer. Everything that comes from a checkpoint is escaped.
"""

import base64
import json
from html import escape
from pathlib import Path

import torch

from mtdinterp.report import svg
from mtdinterp.report.blocks import (
    Bars,
    Block,
    Document,
    Heading,
    Intervals,
    Lines,
    Map,
    Maps,
    Matrices,
    Section,
    Table,
    Text,
)

LONG_CELL = 28
"""Cells with more letters than this may be broken into lines."""


def render(document: Document) -> str:
    style, script = (Path(__file__).with_name(name).read_text() for name in ("page.css", "page.js"))
    title = escape(document.title)
    contents = "".join(f'<a href="#s{index}">{escape(section.title)}</a>'
                       for index, section in enumerate(document.sections) if section.level == 2)
    body = "".join(_section(index, section) for index, section in enumerate(document.sections))
    return ('<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            # A page that is handed around may not call anybody, whatever somebody puts into it.
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'; img-src data:\">"
            f"<title>{title}</title><style>{style}</style></head><body><h1>{title}</h1><nav>{contents}</nav>{body}"
            f"<script>{script}</script></body></html>")


def _section(index: int, section: Section) -> str:
    """Charts that follow each other stand side by side where there is room."""
    parts, row = [f'<h{section.level} id="s{index}">{escape(section.title)}</h{section.level}>'], []
    for block in section.blocks:
        if isinstance(block, Bars | Intervals | Lines):
            row.append(_chart(block))
            continue
        parts += [_row(row), _block(block, section.level + 1)]
        row = []
    return "".join([*parts, _row(row)])


def _row(figures: list[str]) -> str:
    return f'<div class="row">{"".join(figures)}</div>' if figures else ""


def _chart(block: Bars | Intervals | Lines) -> str:
    drawn = (svg.bars(block) if isinstance(block, Bars) else
             svg.intervals(block) if isinstance(block, Intervals) else svg.lines(block))
    return f'<figure><div class="title">{escape(block.title)}</div>{drawn}</figure>' if drawn else ""


def _block(block: Block, level: int) -> str:
    """`level` is that of headings within the section."""
    if isinstance(block, Heading):
        return f"<h{level}>{escape(block.words)}</h{level}>"
    if isinstance(block, Text):
        return _paragraphs(block)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Matrices):
        panels = "".join(f"<div>{svg.matrix(panel, block.most)}</div>" for panel in block.panels)
        return (f'<figure><div class="title">{escape(block.title)}</div><div class="row small">{panels}</div></figure>')
    assert isinstance(block, Maps)
    return _maps(block, level)


def _paragraphs(block: Text) -> str:
    if block.kind == "code":
        return "".join(f"<p><code>{escape(line)}</code></p>" for line in block.lines)
    lines = "".join(f"<p>{escape(line)}</p>" for line in block.lines)
    return lines if block.kind == "plain" else f'<div class="{block.kind}">{lines}</div>'


def _table(block: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in block.header)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in block.rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _cell(words: str) -> str:
    if words in ("yes", "no"):
        return f'<td><span class="{words}">{words}</span></td>'
    return f'<td class="{"long" if len(words) > LONG_CELL else "short"}">{escape(words)}</td>'


def _maps(block: Maps, level: int) -> str:
    figures = "".join(f'<figure><figcaption>{escape(panel.title)}</figcaption>{_map(block, panel)}'
                      '<div class="tip">Point at a cell for its value.</div></figure>' for panel in block.panels)
    least = f"{-block.most:.2g}" if block.changes else "0"
    scale = (f'<div class="scale">{least}<i class="{"change" if block.changes else "amount"}"></i>{block.most:.2g}'
             f"<span>{escape(block.note)}</span></div>")
    inside = f'<div class="row">{figures}</div>' if block.square else figures
    return f"<h{level}>{escape(block.title)}</h{level}>{scale}{inside}"


def _map(block: Maps, panel: Map) -> str:
    rows, columns = panel.values.shape
    shares = (panel.values.nan_to_num() / block.most).clamp(-1, 1)
    cells = base64.b64encode((shares * 32767).round().to(torch.int16).numpy().astype("<i2").tobytes()).decode()
    names = escape(json.dumps(panel.row_names, ensure_ascii=False), quote=True) if panel.row_names else ""
    label = escape(f"{panel.title}: {block.down} by {block.across}", quote=True)
    height = f"aspect-ratio:{columns}/{rows}" if block.square else f"height:{max(18, 15 * rows)}px"
    canvas = (f'<canvas role="img" aria-label="{label}" style="{height}" data-cells="{cells}" data-rows="{rows}" '
              f'data-columns="{columns}" data-most="{block.most:.8g}" data-first-row="{panel.first_row}" '
              f'data-changes="{"yes" if block.changes else "no"}" '
              f'data-first-column="{panel.first_column}" data-down="{escape(block.down)}" '
              f'data-across="{escape(block.across)}"' + (f' data-names="{names}"' if names else "") + "></canvas>")
    paths = "".join(f'<path d="M{" L".join(f"{x:g} {y:g}" for x, y in outline)}Z"/>' for outline in panel.outlines)
    marks = f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none">{paths}</svg>' if paths else ""
    side = ("".join(f"<span>{escape(name)}</span>" for name in panel.row_names) if panel.row_names
            else f'<span class="down">{escape(block.down)}</span>')
    ends = (f"<span>{panel.first_column}</span><span>{escape(block.across)}</span>"
            f"<span>{panel.first_column + columns - 1}</span>")
    return (f'<div class="map"><div class="names">{side}</div><div class="field">{canvas}{marks}</div>'
            f'<div class="across">{ends}</div></div>')
