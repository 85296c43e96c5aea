"""One self-contained HTML page from findings and verdicts: no network, no library, readable on a phone and in print.

Charts are inline SVG. Attention maps, which have thousands of cells, are drawn on a canvas by a few lines of script
from one byte a cell, and show the value under the pointer. Everything that comes from a checkpoint is escaped.
"""

import base64
from collections.abc import Sequence
from html import escape

from torch import Tensor

from mtdinterp.fitting import WORDS
from mtdinterp.report import charts
from mtdinterp.report.collect import Findings
from mtdinterp.report.verdict import Claim, Verdict
from probes.decode_latents import QUANTITIES
from probes.recover_transition import ESTIMATES

STYLE = """
:root{--ink:#1f2937;--soft:#6b7280;--line:#e5e7eb;--accent:#1d4ed8;--good:#166534;--bad:#9a3412}
*{box-sizing:border-box}
body{margin:0 auto;max-width:920px;padding:24px 18px 64px;color:var(--ink);background:#fff;
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5rem;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:40px 0 8px;
border-bottom:1px solid var(--line);padding-bottom:4px}h3{font-size:1rem;margin:20px 0 4px}
p{margin:8px 0}.soft{color:var(--soft);font-size:.9rem}.answer{font-size:1.08rem;border-left:4px solid var(--accent);
padding:2px 0 2px 14px;margin:16px 0}.misfit{border-left-color:var(--bad)}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.88rem;min-width:100%}
th,td{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}
td.number{font-variant-numeric:tabular-nums;white-space:nowrap}.yes{color:var(--good)}.no{color:var(--bad)}
.chart{width:100%;height:auto;display:block;font-family:inherit}.row{display:flex;flex-wrap:wrap;gap:18px}
.row>*{flex:1 1 240px;max-width:300px}figure{margin:10px 0}figcaption{font-size:.88rem;color:var(--soft)}
canvas{width:100%;image-rendering:pixelated;border:1px solid var(--line);aspect-ratio:1}
.tip{font-size:.85rem;min-height:1.5em;font-variant-numeric:tabular-nums;color:var(--soft)}
dt{font-weight:600;margin-top:8px}dd{margin:0 0 0 1em}code{font-size:.88em;overflow-wrap:anywhere}
@media print{body{max-width:none;font-size:11pt}h2{break-after:avoid}figure,table{break-inside:avoid}}
"""

SCRIPT = """
document.querySelectorAll("canvas[data-cells]").forEach(function(c){
var n=+c.dataset.size,b=atob(c.dataset.cells),g=c.getContext("2d"),im=g.createImageData(n,n),m=+c.dataset.most;
c.width=n;c.height=n;
for(var k=0;k<n*n;k++){var s=b.charCodeAt(k)/255;im.data[4*k]=255-247*s;im.data[4*k+1]=255-207*s;
im.data[4*k+2]=255-148*s;im.data[4*k+3]=255}
g.putImageData(im,0,0);c.dataset.drawn="yes";
c.addEventListener("pointermove",function(e){var r=c.getBoundingClientRect(),
j=Math.min(n-1,Math.floor((e.clientX-r.left)/r.width*n)),i=Math.min(n-1,Math.floor((e.clientY-r.top)/r.height*n)),
f=+c.dataset.first,t=c.closest("figure").querySelector(".tip");
t.textContent="query "+(f+i)+", key "+(f+j)+" (offset "+(i-j)+"): "+(j>i?"not visible":
(b.charCodeAt(i*n+j)/255*m).toFixed(3))});
});
"""

