"""All figures on one page, each with the paper's claim next to what was measured; as HTML, and as Markdown for docs.

The page needs nothing but the pictures in its own folder: no network, no script. Everything in it is escaped.
"""

import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

from mtdinterp.reproduce.figure import Reproduction

MOST_ROWS = 80
"""A longer table is left to its file."""

STYLE = """
:root{--ink:#1f2937;--soft:#6b7280;--line:#e5e7eb;--accent:#1d4ed8}
*{box-sizing:border-box}
body{margin:0 auto;max-width:920px;padding:24px 18px 64px;color:var(--ink);background:#fff;
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5rem;margin:0 0 4px}h2{font-size:1.15rem;margin:44px 0 8px;border-bottom:1px solid var(--line);
padding-bottom:4px}h3{font-size:.8rem;margin:0 0 2px;color:var(--soft);text-transform:uppercase;letter-spacing:.04em}
p{margin:6px 0}a{color:var(--accent)}.soft{color:var(--soft);font-size:.9rem}
img{width:100%;height:auto;display:block;margin:10px 0}
.pair{display:grid;grid-template-columns:2fr 3fr;gap:8px 28px;font-size:.95rem}
.pair>div{border-left:4px solid var(--line);padding-left:12px}.pair>.measured{border-left-color:var(--accent)}
@media(max-width:640px){.pair{grid-template-columns:1fr}}
ul{padding-left:1.2em;margin:8px 0}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid var(--line);white-space:nowrap}
summary{cursor:pointer;color:var(--accent);font-size:.9rem;margin-top:8px}code{font-size:.88em;overflow-wrap:anywhere}
@media print{body{max-width:none;font-size:11pt}h2{break-after:avoid}img,.pair{break-inside:avoid}}
"""


def render(reproductions: Sequence[Reproduction], command: str, origin: str) -> str:
    """The page; `origin` says where the trained models come from."""
    contents = "".join(f'<li><a href="#{escape(found.name, quote=True)}">{escape(found.title)}</a></li>'
                       for found in reproductions)
    return ("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
            "content=\"width=device-width,initial-scale=1\"><title>The paper, reproduced</title>"
            f"<style>{STYLE}</style></head><body><h1>The paper, reproduced</h1>"
            "<p class=\"soft\">Transformers Learn Latent Mixture Models In-Context via Mirror Descent (D'Angelo and "
            f"Flammarion, ICLR 2026): what it says, and what was measured here. {escape(origin)} Made by "
            f"<code>{escape(command)}</code>.</p><ul>{contents}</ul>"
            + "".join(_section(found) for found in reproductions) + "</body></html>")


def _section(found: Reproduction) -> str:
    name = escape(found.name, quote=True)
    files = ", ".join(f'<a href="{name}{suffix}">{words}</a>'
                      for suffix, words in ((".png", "PNG"), (".pdf", "PDF"), (".csv", "numbers as CSV")))
    measured = "".join(f"<p>{escape(sentence)}</p>" for sentence in found.measured)
    return (f'<section id="{name}"><h2>{escape(found.title)}</h2>'
            f'<a href="{name}.png"><img src="{name}.png" alt="{escape(found.title, quote=True)}"></a>'
            f'<div class="pair"><div><h3>The paper</h3><p>{escape(found.claim)}</p></div>'
            f'<div class="measured"><h3>Measured here</h3>{measured}</div></div>'
            f'<p class="soft">{files}</p>{_table(found)}</section>')


def _table(found: Reproduction) -> str:
    if len(found.table) > MOST_ROWS:
        return ""
    head = "".join(f"<th>{escape(column.replace('_', ' '))}</th>" for column in found.table[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(value))}</td>" for value in row.values()) + "</tr>"
                   for row in found.table)
    return (f'<details><summary>The numbers</summary><div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
            "</details>")


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def render_markdown(reproductions: Sequence[Reproduction], origin: str) -> str:
    """The same words without the pictures, as a page of documentation."""
    paragraphs = [f"Written by `mtdinterp reproduce all`, which makes the figures too. {origin} KL is KL(truth ‖ "
                  "prediction) in nats, mean over held-out sequences; ± is a standard error unless it says otherwise."]
    for found in reproductions:
        first, *others = found.measured
        paragraphs += [f"## {found.title} (`{found.name}`)", f"**The paper.** {found.claim}",
                       f"**Measured.** {first}", *others]
    filled = [textwrap.fill(words, 118, break_long_words=False, break_on_hyphens=False) for words in paragraphs]
    return "\n\n".join(["# The paper's claims, and what was measured here", *filled]) + "\n"
