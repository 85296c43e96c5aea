"""Small charts with common axes: a dot per measurement, and means with intervals and references."""

import math
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from mtdinterp.pages.charts import Dot, Facet, Facets, Line, Mean, Sample
from mtdinterp.pages.ranges import Range, log_ticks, ticks
from mtdinterp.pages.scales import (
    MOST_LETTERS,
    all_samples,
    cut,
    gap,
    is_visible,
    offsets,
    place_axis,
    scale_of,
    thinned,
    value_axis,
)
from mtdinterp.pages.svg.elements import (
    DASHES,
    LETTER,
    SMALL,
    image,
    mark,
    small_text,
    text,
)
from mtdinterp.style import FAINT, INK, style_of

NARROW = 300
"""Width of one of many charts."""
WIDE = 440
"""Width of one of few charts."""
MOST_WIDE = 2
"""Charts that fit next to each other at the larger width."""
LEFT = 52
RIGHT = 8
TITLE_HEIGHT = 16
TITLE_SIZE = 13
TOP = 20
"""Room for the name of the y axis."""
PLOT_HEIGHT = 180
TICK_HEIGHT = 18
NAME_HEIGHT = 22
SLANT = math.sqrt(0.5)
"""Sine and cosine of the angle of slanted labels."""
SPACE = 8
"""Space between two labels of ticks."""
RADIUS = 4.2
SHAPES = {
    "s": "M{0} {0}H{1}V{1}H{0}Z",
    "^": "M{0} {1}H{1}L0 {0}Z",
    "v": "M{0} {0}H{1}L0 {1}Z",
    "D": "M0 {0}L{1} 0L0 {1}L{0} 0Z",
}
"""Marks around the origin by matplotlib's names, from {0} to {1} in both directions; others are
round."""


@dataclass(frozen=True)
class _Frame:
    """Where values lie in the image."""

    block: Facets
    width: int
    x_range: Range
    y_range: Range

    @property
    def top(self) -> int:
        """Room for the name of the y axis, and for titles if there are any."""
        has_titles = any(facet.title for facet in self.block.facets)
        return TOP + TITLE_HEIGHT if has_titles else TOP

    @property
    def bottom(self) -> int:
        return self.top + PLOT_HEIGHT

    def x_of(self, x: float) -> float:
        first, last = self.x_range
        return LEFT + (x - first) / (last - first) * (self.width - LEFT - RIGHT)

    def y_of(self, value: float) -> float:
        """The height of a value; of the frame's edge for values outside of it."""
        low, high = self.y_range
        place = scale_of(self.block)(value) if is_visible(self.block, value) else low
        share = (min(high, max(low, place)) - low) / (high - low)
        return self.bottom - share * PLOT_HEIGHT

    def is_inside(self, value: float) -> bool:
        if not is_visible(self.block, value):
            return False
        return self.y_range.low <= scale_of(self.block)(value) <= self.y_range.high


def facets(block: Facets) -> list[str]:
    """One SVG image per chart; none if there is nothing to show."""
    y_range = value_axis(block)
    if y_range is None:
        return []
    width = WIDE if len(block.facets) <= MOST_WIDE else NARROW
    frame = _Frame(block, width, place_axis(block), y_range)
    return [_facet(facet, frame) for facet in block.facets]


def legend(block: Facets) -> list[tuple[str, str]]:
    """A small SVG image for each sample and reference, with its label."""
    entries = []
    for sample in all_samples(block):
        style = style_of(sample.key)
        shape = _shape(style.marker, 13, 7, style.colour)
        entries.append((_sample_image(sample.key, f"{shape}/>"), sample.label))
    labels: dict[str, str] = {}
    for facet in block.facets:
        for line in facet.references:
            labels.setdefault(line.label, line.key)
    entries += [(_sample_image(key), label) for label, key in labels.items()]
    return entries


def _sample_image(key: str, mark_shape: str = "") -> str:
    style = style_of(key)
    line = (
        f'<path d="M0 7H26" stroke="{style.colour}" stroke-width="2" '
        f'stroke-dasharray="{DASHES[style.line]}"/>'
    )
    return f'<svg width="26" height="14" aria-hidden="true">{line}{mark_shape}</svg>'


def _facet(facet: Facet, frame: _Frame) -> str:
    block = frame.block
    moved = offsets(block)
    labels, bottom = _tick_labels(frame)
    parts = _box(frame) + labels
    for line in facet.references:
        parts += _reference(line, frame)
    for sample in facet.samples:
        parts += _sample(sample, moved[sample.key, sample.label], frame)
    y_name = f"{block.y_name} (logarithmic)" if block.logarithmic else block.y_name
    most = frame.width / LETTER
    parts.append(
        text(0, 12, cut(facet.title, most * SMALL / TITLE_SIZE), "start", TITLE_SIZE, weight="600")
    )
    parts.append(small_text(0, frame.top - 8, cut(y_name, most)))
    parts.append(small_text(frame.width - RIGHT, bottom + 14, cut(block.x_name, most), "end"))
    label = ", ".join(part for part in (block.title, facet.title) if part)
    return image(frame.width, bottom + NAME_HEIGHT, parts, label)


