"""Charts as inline SVG: no script, text that can be selected, a tooltip on every mark.

Drawn narrow, so that their words stay readable on a phone; a wide page puts two side by side.
"""

import math
from collections.abc import Sequence
from html import escape

from mtdinterp.pages.blocks import Bars, Groups, Intervals, Level, Lines, Matrix
from mtdinterp.style import FAINT, INK, LOOKS, amounts

WIDTH = 440
DASHES = {"-": "", "--": "6 4", "-.": "6 3 1 3", ":": "1 4"}


def bars(block: Bars) -> str:
    """Words above every bar, its value behind it, the standard error as a line."""
    wide, step = WIDTH - 80, 36
    ends = [bar.value + _or_zero(bar.stderr) for bar in block.bars if math.isfinite(bar.value)]
    largest = max(ends, default=0) or 1.0
    parts = []
    for index, bar in enumerate(block.bars):
        y = index * step
        parts.append(_text(0, y + 13, bar.words, weight="600" if bar.words == "this model" else ""))
        if not math.isfinite(bar.value):
            parts.append(_text(0, y + 29, "not a number", size=11))
            continue
        length, error = max(0.0, wide * bar.value / largest), _or_zero(bar.stderr)
        parts.append(
            _mark(
                f'<rect x="0" y="{y + 18}" width="{length:.1f}" height="12" '
                f'fill="{LOOKS[bar.key].colour}"',
                f"{bar.words}: {bar.value:.5f} ± {error:.5f}",
            )
        )
        low, high = (wide * max(0.0, bar.value + sign * error) / largest for sign in (-1, 1))
        parts.append(f'<path d="M{low:.1f} {y + 24}H{high:.1f}" stroke="{INK}"/>')
        parts.append(_text(max(length, high) + 6, y + 28, f"{bar.value:.5f}", size=11))
    bottom = len(block.bars) * step
    parts.append(_text(0, bottom + 14, block.unit, size=11))
    return _svg(WIDTH, bottom + 20, parts, block.title)


def groups(block: Groups) -> str:
    """Standing bars with a legend above; they hang where a value is below zero."""
    if not block.series or not block.categories:
        return ""
    places = _legend_places([series.words for series in block.series])
    left, bottom, top = 34, 22, places[-1][1] + 8
    height = 200 + top
    group_width = (WIDTH - left) / len(block.categories)
    bar_width = 0.8 * group_width / len(block.series)
    given = [value for series in block.series for value in series.values if math.isfinite(value)]
    low, high = min([0.0, *given]), max([1e-9, *given])

    def y_of(value: float) -> float:
        return height - bottom - (height - bottom - top) * (value - low) / (high - low)

    parts = []
    for value in ticks(low, high):
        parts.append(f'<path d="M{left} {y_of(value):.1f}H{WIDTH}" stroke="{FAINT}"/>')
        parts.append(_text(left - 4, y_of(value) + 4, f"{value:g}", "end", 11))
    for number, (series, (beside, below)) in enumerate(zip(block.series, places, strict=True)):
        parts.append(
            f'<rect x="{beside}" y="{below - 8}" width="9" height="9" {_fill(series.key)}/>'
        )
        parts.append(_text(beside + 14, below, series.words, size=11))
        for group, (category, value) in enumerate(
            zip(block.categories, series.values, strict=True)
        ):
            if math.isfinite(value):
                x = left + (group + 0.1) * group_width + number * bar_width
                upper, lower = sorted((y_of(value), y_of(0)))
                parts.append(
                    _mark(
                        f'<rect x="{x:.1f}" y="{upper:.1f}" width="{0.9 * bar_width:.1f}" '
                        f'height="{lower - upper:.1f}" {_fill(series.key)}',
                        f"{series.words}, {category}: {value:.4f}",
                    )
                )
    for group, category in enumerate(block.categories):
        parts.append(_text(left + (group + 0.5) * group_width, height - 6, category, "middle", 11))
    return _svg(WIDTH, height, parts, block.title)


def _legend_places(names: Sequence[str], sample: int = 14) -> list[tuple[int, int]]:
    """Where samples of a legend stand, each with its words behind it: one after the other, in as
    many lines as it takes."""
    places, x, y = [], 0, 10
    for words in names:
        width = sample + 14 + round(6.4 * len(words))
        if x + width > WIDTH and x > 0:
            x, y = 0, y + 14
        places.append((x, y))
        x += width
    return places


def _fill(key: str) -> str:
    colour = LOOKS[key].colour
    return f'fill="{"none" if key == "truth" else colour}" stroke="{colour}"'