DEFINITIONS = {
    "MTD task": "Each token is drawn from row y_{t-g} of a fixed matrix π; the lag g is random with weights λ that "
                "differ from sequence to sequence (eq. mtd_definition).",
    "γ, Γ": "Responsibility of lag g at a position under uniform weights, and its average over positions m..T-1.",
    "one-step mirror descent": "Weights softmax(β·Γ), β = η·m·(T-m): one exponentiated-gradient step from uniform "
                               "weights (eq. eg_update).",
    "KL to the truth": "Mean KL(true next-token distribution ‖ prediction) over held-out sequences. Outputs are "
                       "clipped at 1e-6 and normalised.",
    "gain, branch": "Slope of what layers 1 and 2 average on Γ. Direct if positive, mirrored if negative, undecided if "
                    "it explains less than half of the variance.",
    "gauge": "Attention ignores a constant for every query token, so π is visible in layer 1 only up to one; the "
             "stationary marginal fixes it. The paper's probe does not.",
    "interchange": "A variable is taken from another sequence, in the model at a site and in the algorithm; R² says "
                   "how alike both outputs move. 1 is exactly alike.",
    "exact posterior mean": "E[λ | tokens] under the Dirichlet prior, by quadrature: the Bayes optimum "
                            "(eq. bayes_optimal_predictor_main).",
}


def render(findings: Sequence[Findings], verdicts: Sequence[Verdict], command: str) -> str:
    """The page: the answer of every model first, a comparison where there are several, then each model in full."""
    names = ", ".join(entry.name for entry in findings)
    body = [f"<h1>What did {escape(names)} learn?</h1>"]
    if len(findings) > 1:
        body.append(_comparison(findings, verdicts))
    for entry, verdict in zip(findings, verdicts, strict=True):
        body.append(_model(entry, verdict, titled=len(findings) > 1))
    body += ["<h2>How it was made</h2>", _origin(findings, command), "<h2>Words</h2><dl>",
             *(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in DEFINITIONS.items()), "</dl>"]
    return ("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
            f"content=\"width=device-width,initial-scale=1\"><title>{escape(names)}: report</title>"
            f"<style>{STYLE}</style></head><body>{''.join(body)}<script>{SCRIPT}</script></body></html>")


def _comparison(findings: Sequence[Findings], verdicts: Sequence[Verdict]) -> str:
    rows = [(entry.name, WORDS.get(verdict.algorithm, verdict.algorithm), verdict.branch,
             f"{entry.model_score.kl:.5f}", f"{verdict.kl_ratio:.3f}",
             f"{entry.beta.output:.2f} ({entry.beta.optimal:.2f})",
             *(f"{entry.transition.row_kl[name]:.4f}" for name in ("attention", "output")))
            for entry, verdict in zip(findings, verdicts, strict=True)]
    header = ("model", "algorithm", "branch", "KL", "over one-step", "β by output (optimum)", "π by attention",
              "by output")
    return "<h2>Side by side</h2>" + _table(header, rows)


def _model(entry: Findings, verdict: Verdict, titled: bool) -> str:
    config = entry.checkpoint.model.config
    parts = [f"<h2>{escape(entry.name)}</h2>" if titled else "",
             f'<p class="soft">{config.architecture}, {config.n_layers} layers, {config.vocab_size} tokens, '
             f"m = {entry.checkpoint.task.order}, T = {config.length}</p>",
             '<div class="answer">' + "".join(f"<p>{escape(line)}</p>" for line in verdict.sentences) + "</div>"]
    if verdict.misfits:
        parts.append('<div class="answer misfit"><p>What does not fit:</p>'
                     + "".join(f"<p>{escape(line)}</p>" for line in verdict.misfits) + "</div>")
    sections = {
        "Claims": _claims(verdict.claims),
        "Attention, next to the construction's": _maps(entry),
        "The transition matrix": _transition(entry),
        "The learning rate": _pre(entry.beta.summary()),
        "KL to the truth": _estimators(entry),
        "Which algorithm": _pre(entry.algorithm.summary()),
        "Where the quantities live": _latents(entry),
        "Does it use them?": _interventions(entry),
    }
    parts += [f"<h2>{escape(title)}</h2>{content}" for title, content in sections.items()]
    if entry.development is not None:
        parts += ["<h2>How it came about</h2>", _history(entry)]
    return "".join(parts)


