"""A small heat map: rows down, columns across, and the number in every cell."""

from mtdinterp.pages.blocks import Matrix
from mtdinterp.pages.svg.elements import SMALL, image, mark, small_text, text
from mtdinterp.plotting import probability_colours
from mtdinterp.style import INK

CELL = 40
"""Height and width of a cell."""
LEFT = 20
TOP = 42
MAX_WRITTEN = 8
"""Matrices with more rows than this show their numbers in tooltips only."""


def matrix(panel: Matrix, largest: float) -> str:
    """The matrix as an SVG image; `largest` is the value of the darkest colour."""
    size = len(panel.values)
    bottom = TOP + size * CELL
    parts = [
        text(LEFT, 14, panel.title, size=13, weight="600"),
        small_text(LEFT, 30, panel.subtitle),
    ]
    for row, values in enumerate(panel.values.tolist()):
        parts.append(small_text(LEFT - 6, TOP + row * CELL + 25, str(row), "end"))
        parts.append(small_text(LEFT + row * CELL + CELL / 2, bottom + 14, str(row), "middle"))
        for column, value in enumerate(values):
            parts += _cell(row, column, value, largest, written=size <= MAX_WRITTEN)
    label = f"{panel.title}, {panel.subtitle}"
    return image(LEFT + size * CELL + 4, bottom + 18, parts, label)


def _cell(row: int, column: int, value: float, largest: float, written: bool) -> list[str]:
    from matplotlib.colors import to_hex

    share = min(1.0, max(0.0, value / largest))
    x = LEFT + column * CELL
    y = TOP + row * CELL
    colour = to_hex(probability_colours()(share))
    square = mark(
        f'<rect x="{x}" y="{y}" width="{CELL - 1}" height="{CELL - 1}" fill="{colour}"',
        f"from {row} to {column}: {value:.4f}",
    )
    if not written:
        return [square]
    ink = "#ffffff" if share > 0.5 else INK
    number = text(x + CELL / 2 - 0.5, y + 24, f"{value:.2f}", "middle", SMALL, ink)
    return [square, number]