def intervals(block: Intervals) -> str:
    """A point with its 95% interval a row, and dashed lines where the points ought to be."""
    left, right, top, step = 4, 12, 40, 44
    ends = [
        value for reading in block.readings for value in _interval(reading.value, reading.stderr)
    ]
    ends += [level.value for level in block.levels]
    ends = [value for value in ends if math.isfinite(value)] or [0.0, 1.0]
    low, high = _padded(min(0.0, *ends), max(ends))

    def x_of(value: float) -> float:
        return left + (value - low) / (high - low) * (WIDTH - left - right)

    bottom = top + step * len(block.readings)
    parts = []
    for value in ticks(low, high):
        parts.append(f'<path d="M{x_of(value):.1f} {top}V{bottom}" stroke="{FAINT}"/>')
        parts.append(_text(x_of(value), bottom + 15, f"{value:g}", "middle", 11))
    for index, level in enumerate(level for level in block.levels if math.isfinite(level.value)):
        look, x = LOOKS[level.key], x_of(level.value)
        parts.append(
            _mark(
                f'<path d="M{x:.1f} {top - 4}V{bottom}" stroke="{look.colour}" stroke-width="1.5" '
                f'stroke-dasharray="{DASHES[look.line]}"',
                f"{level.words}: {level.value:.2f}",
            )
        )
        anchor = "end" if x > WIDTH / 2 else "start"
        parts.append(
            _text(
                x + (-4 if anchor == "end" else 4),
                12 + 14 * index,
                f"{level.words} {level.value:.2f}",
                anchor,
                11,
            )
        )
    for index, reading in enumerate(block.readings):
        y = top + step * index + 30
        number = f"{reading.value:.2f}" + (
            f" ± {reading.stderr:.2f}" if math.isfinite(reading.stderr) else ""
        )
        parts.append(_text(left, y - 12, f"{reading.words}: {number} ({reading.note})", halo=True))
        if math.isfinite(reading.value):
            first, last = (x_of(value) for value in _interval(reading.value, reading.stderr))
            parts.append(
                f'<path d="M{first:.1f} {y}H{last:.1f}" stroke="{LOOKS["model"].colour}" '
                'stroke-width="3"/>'
            )
            parts.append(
                _mark(
                    f'<circle cx="{x_of(reading.value):.1f}" cy="{y}" r="4.5" '
                    f'fill="{LOOKS["model"].colour}"',
                    f"{reading.words}: {number}",
                )
            )
    parts.append(_text(WIDTH - right, bottom + 29, block.unit, "end", 11))
    return _svg(WIDTH, bottom + 36, parts, block.title)


def lines(block: Lines) -> str:
    """Lines with a point each value; levels as dashed lines, moments as dotted ones named above the
    frame."""
    height, left, right, bottom = 264, 52, 10, 42
    ends = [x for line in block.lines for x, _ in line.points] or [0.0]
    moments = [moment for moment in block.moments if min(ends) <= moment[0] <= max(ends)]
    places = _legend_places([line.words for line in block.lines], sample=28)
    legend = places[-1][1] + 6 if len(block.lines) > 1 else 0
    top = 20 + 14 * len(moments) + legend
    scale = math.log10 if block.logarithmic else float
    levels = [level for level in block.levels if _shown(level.value, block.logarithmic)]
    points = [
        point
        for line in block.lines
        for point in line.points
        if _shown(point[1], block.logarithmic)
    ]
    if not points:
        return ""
    xs = [x for x, _ in points]
    first, last = min(xs), max(xs)
    ys = [scale(y) for _, y in points] + [scale(level.value) for level in levels]
    low, high = _padded(min(ys), max(ys), 0.08)
    height += top

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / ((last - first) or 1)
        return (
            left + across * (WIDTH - left - right),
            height - bottom - (scale(y) - low) / (high - low) * (height - top - bottom),
        )

    parts = [
        f'<rect x="{left}" y="{top}" width="{WIDTH - left - right}" '
        f'height="{height - top - bottom}" fill="none" '
        f'stroke="{FAINT}"/>'
    ]
    for value in log_ticks(low, high) if block.logarithmic else ticks(low, high):
        _, y = place(first, value)
        parts.append(f'<path d="M{left} {y:.1f}H{WIDTH - right}" stroke="{FAINT}"/>')
        parts.append(_text(left - 6, y + 4, f"{value:g}", "end", 11))
    floor = 10**low if block.logarithmic else low
    for value in ticks(first, last):
        x, _ = place(value, floor)
        parts.append(_text(x, height - bottom + 16, f"{value:g}", "middle", 11))
    for level in levels:
        y = place(first, level.value)[1]
        # Above its line, or below where the line is low: there a curve that came down to it is
        # above.
        low_down = y > (top + height - bottom) / 2
        parts += _level(level, y, left, WIDTH - right, below=low_down and block.logarithmic)
    for index, (moment, words) in enumerate(moments):
        x, _ = place(moment, floor)
        parts.append(
            _mark(
                f'<path d="M{x:.1f} {18 + 14 * index}V{height - bottom}" stroke="{INK}" '
                'stroke-dasharray="2 3"',
                f"{words}: {moment:g}",
            )
        )
        anchor = "start" if x < WIDTH / 2 else "end"
        parts.append(
            _text(
                x + (4 if anchor == "start" else -4),
                27 + 14 * index,
                f"{words} ({moment:g})",
                anchor,
                11,
                halo=True,
            )
        )
    for line, (beside, below) in zip(block.lines, places, strict=True):
        look = LOOKS[line.key]
        if legend:
            y = top - legend + below - 4
            parts.append(
                f'<path d="M{beside} {y}h22" stroke="{look.colour}" stroke-width="2" '
                f'stroke-dasharray="{DASHES[look.line]}"/>'
                + _text(beside + 28, y + 4, line.words, size=11)
            )
        shown = [(x, y, *place(x, y)) for x, y in line.points if _shown(y, block.logarithmic)]
        path = " ".join(f"{px:.1f},{py:.1f}" for _, _, px, py in shown)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{look.colour}" stroke-width="2" '
            f'stroke-dasharray="{DASHES[look.line]}"/>'
        )
        parts += [
            _mark(
                f'<circle cx="{px:.1f}" cy="{py:.1f}" r="2.5" fill="{look.colour}"',
                f"{line.words} at {x:g}: {y:.5g}",
            )
            for x, y, px, py in shown
        ]
    parts.append(_text(WIDTH - right, height - 8, block.x_name, "end", 11))
    parts.append(
        _text(0, 11, block.y_name + (" (logarithmic)" if block.logarithmic else ""), size=11)
    )
    return _svg(WIDTH, height, parts, block.title)


