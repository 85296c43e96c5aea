"""Heat maps with thousands of cells as HTML: inline PNG pictures with one pixel per cell."""

import base64
import io
import json
from html import escape
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.pages.blocks import Map, Maps
from mtdinterp.plotting import probability_colours
from mtdinterp.style import CHANGE, OUTLINE

MAX_INTERACTIVE_CELLS = 2**14
"""Larger maps show no values under the pointer, which would make the page much larger."""
ROW_HEIGHT = 15
"""Height in pixels of a row with a name."""
FULL_SCALE = 32767
"""The end of the colour scale as a 16-bit integer, the form in which the script gets values."""


def heat_maps(block: Maps, level: int, interactive: bool) -> str:
    """Heat maps with a heading and their colour scale.

    Args:
        block: the heat maps.
        level: the level of the heading.
        interactive: whether the page has the script that shows the value under the pointer.

    Returns:
        HTML elements.
    """
    is_small = all(panel.values.numel() <= MAX_INTERACTIVE_CELLS for panel in block.panels)
    interactive = interactive and is_small
    figures = "".join(_figure(block, panel, interactive) for panel in block.panels)
    if block.square:
        figures = f'<div class="row maps">{figures}</div>'
    return f"<h{level}>{escape(block.title)}</h{level}>{_scale(block)}{figures}"


def data_url(png: bytes) -> str:
    """A PNG as an inline image address."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _scale(block: Maps) -> str:
    """The colour scale with its ends, followed by the note."""
    low = f"{-block.largest:.2g}" if block.changes else "0"
    return (
        f'<div class="scale">{low}<i style="background:{_gradient(block)}"></i>'
        f"{block.largest:.2g}<span>{escape(block.note)}</span></div>"
    )


def _figure(block: Maps, panel: Map, interactive: bool) -> str:
    tip = '<div class="tip">Point at a cell for its value.</div>' if interactive else ""
    return (
        f"<figure><figcaption>{escape(panel.title)}</figcaption>"
        f"{_map(block, panel, interactive)}{tip}</figure>"
    )


def _map(block: Maps, panel: Map, interactive: bool) -> str:
    """The picture with its outlines, row names to the left and columns below."""
    columns = panel.values.shape[1]
    picture = _picture(block, panel, interactive)
    if panel.row_names:
        names = "".join(f"<span>{escape(name)}</span>" for name in panel.row_names)
    else:
        names = f'<span class="down">{escape(block.row_axis)}</span>'
    ends = (
        f"<span>{panel.first_column}</span><span>{escape(block.column_axis)}</span>"
        f"<span>{panel.first_column + columns - 1}</span>"
    )
    return (
        f'<div class="map"><div class="names">{names}</div>'
        f'<div class="field">{picture}{_outlines(panel)}</div>'
        f'<div class="across">{ends}</div></div>'
    )


def _picture(block: Maps, panel: Map, interactive: bool) -> str:
    rows, columns = panel.values.shape
    shares = (panel.values.nan_to_num() / max(block.largest, 1e-9)).clamp(-1, 1)
    label = escape(f"{panel.title}: {block.row_axis} by {block.column_axis}", quote=True)
    if block.square:
        height = f"aspect-ratio:{columns}/{rows}"
    else:
        height = f"height:{max(18, ROW_HEIGHT * rows)}px"
    source = data_url(_png(_colours(block, shares)))
    data = _cell_data(block, panel, shares) if interactive else ""
    return f'<img class="cells" alt="{label}" style="{height}" src="{source}"{data}>'


def _outlines(panel: Map) -> str:
    if not panel.outlines:
        return ""
    rows, columns = panel.values.shape
    paths = "".join(map(_outline, panel.outlines))
    return (
        f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" '
        f'stroke="{OUTLINE}">{paths}</svg>'
    )


def _outline(corners: tuple[tuple[float, float], ...]) -> str:
    path = " L".join(f"{x:g} {y:g}" for x, y in corners)
    return f'<path d="M{path}Z"/>'


def _cell_data(block: Maps, panel: Map, shares: Float[Tensor, "row column"]) -> str:
    """Data attributes for the script: two bytes per cell, and the names of rows and columns."""
    integers = (shares * FULL_SCALE).round().to(torch.int16)
    cells = integers.numpy().astype("<i2").tobytes()
    data = {
        "cells": base64.b64encode(cells).decode(),
        "rows": shares.shape[0],
        "columns": shares.shape[1],
        "most": f"{block.largest:.8g}",
        "first-row": panel.first_row,
        "first-column": panel.first_column,
        "down": block.row_axis,
        "across": block.column_axis,
        "names": json.dumps(panel.row_names, ensure_ascii=False) if panel.row_names else "",
    }
    return "".join(
        f' data-{name}="{escape(str(value), quote=True)}"' for name, value in data.items()
    )


def _colours(block: Maps, shares: Float[Tensor, "*cell"]) -> Any:
    """RGBA colours of values, given as shares of the scale.

    Probabilities are coloured by their square root: attention averaged over many positions is small
    everywhere and would be invisible on a linear scale.
    """
    from matplotlib import colormaps

    if block.changes:
        return colormaps[CHANGE]((shares.double().numpy() + 1) / 2)
    return probability_colours()(shares.double().clamp(min=0).sqrt().numpy())


def _gradient(block: Maps) -> str:
    """The colour scale as a CSS gradient."""
    from matplotlib.colors import to_hex

    shares = torch.linspace(-1, 1, 9) if block.changes else torch.linspace(0, 1, 9) ** 2
    low = shares[0].item()
    stops = []
    for colour, share in zip(_colours(block, shares), shares.tolist(), strict=True):
        percent = 100 * (share - low) / (1 - low)
        stops.append(f"{to_hex(colour)} {percent:.3g}%")
    return f"linear-gradient(90deg,{','.join(stops)})"


def _png(colours: Any) -> bytes:
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, colours, format="png", metadata={"Software": "mtdinterp"})
    return buffer.getvalue()