def _claims(claims: Sequence[Claim]) -> str:
    words = {True: '<span class="yes">yes</span>', False: '<span class="no">no</span>', None: "—"}
    rows = "".join(f"<tr><td>{escape(claim.claim)}</td><td>{escape(claim.evidence)}</td><td class=\"number\">"
                   f"{escape(claim.number)}</td><td>{escape(claim.control)}</td><td>{words[claim.passed]}</td></tr>"
                   for claim in claims)
    head = "".join(f"<th>{name}</th>" for name in ("claim", "evidence", "number", "control", "holds"))
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _maps(entry: Findings) -> str:
    compared = entry.attention
    constants = ", ".join(f"{name} = {value:.3g}" for name, value in compared.constants.items())
    source = "read from the model" if compared.fitted else "the task's optimum, the model shows none"
    parts = [f'<p class="soft">{escape(compared.construction)} construction with {escape(constants)} ({source}); one '
             f"sequence, its last {len(entry.tokens)} positions, queries down, keys across, one scale in each pair. "
             "The construction is meant at the last query only, except in layer 1.</p>"]
    first = entry.checkpoint.model.config.length - len(entry.tokens)
    for found, layer in zip(entry.maps, compared.layers, strict=True):
        most = max(found.own.max().item(), found.ideal.max().item(), 1e-9)
        pair = "".join(f"<figure>{_canvas(values, most, first)}<figcaption>{title}, layer {found.layer}</figcaption>"
                       '<div class="tip">Point at a cell for its value.</div></figure>'
                       for title, values in (("model", found.own), ("construction", found.ideal)))
        parts.append(f"<h3>Layer {found.layer}: total variation {layer.distance:.3f} (uniform attention "
                     f"{layer.uniform_distance:.3f}), {layer.mass_on_lags:.0%} on the lags</h3>"
                     f'<div class="row">{pair}</div>')
    return "".join(parts)


def _canvas(values: Tensor, most: float, first: int) -> str:
    cells = bytes(round(255 * min(1.0, max(0.0, value / most))) for value in values.flatten().tolist())
    return (f'<canvas data-cells="{base64.b64encode(cells).decode()}" data-size="{len(values)}" data-most="{most:.6g}" '
            f'data-first="{first}" role="img" aria-label="attention map"></canvas>')


def _transition(entry: Findings) -> str:
    found, truth = entry.transition, entry.checkpoint.task.transition
    largest = truth.max().item()
    shown = (("the truth", "π", truth), ("paper's probe", f"row KL {found.row_kl['attention_softmax']:.4f}",
                                         found.attention_softmax),
             ("layer 1, gauge fixed", f"row KL {found.row_kl['attention']:.4f}", found.attention),
             ("output", f"row KL {found.row_kl['output']:.4f}", found.output))
    pictures = "".join(f"<div>{charts.matrix(values.tolist(), title, subtitle, largest)}</div>"
                       for title, subtitle, values in shown)
    rows = [(ESTIMATES[name], f"{found.row_kl[name]:.4f}", f"{found.total_variation[name]:.3f}") for name in ESTIMATES]
    rows.append(("control: the token marginal alone", f"{found.control_kl:.4f}", ""))
    return f'<div class="row">{pictures}</div>' + _table(("read from", "row KL", "total variation"), rows)


def _estimators(entry: Findings) -> str:
    rows = [("model", "this model", entry.model_score.kl, entry.model_score.stderr)]
    rows += [(name, WORDS[name], found.kl, found.stderr) for name, found in entry.estimators.items()]
    rows.sort(key=lambda row: row[2])
    return charts.bars(rows, "KL to the truth by estimator",
                       "KL(truth ‖ prediction) on held-out sequences, with standard errors")


