"""Charts as inline SVG: no script, text that can be selected, a tooltip on every mark.

Colours are the same for the same thing in every chart, and differ in lightness so that greyscale keeps them apart.
"""

import math
from collections.abc import Sequence
from html import escape

from mtdinterp.style import FAINT, INK, LOOKS, SEQUENTIAL

MODEL, ONE_STEP = LOOKS["model"].colour, LOOKS["one_step"].colour


def svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    """A figure that scales with the page; `label` is read out in its place."""
    return (f'<svg class="chart" role="img" aria-label="{escape(label, quote=True)}" '
            f'viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px">{"".join(parts)}</svg>')


def text(x: float, y: float, words: str, anchor: str = "start", size: int = 12, fill: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'


def mark(shape: str, tip: str) -> str:
    """A shape with a tooltip; the shape comes without its closing."""
    return f"{shape}><title>{escape(tip)}</title></{shape.split()[0][1:]}>"


def bars(rows: Sequence[tuple[str, str, float, float]], label: str, unit: str) -> str:
    """Horizontal bars from zero: (key for the colour, words, value, standard error)."""
    left, wide, step = 300, 360, 24
    largest = max((value + error for _, _, value, error in rows if math.isfinite(value)), default=1.0) or 1.0
    parts = []
    for index, (key, words, value, error) in enumerate(rows):
        y = 8 + index * step
        parts.append(text(left - 8, y + 13, words, "end"))
        if not math.isfinite(value):
            continue
        length = wide * value / largest
        parts.append(mark(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="16" fill="{LOOKS[key].colour}"',
                          f"{words}: {value:.5f} ± {error:.5f}"))
        low, high = (left + wide * max(0.0, value + sign * error) / largest for sign in (-1, 1))
        parts.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 8}" y2="{y + 8}" stroke="{INK}"/>')
        parts.append(text(max(left + length, high) + 6, y + 13, f"{value:.5f}", size=11))
    bottom = 8 + len(rows) * step
    parts.append(text(left, bottom + 14, unit, size=11))
    return svg(left + wide + 70, bottom + 22, parts, label)


def lines(
    series: Sequence[tuple[str, str, Sequence[float], Sequence[float | None]]], label: str, x_name: str, y_name: str,
    log_y: bool = False, verticals: Sequence[tuple[float, str]] = (), levels: Sequence[tuple[float, str, str]] = (),
) -> str:
    """Lines: (colour, words, x, y); `verticals` are marked steps, `levels` references (value, words, colour)."""
    width, height, left, right, top, bottom = 680, 280, 64, 16, 28, 44
    xs = [x for _, _, across, _ in series for x in across]

    def shown(y: float | None) -> bool:
        return y is not None and math.isfinite(y) and (y > 0 or not log_y)

    ys = [y for _, _, _, values in series for y in values if y is not None and shown(y)]
    ys += [value for value, _, _ in levels if value > 0 or not log_y]
    if not xs or not ys:
        return ""
    scale = math.log10 if log_y else float
    low, high = scale(min(ys)), scale(max(ys))
    if high - low < 1e-12:
        low, high = low - 0.5, high + 0.5
    pad = 0.05 * (high - low)
    low, high = low - pad, high + pad

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - min(xs)) / (max(xs) - min(xs) or 1)
        return left + across * (width - left - right), height - bottom - (scale(y) - low) / (high - low) * (
            height - top - bottom)

    parts = [f'<rect x="{left}" y="{top}" width="{width - left - right}" height="{height - top - bottom}" fill="none" '
             f'stroke="{FAINT}"/>']
    for value in ticks(low, high, log_y):
        _, y = place(min(xs), value)
        parts.append(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{FAINT}"/>')
        parts.append(text(left - 6, y + 4, f"{value:g}", "end", 11))
    for value in ticks(min(xs), max(xs), False):
        x, _ = place(value, 10**low if log_y else low)
        parts.append(text(x, height - bottom + 16, f"{value:g}", "middle", 11))
    for value, words, colour in levels:
        _, y = place(min(xs), value)
        parts.append(mark(f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" '
                          'stroke-dasharray="5 4"', f"{words}: {value:.5g}"))
        parts.append(text(width - right - 4, y - 4, words, "end", 11, colour))
    for value, words in verticals:
        x, _ = place(value, 10**low if log_y else low)
        parts.append(mark(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - bottom}" stroke="{INK}" '
                          'stroke-dasharray="2 3"', f"{words}: {value:g}"))
        parts.append(text(x + 3, top - 6, words, "start" if x < width / 2 else "end", 11))
    for colour, words, across, values in series:
        points = [(x, y, *place(x, y)) for x, y in zip(across, values, strict=True) if y is not None and shown(y)]
        path = " ".join(f"{px:.1f},{py:.1f}" for _, _, px, py in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [mark(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"', f"{words} at {x:g}: {y:.5g}")
                  for x, y, px, py in points]
    parts.append(text(left, height - 8, x_name, size=11))
    parts.append(text(4, 14, y_name, size=11))
    return svg(width, height, parts, label)


def ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Round numbers within the range; for a logarithmic axis the range is in powers of ten."""
    if logarithmic:
        found = [factor * 10.0**power for power in range(math.floor(low), math.ceil(high) + 1) for factor in (1, 2, 5)]
        inside = [value for value in found if low <= math.log10(value) <= high]
        return inside if len(inside) <= 6 else [value for value in inside if math.log10(value) % 1 < 1e-9]
    rough = (high - low) / 5 or 1.0
    size = 10.0 ** math.floor(math.log10(rough))
    step = min((factor * size for factor in (1, 2, 5, 10)), key=lambda value: abs(value - rough))
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def matrix(values: Sequence[Sequence[float]], title: str, subtitle: str, largest: float = 1.0) -> str:
    """A small heat map: rows down, columns across, darker is more, every cell with its number."""
    cell, left, top = 40, 26, 44
    size = len(values)
    parts = [text(left, 16, title, size=13), text(left, 32, subtitle, size=11)]
    for row, line in enumerate(values):
        parts.append(text(left - 6, top + row * cell + 25, str(row), "end", 11))
        parts.append(text(left + row * cell + cell / 2, top + size * cell + 14, str(row), "middle", 11))
        for column, value in enumerate(line):
            share = min(1.0, max(0.0, value / largest))
            x, y = left + column * cell, top + row * cell
            parts.append(mark(f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}" fill="{shade(share)}"',
                              f"from {row} to {column}: {value:.4f}"))
            if size <= 8:
                parts.append(text(x + cell / 2 - 0.5, y + 24, f"{value:.2f}", "middle", 11,
                                  "#ffffff" if share > 0.5 else INK))
    return svg(left + size * cell + 8, top + size * cell + 20, parts, f"{title}, {subtitle}")


def shade(share: float) -> str:
    """White to dark blue, evenly in lightness."""
    low, high = (bytes.fromhex(colour[1:]) for colour in SEQUENTIAL)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(low, high, strict=True))
