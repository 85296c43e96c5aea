"""A scene as HTML that stands alone: for notebooks, and as the report of a view. No script, nothing fetched."""

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.image import imsave
from torch import Tensor

from mtdinterp import __version__
from mtdinterp.app.scene import Scene
from mtdinterp.app.views import METHODS, View, maps, view
from mtdinterp.app.words import beside
from mtdinterp.interventions import SweepResult
from mtdinterp.report.svg import ticks
from mtdinterp.style import FAINT, INK, LOOKS, PAIR, SEQUENTIAL

COLOURS = {"truth": INK, "exact_bayes": LOOKS["exact_bayes"].colour, "one_step": LOOKS["one_step"].colour,
           "construction": LOOKS["construction"].colour, "before": PAIR[0], "after": LOOKS["model"].colour}
"""Of the bars: a method's own colour, grey for the model before its edits."""

ALONE = ("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
         "img-src data:\">")
"""A page that is handed around may not call anybody, nor run anything, whatever somebody puts into it."""
STYLE = """
.mtd{font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:#1f2937;max-width:960px;background:#fff}
.mtd h1{font-size:1.3rem;margin:0 0 4px}.mtd h2{font-size:1.05rem;margin:24px 0 6px;border-bottom:1px solid #e5e7eb}
.mtd .soft{color:#6b7280;font-size:.9em;margin:4px 0}.mtd .row{display:flex;flex-wrap:wrap;gap:16px}
.mtd .row>*{flex:1 1 200px;margin:0}.mtd svg,.mtd img{width:100%;height:auto;display:block}
.mtd img{image-rendering:pixelated;border:1px solid #e5e7eb;aspect-ratio:1}
.mtd figcaption{font-size:.85em;color:#6b7280}
.mtd table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.mtd th,.mtd td{text-align:left;padding:3px 14px 3px 0;border-bottom:1px solid #e5e7eb}
.mtd pre{overflow-x:auto;background:#f3f4f6;padding:10px;border-radius:6px;font-size:.85em;max-height:24em}
.mtd img.sweep{aspect-ratio:auto;height:12em}
.mtd code{overflow-wrap:anywhere}
"""


def report_page(scene: Scene, code: str) -> str:
    """The whole page: what is looked at, the numbers, the maps, and the code that gives them again."""
    title = escape(scene.state.model.name)
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width,initial-scale=1">{ALONE}<title>{title}: a view</title></head>'
            f'<body style="margin:24px auto;max-width:960px;padding:0 16px">{fragment(scene)}'
            f'<div class="mtd"><h2>As Python</h2><pre>{escape(code)}</pre>'
            f'<p class="soft">mtdinterp {__version__}</p></div></body></html>')


def fragment(scene: Scene) -> str:
    """The view as one element."""
    found, names = view(scene), {**METHODS, "construction": beside(scene)}
    state, config = scene.state, scene.model.config
    role = "the construction for its task" if state.model.role == "construction" else config.architecture
    edits = "".join(f"<li>{escape(entry['text'])}{'' if entry['on'] else ' (off)'}</li>" for entry in found.edits)
    lags = [*(f"lag {lag + 1}" for lag in range(scene.task.order)), "other"]
    parts = [
        f"<style>{STYLE}</style><h1>{escape(state.model.name)}</h1>",
        f'<p class="soft">{escape(role)}, {len(scene.model.blocks)} layers, m = {scene.task.order}, '
        f"T = {scene.length}; β = {scene.beta:.4g}, δ = {state.model.delta:g}</p>",
        f"<p><code>{' '.join(map(str, state.tokens))}</code></p>",
        f"<h2>Edits</h2><ol>{edits}</ol>" if edits else "",
        '<div class="row">',
        f"<figure><figcaption>In-context weights</figcaption>{_bars(lags, found.weights, names)}</figure>",
        f"<figure><figcaption>Prediction of the next token</figcaption>"
        f"{_bars(list(map(str, range(scene.task.vocab_size))), found.predictions, names)}</figure></div>",
        _scores(found, names),
        "<h2>Attention</h2>", _maps(scene),
        f"<h2>Stream at position {scene.state.position % scene.length}</h2>", _blocks(found),
    ]
    return f'<div class="mtd">{"".join(parts)}</div>'


def _scores(found: View, names: Mapping[str, str]) -> str:
    judge = "truth" if found.judge == "truth" else "exact posterior mean"
    rows = "".join(f"<tr><td>{names[name]}</td><td>{value:.5f}</td></tr>" for name, value in found.kl.items()
                   if name != found.judge)
    return (f"<h2>Divergence</h2><table><tr><th>method</th><th>KL({judge} ‖ ·)</th></tr>{rows}</table>"
            f'<p class="soft">KL(before ‖ after) = {found.change:.5f}</p>')


