"""All figures as one document, with the paper's claims next to measurements; and as Markdown."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtdinterp.checkpoints.provenance import Provenance
from mtdinterp.pages.blocks import Columns, Document, Image, Links, Section, Table, Text
from mtdinterp.reproduce.figure import PICTURES, Reproduction

MOST_ROWS = 80
"""A longer table is left to its file."""
FILES = {".png": "PNG", ".pdf": "PDF", ".csv": "numbers as CSV"}
PAPER = (
    "Transformers Learn Latent Mixture Models In-Context via Mirror Descent (D'Angelo and "
    "Flammarion, ICLR 2026)"
)


def compose(
    reproductions: Sequence[Reproduction], folder: Path, command: str, origin: str
) -> Document:
    """The document that shows all figures.

    Args:
        reproductions: the figures, in order.
        folder: where their pictures were written.
        command: the command that made them.
        origin: a sentence about where trained models come from.

    Returns:
        The document.
    """
    introduction = f"{PAPER}: its claims, and what was measured here. {origin} Made by"
    about = Section("What this is", (Text((introduction,), "soft"), Text((command,), "code")))
    sections = [_section(found, folder) for found in reproductions]
    return Document("The paper, reproduced", (about, *sections))


def _section(found: Reproduction, folder: Path) -> Section:
    picture = folder / (found.name + PICTURES[0])
    links = [(label, found.name + suffix) for suffix, label in FILES.items()]
    return Section(
        found.title,
        (
            Image(found.title, picture.read_bytes()),
            Columns((("The paper", (found.claim,)), ("Measured here", found.measured))),
            Links(tuple(links)),
            *_table(found),
        ),
        name=found.name,
    )


def _table(found: Reproduction) -> tuple[Table, ...]:
    """The numbers of a figure, folded; empty if there are too many, or none."""
    if not found.table or len(found.table) > MOST_ROWS:
        return ()
    header = tuple(column.replace("_", " ") for column in found.table[0])
    rows = []
    for row in found.table:
        rows.append(tuple(_cell(value) for value in row.values()))
    return (Table(header, tuple(rows), folded="The numbers"),)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def markdown(reproductions: Sequence[Reproduction], origin: str, provenance: Provenance) -> str:
    """The same text without the pictures, as a page of documentation.

    Args:
        reproductions: the figures, in order.
        origin: a sentence about where trained models come from.
        provenance: what made the figures, and the weights of the models.

    Returns:
        The page as Markdown.
    """
    paragraphs = [
        f"{origin} KL is KL(truth ‖ prediction) in nats, averaged over held-out sequences; ± is a "
        "standard error unless stated otherwise."
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
        textwrap.fill(paragraph, 118, break_long_words=False, break_on_hyphens=False)
        for paragraph in paragraphs
    ]
    title = "# The paper's claims, and what was measured here"
    return "\n\n".join([title, *provenance.markdown(), *filled]) + "\n"