def _latents(entry: Findings) -> str:
    rows = []
    for name, meaning in QUANTITIES.items():
        if name in entry.latents.table:
            place, found = entry.latents.best(name)
            rows.append((meaning, place, f"{found.r2:.3f}", f"{found.shuffled_r2:.3f}", f"{found.untrained_r2:.3f}",
                         f"{found.selectivity:.3f}"))
    return _table(("quantity", "best read from", "R²", "shuffled labels", "untrained model", "selectivity"), rows)


def _interventions(entry: Findings) -> str:
    rows = [(found.variable, found.site, f"{found.r2:.3f}", f"{found.control_r2:.2f}", f"{found.mismatched_r2:.2f}",
             f"{found.mean_r2:.2f}") for found in entry.interchanges.values()]
    steering = charts.lines(
        [(charts.MODEL, "moved", entry.steering.doses, entry.steering.moved)], "Steering: how far the output moves",
        "dose: share of the attention that is replaced by all weight on lag 1", "total variation of the output")
    parts = ["<h3>Interchange</h3>",
             _table(("variable", "best site", "R²", "random site", "another source", "the site's mean"), rows),
             f"<h3>Steering</h3><p>The formula explains {entry.steering.explained:.1%} of the movement.</p>{steering}",
             "<h3>Transplanted attention</h3>", _pre("\n".join(found.summary() for found in entry.transplants)),
             "<h3>Patch sweep</h3><p class=\"soft\">Clean blocks into sequences that end alike but have other weights: "
             "what restores the prediction.</p>", _pre(_strongest(entry))]
    if entry.circuit is not None:
        parts += ["<h3>Minimal circuit</h3>", _pre(entry.circuit.summary())]
    return "".join(parts)


def _strongest(entry: Findings) -> str:
    sweep = entry.sweep
    total = sweep.clean - sweep.corrupted or 1.0
    return "\n".join(f"layer {layer + 1}, position {position}, {sweep.parts[part]}: recovers "
                     f"{(sweep.values[layer, position, part].item() - sweep.corrupted) / total:+.1%}"
                     for layer, position, part in sweep.strongest(6))


def _history(entry: Findings) -> str:
    found = entry.development
    assert found is not None
    one_step = entry.estimators["one_step"].kl
    names = {"left_plateau": "plateau left", "beta": "β appears", "transition": "π appears", "branch": "branch chosen"}
    marks: dict[int, list[str]] = {}
    for name, step in found.events.items():
        if step is not None:
            marks.setdefault(step, []).append(names[name])
    kl = charts.lines([(charts.MODEL, "KL", found.steps, found.series["kl"])], "KL to the truth over training", "step",
                      "KL to the truth (logarithmic)", log_y=True,
                      verticals=[(step, ", ".join(words)) for step, words in marks.items()],
                      levels=[(one_step, "one-step mirror descent", charts.ONE_STEP),
                              (entry.estimators["uniform"].kl, "uniform weights", "#6b7280")])
    beta = charts.lines([(charts.MODEL, "β", found.steps, found.series["beta"])], "β over training", "step",
                        "β by attention", levels=[(entry.beta.optimal, "optimum", charts.ONE_STEP)])
    return _pre(found.summary()) + kl + beta


def _origin(findings: Sequence[Findings], command: str) -> str:
    rows = []
    for entry in findings:
        config = entry.checkpoint.config
        versions = ", ".join(f"{name} {value}" for name, value in config.get("versions", {}).items())
        rows.append((entry.name, entry.weights_hash, str(config.get("seeds", {})), str(entry.seed), versions))
    return (f"<p><code>{escape(command)}</code></p>"
            + _table(("model", "weights (sha256)", "its seeds", "report's seed", "made with"), rows))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = ["".join(f'<td class="number">{escape(cell)}</td>' for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _pre(words: str) -> str:
    return f'<div class="scroll"><pre>{escape(words)}</pre></div>'