def _maps(scene: Scene) -> str:
    columns = {"before": "before", "after": "after", "beside": beside(scene)}
    if scene.source is not None:
        columns["source"] = "source sequence"
    found = {which: maps(scene, which) for which in columns}
    largest = max(values.max().item() for values in found.values())
    rows = []
    for layer in range(len(scene.model.blocks)):
        figures = "".join(f'<figure><img alt="attention of layer {layer + 1}, {escape(words)}" '
                          f'src="{_picture(found[which][layer], largest)}"><figcaption>layer {layer + 1}, '
                          f"{escape(words)}</figcaption></figure>" for which, words in columns.items())
        rows.append(f'<div class="row">{figures}</div>')
    return ('<p class="soft">Queries down, keys across, darker (by the square root) is more; one scale, up to '
            f"{largest:.3g}.</p>" + "".join(rows))


def _blocks(found: View) -> str:
    rows = "".join(f"<tr><td><code>{escape(block['name'])}</code></td><td>{_entries(block['before'])}</td>"
                   f"<td>{_entries(block['after'])}</td></tr>" for block in found.blocks)
    return f"<table><tr><th>block</th><th>before</th><th>after</th></tr>{rows}</table>"


def _entries(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def sweep_fragment(result: SweepResult) -> str:
    """A sweep as one element: its heatmap by layer and part, and the strongest places."""
    rows = [(layer, part) for layer in range(len(result.values)) for part in range(len(result.parts))
            if not result.values[layer, 0, part].isnan()]
    values = torch.stack([result.values[layer, :, part] for layer, part in rows]) - result.unpatched
    picture = _picture(values.abs(), values.abs().max().item())
    names = " · ".join(f"{layer + 1} {result.parts[part]}" for layer, part in rows)
    strongest = "".join(f"<tr><td>{layer + 1}</td><td>{position}</td><td>{escape(result.parts[part])}</td>"
                        f"<td>{result.values[layer, position, part].item():.5f}</td></tr>"
                        for layer, position, part in result.strongest(5))
    return (f'<div class="mtd"><style>{STYLE}</style><p>{escape(result.summary())}</p>'
            f'<figure><img class="sweep" alt="patch sweep" src="{picture}"><figcaption>Positions across; down: '
            f"{escape(names)}. Darker moves the metric more.</figcaption></figure>"
            f"<table><tr><th>layer</th><th>position</th><th>part</th><th>metric</th></tr>{strongest}</table></div>")


def _picture(values: Tensor, largest: float) -> str:
    buffer = io.BytesIO()
    colours = LinearSegmentedColormap.from_list("attention", SEQUENTIAL)
    shares = (values.double() / max(largest, 1e-9)).clamp(0, 1).sqrt()  # so that an average can be seen too
    imsave(buffer, shares.numpy(), vmin=0, vmax=1, cmap=colours, format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _bars(categories: Sequence[str], series: Mapping[str, Sequence[float]], names: Mapping[str, str]) -> str:
    """Groups of bars with a legend, as inline SVG."""
    width, height, left, bottom, top = 460, 240, 34, 22, 40
    inner = (width - left) / len(categories)
    bar = 0.8 * inner / len(series)
    given = [value for values in series.values() for value in values]
    low, high = min(0.0, *given), max(1e-9, *given)  # an edit may write attention below zero

    def y(value: float) -> float:
        return height - bottom - (height - bottom - top) * (value - low) / (high - low)

    marks: list[str] = []
    for level in ticks(low, high):
        marks.append(f'<path d="M{left} {y(level):.1f}H{width}" stroke="{FAINT}"/><text x="{left - 4}" '
                     f'y="{y(level) + 4:.1f}" text-anchor="end">{level:g}</text>')
    for group, category in enumerate(categories):
        for number, (name, values) in enumerate(series.items()):
            x = left + group * inner + 0.1 * inner + number * bar
            fill = "none" if name == "truth" else COLOURS[name]
            upper, lower = sorted((y(values[group]), y(0)))
            marks.append(f'<rect x="{x:.1f}" y="{upper:.1f}" width="{0.9 * bar:.1f}" '
                         f'height="{lower - upper:.1f}" fill="{fill}" '
                         f'stroke="{COLOURS[name]}"><title>{names[name]}, {escape(category)}: {values[group]:.4f}'
                         "</title></rect>")
        marks.append(f'<text x="{left + (group + 0.5) * inner:.1f}" y="{height - 6}" text-anchor="middle">'
                     f"{escape(category)}</text>")
    return (f'<svg viewBox="0 0 {width} {height}" font-size="11" fill="{INK}" role="img">'
            f"{_legend({name: names[name] for name in series}, left)}{''.join(marks)}</svg>")


def _legend(names: Mapping[str, str], left: int) -> str:
    found: list[str] = []
    for number, (name, words) in enumerate(names.items()):
        x, y = left + 142 * (number % 3), 12 + 14 * (number // 3)
        fill = "none" if name == "truth" else COLOURS[name]
        found.append(f'<rect x="{x}" y="{y - 8}" width="9" height="9" fill="{fill}" stroke="{COLOURS[name]}"/>'
                     f'<text x="{x + 14}" y="{y}">{words}</text>')
    return "".join(found)
