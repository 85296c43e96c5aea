"""SVG elements as strings: the image, text, marks with tooltips, legends."""

from collections.abc import Sequence
from html import escape

from mtdinterp.style import INK

WIDTH = 440
"""Width of charts in SVG units, which are pixels at full size."""
SMALL = 11
"""Font size of tick labels, legends and units."""
LETTER = 6.4
"""Average width of a letter at that size."""
LEGEND_LINE = 14
"""Height of one line of a legend."""
DASHES = {"-": "", "--": "6 4", "-.": "6 3 1 3", ":": "1 4"}
"""SVG dash arrays of matplotlib's line styles."""
HALO = ' paint-order="stroke" stroke="#ffffff" stroke-width="3"'


def image(width: float, height: float, parts: Sequence[str], label: str) -> str:
    """A complete SVG image that scales with the page.

    Args:
        width: width of the drawing, and the largest width on the page in pixels.
        height: height of the drawing.
        parts: the SVG elements, from back to front.
        label: text that screen readers read instead of the image.

    Returns:
        The `<svg>` element.
    """
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label, quote=True)}" '
        f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px">{"".join(parts)}</svg>'
    )


def text(
    x: float,
    y: float,
    content: str,
    anchor: str = "start",
    size: int = 12,
    fill: str = INK,
    weight: str = "",
    halo: bool = False,
) -> str:
    """One line of text.

    Args:
        x: horizontal position of the anchor.
        y: position of the baseline.
        content: plain text, which is escaped here.
        anchor: "start", "middle" or "end" of the text lies at x.
        size: font size.
        fill: text colour.
        weight: font weight; normal if empty.
        halo: whether a white outline keeps the text readable over lines.

    Returns:
        The `<text>` element.
    """
    extra = f' font-weight="{weight}"' if weight else ""
    if halo:
        extra += HALO
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{extra}>'
        f"{escape(content)}</text>"
    )


def small_text(x: float, y: float, content: str, anchor: str = "start", halo: bool = False) -> str:
    """One line of text in the size of tick labels.

    Args:
        x: horizontal position of the anchor.
        y: position of the baseline.
        content: plain text, which is escaped here.
        anchor: "start", "middle" or "end" of the text lies at x.
        halo: whether a white outline keeps the text readable over lines.

    Returns:
        The `<text>` element.
    """
    return text(x, y, content, anchor, SMALL, halo=halo)


def text_beside_line(x: float, y: float, content: str, end: bool, halo: bool = False) -> str:
    """A label next to a vertical line.

    Args:
        x: position of the line.
        y: position of the baseline.
        content: plain text, which is escaped here.
        end: whether the label ends at the line instead of starting there.
        halo: whether a white outline keeps the text readable over lines.

    Returns:
        The `<text>` element.
    """
    if end:
        return small_text(x - 4, y, content, "end", halo)
    return small_text(x + 4, y, content, "start", halo)


def mark(shape: str, tooltip: str) -> str:
    """A shape with a tooltip; `shape` is its opening tag without the closing bracket."""
    tag = shape.split()[0][1:]
    return f"{shape}><title>{escape(tooltip)}</title></{tag}>"


def legend_places(labels: Sequence[str], sample: int = 14) -> list[tuple[int, int]]:
    """Where the entries of a legend start, from left to right in as many lines as needed.

    Args:
        labels: the labels of the entries.
        sample: width of the sample in front of each label.

    Returns:
        (x, baseline) for each entry.
    """
    places = []
    x = 0
    y = 10
    for label in labels:
        width = sample + 14 + round(LETTER * len(label))
        if x + width > WIDTH and x > 0:
            x = 0
            y += LEGEND_LINE
        places.append((x, y))
        x += width
    return places