def matrix(panel: Matrix, most: float) -> str:
    """A small heat map: rows down, columns across, darker is more, every cell with its number."""
    from matplotlib.colors import to_hex

    cell, left, top = 40, 20, 42
    size, colours = len(panel.values), amounts()
    parts = [
        _text(left, 14, panel.title, size=13, weight="600"),
        _text(left, 30, panel.subtitle, size=11),
    ]
    for row, line in enumerate(panel.values.tolist()):
        parts.append(_text(left - 6, top + row * cell + 25, str(row), "end", 11))
        parts.append(
            _text(left + row * cell + cell / 2, top + size * cell + 14, str(row), "middle", 11)
        )
        for column, value in enumerate(line):
            share = min(1.0, max(0.0, value / most))
            x, y = left + column * cell, top + row * cell
            parts.append(
                _mark(
                    f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}" '
                    f'fill="{to_hex(colours(share))}"',
                    f"from {row} to {column}: {value:.4f}",
                )
            )
            if size <= 8:
                parts.append(
                    _text(
                        x + cell / 2 - 0.5,
                        y + 24,
                        f"{value:.2f}",
                        "middle",
                        11,
                        "#ffffff" if share > 0.5 else INK,
                    )
                )
    return _svg(
        left + size * cell + 4, top + size * cell + 18, parts, f"{panel.title}, {panel.subtitle}"
    )


def ticks(low: float, high: float) -> list[float]:
    """Some five round numbers within the range."""
    rough = (high - low) / 5 or 1.0
    size = 10.0 ** math.floor(math.log10(rough))
    step = min((factor * size for factor in (1, 2, 5, 10)), key=lambda value: abs(value - rough))
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two powers of ten, given by their exponents."""
    found = [
        factor * 10.0**power
        for power in range(math.floor(low), math.ceil(high) + 1)
        for factor in (1, 2, 5)
    ]
    inside = [value for value in found if low <= math.log10(value) <= high]
    return (
        inside if len(inside) <= 6 else [value for value in inside if math.log10(value) % 1 < 1e-9]
    )


def _level(level: Level, y: float, left: float, right: float, below: bool) -> list[str]:
    look = LOOKS[level.key]
    line = (
        f'<path d="M{left} {y:.1f}H{right}" stroke="{look.colour}" stroke-width="1.5" '
        f'stroke-dasharray="{DASHES[look.line]}"'
    )
    return [
        _mark(line, f"{level.words}: {level.value:.5g}"),
        _text(right - 4, y + (13 if below else -4), level.words, "end", 11, halo=True),
    ]


def _shown(value: float, logarithmic: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not logarithmic)


def _interval(value: float, stderr: float) -> tuple[float, float]:
    reach = 1.96 * _or_zero(stderr)
    return value - reach, value + reach


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _padded(low: float, high: float, share: float = 0.05) -> tuple[float, float]:
    pad = share * (high - low) or 0.5
    return low - pad, high + pad


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    """A figure that scales with the page; `label` is read out in its place."""
    return (
        f'<svg class="chart" role="img" aria-label="{escape(label, quote=True)}" '
        f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px">{"".join(parts)}</svg>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    anchor: str = "start",
    size: int = 12,
    fill: str = INK,
    weight: str = "",
    halo: bool = False,
) -> str:
    """Words; a halo keeps them readable over lines."""
    heavy = f' font-weight="{weight}"' if weight else ""
    heavy += ' paint-order="stroke" stroke="#ffffff" stroke-width="3"' if halo else ""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{heavy}>'
        f"{escape(words)}</text>"
    )


def _mark(shape: str, tip: str) -> str:
    """A shape with a tooltip; the shape comes without its closing."""
    return f"{shape}><title>{escape(tip)}</title></{shape.split()[0][1:]}>"
