"""All figures as one document, each with the paper's claim next to what was measured; and as
Markdown for docs."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtdinterp.pages.blocks import Columns, Document, Image, Links, Section, Table, Text
from mtdinterp.reproduce.figure import PICTURES, Reproduction

MOST_ROWS = 80
"""A longer table is left to its file."""
FILES = {".png": "PNG", ".pdf": "PDF", ".csv": "numbers as CSV"}


def compose(
    reproductions: Sequence[Reproduction], folder: Path, command: str, origin: str
) -> Document:
    """The pictures that were written to `folder`, with what they show; `origin` says where trained
    models are from."""
    about = Section(
        "What this is",
        (
            Text(
                (
                    "Transformers Learn Latent Mixture Models In-Context via Mirror Descent "
                    "(D'Angelo and Flammarion, ICLR "
                    f"2026): what it says, and what was measured here. {origin} Made by",
                ),
                "soft",
            ),
            Text((command,), "code"),
        ),
    )
    return Document(
        "The paper, reproduced", (about, *(_section(found, folder) for found in reproductions))
    )


def _section(found: Reproduction, folder: Path) -> Section:
    files = Links(tuple((words, found.name + suffix) for suffix, words in FILES.items()))
    rows = tuple(tuple(_cell(value) for value in row.values()) for row in found.table)
    header = tuple(column.replace("_", " ") for column in found.table[0])
    table = (Table(header, rows, folded="The numbers"),) if len(rows) <= MOST_ROWS else ()
    return Section(
        found.title,
        (
            Image(found.title, (folder / (found.name + PICTURES[0])).read_bytes()),
            Columns((("The paper", (found.claim,)), ("Measured here", found.measured))),
            files,
            *table,
        ),
        name=found.name,
    )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(reproductions: Sequence[Reproduction], origin: str) -> str:
    """The same words without the pictures, as a page of documentation."""
    paragraphs = [
        f"Written by `mtdinterp reproduce all`, which makes the figures too. {origin} KL is "
        "KL(truth ‖ "
        "prediction) in nats, mean over held-out sequences; ± is a standard error unless it says "
        "otherwise."
    ]
    for found in reproductions:
        first, *others = found.measured
        paragraphs += [
            f"## {found.title} (`{found.name}`)",
            f"**The paper.** {found.claim}",
            f"**Measured.** {first}",
            *others,
        ]
    filled = [
        textwrap.fill(words, 118, break_long_words=False, break_on_hyphens=False)
        for words in paragraphs
    ]
    return "\n\n".join(["# The paper's claims, and what was measured here", *filled]) + "\n"