def _box(frame: _Frame) -> list[str]:
    """The frame with its horizontal grid lines."""
    right = frame.width - RIGHT
    parts = [
        f'<rect x="{LEFT}" y="{frame.top}" width="{right - LEFT}" height="{PLOT_HEIGHT}" '
        f'fill="none" stroke="{FAINT}"/>'
    ]
    make_ticks = log_ticks if frame.block.logarithmic else ticks
    for value in make_ticks(frame.y_range):
        y = frame.y_of(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="{FAINT}"/>')
        parts.append(small_text(LEFT - 6, y + 4, f"{value:g}", "end"))
    return parts


def _tick_labels(frame: _Frame) -> tuple[list[str], float]:
    """The labels of the x axis, and where they end."""
    labels = [cut(label, MOST_LETTERS) for _, label in frame.block.ticks]
    positions = [frame.x_of(x) for x, _ in frame.block.ticks]
    widths = [LETTER * len(label) + SPACE for label in labels]
    shown = thinned(positions, widths)
    y = frame.bottom + 15
    if len(shown) == len(labels) or frame.block.connected:
        parts = [small_text(positions[index], y, labels[index], "middle") for index in shown]
        return parts, frame.bottom + TICK_HEIGHT
    # Names of categories cannot be left out; they are slanted to fit.
    parts = [
        f'<text transform="translate({positions[index] + 4:.1f} {y - 3}) rotate(-45)" '
        f'font-size="{SMALL}" text-anchor="end" fill="{INK}">{escape(labels[index])}</text>'
        for index in thinned(positions, [SMALL + 1.0] * len(labels))
    ]
    longest = max(len(label) for label in labels)
    return parts, frame.bottom + 12 + SLANT * LETTER * longest


def _reference(line: Line, frame: _Frame) -> list[str]:
    """A line through all x, or a short one at each x that is a category."""
    points = [point for point in line.points if is_visible(frame.block, point[1])]
    style = style_of(line.key)
    stroke = (
        f'fill="none" stroke="{style.colour}" stroke-width="1.5" '
        f'stroke-dasharray="{DASHES[style.line]}"'
    )
    if frame.block.connected and len(points) > 1:
        corners = " ".join(f"{frame.x_of(x):.1f},{frame.y_of(y):.1f}" for x, y in points)
        return [mark(f'<polyline points="{corners}" {stroke}', line.label)]
    half = 0.4 * gap(frame.block)
    parts = []
    for x, y in points:
        place = f"M{frame.x_of(x - half):.1f} {frame.y_of(y):.1f}H{frame.x_of(x + half):.1f}"
        parts.append(mark(f'<path d="{place}" {stroke}', f"{line.label}: {y:.5g}"))
    return parts


def _sample(sample: Sample, offset: float, frame: _Frame) -> list[str]:
    """From back to front: the line through the means, the dots, the means with intervals."""
    style = style_of(sample.key)
    means = [mean for mean in sample.means if is_visible(frame.block, mean.value)]
    parts = []
    if frame.block.connected and len(means) > 1:
        corners = " ".join(
            f"{frame.x_of(mean.x + offset):.1f},{frame.y_of(mean.value):.1f}" for mean in means
        )
        parts.append(
            f'<polyline points="{corners}" fill="none" stroke="{style.colour}" '
            f'stroke-width="1.5" stroke-dasharray="{DASHES[style.line]}"/>'
        )
    for dot in sample.dots:
        if is_visible(frame.block, dot.value):
            parts.append(_dot(dot, style.colour, frame.x_of(dot.x + offset), frame))
    for mean in means:
        parts += _mean(mean, sample, frame.x_of(mean.x + offset), frame)
    return parts


def _dot(dot: Dot, colour: str, x: float, frame: _Frame) -> str:
    circle = mark(
        f'<circle cx="{x:.1f}" cy="{frame.y_of(dot.value):.1f}" r="2.6" fill="#ffffff" '
        f'fill-opacity="0.8" stroke="{colour}" stroke-width="1.2"',
        f"{dot.label}: {dot.value:.5g}",
    )
    return _linked(circle, dot.file)


def _linked(content: str, file: str) -> str:
    """A mark that links to a file, if there is one."""
    return f'<a href="{escape(quote(file), quote=True)}">{content}</a>' if file else content


def _mean(mean: Mean, sample: Sample, x: float, frame: _Frame) -> list[str]:
    """A mark at the mean; the interval is cut off at the frame, and has a cap where it is not."""
    style = style_of(sample.key)
    parts = []
    tooltip = f"{mean.label}: {mean.value:.5g}"
    if math.isfinite(mean.low):
        tooltip += f" ({mean.low:.5g} to {mean.high:.5g})"
        bar = f"M{x:.1f} {frame.y_of(mean.low):.1f}V{frame.y_of(mean.high):.1f}"
        for end in (mean.low, mean.high):
            if frame.is_inside(end):
                bar += f"M{x - 3:.1f} {frame.y_of(end):.1f}h6"
        parts.append(
            f'<path d="{bar}" fill="none" stroke="{style.colour}" stroke-width="1.4" '
            'stroke-opacity="0.7"/>'
        )
    shape = _shape(style.marker, x, frame.y_of(mean.value), style.colour)
    parts.append(_linked(mark(shape, tooltip), mean.file))
    return parts


def _shape(marker: str, x: float, y: float, colour: str) -> str:
    """The opening tag of a mark, without the closing bracket."""
    paint = f'fill="{colour}" stroke="#ffffff"'
    if marker not in SHAPES:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}" {paint}'
    size = RADIUS + 1 if marker == "D" else RADIUS
    path = SHAPES[marker].format(-size, size)
    return f'<path transform="translate({x:.1f} {y:.1f})" d="{path}" {paint}'
