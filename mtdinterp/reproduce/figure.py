"""What every figure consists of: the paper's claim, the measurements, the numbers, the drawing."""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from mtdinterp.plotting import saved_figure
from mtdinterp.reproduce.models import Models
from mtdinterp.reproduce.registry import FIGURES
from mtdinterp.storage import write_file
from mtdinterp.tasks import Sample, Task
from mtdinterp.training.evaluation import HELD_OUT_SEED, held_out_data

PICTURES = (".png", ".pdf")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Reproduction:
    """One figure or table of the paper, made again."""

    name: str
    title: str
    claim: str
    """The paper's claim in our words, with its place in the paper."""
    measured: tuple[str, ...]
    """Our measurements, one paragraph per entry, including those that disagree."""
    numbers: Mapping[str, Any]
    """The numbers in those paragraphs."""
    table: Sequence[Row]
    """Everything that is drawn; all rows have the same columns."""
    draw: Callable[[Any], None]
    """Draws it on a matplotlib figure."""
    size: tuple[float, float]
    """Width and height in inches."""


@dataclass(frozen=True)
class Context:
    """The models and settings that all figures are made from."""

    models: Models
    seed: int = 0
    """The seed of all sequences; 0 gives the sequences that training is evaluated on."""
    n_sequences: int | None = None
    """How many sequences means are taken over; None for each figure's own number."""
    announce: Callable[[str], None] = field(default=lambda message: None)
    """Called with a line of progress by figures that take minutes."""

    def data(self, task: Task, length: int, usual: int | None = None) -> Sample:
        """The held-out sequences of a task and length; no model was trained on them.

        Args:
            task: the task to draw sequences from.
            length: tokens per sequence.
            usual: the number of sequences if `n_sequences` is None; by default, as many as training
                is evaluated on.

        Returns:
            The sequences.
        """
        n_sequences = usual if self.n_sequences is None else self.n_sequences
        if self.seed == 0:
            return held_out_data(task, length, n_sequences)
        if n_sequences is None:
            n_sequences = len(held_out_data(task, length).tokens)
        return task.sample(n_sequences, length, seed=(*HELD_OUT_SEED, self.seed))

    def count(self, usual: int) -> int:
        """The number of sequences for a figure that usually takes `usual`."""
        return usual if self.n_sequences is None else min(usual, self.n_sequences)


def rows_where(rows: Iterable[Row], **values: Any) -> list[Row]:
    """The rows whose columns have the given values."""
    return [row for row in rows if values.items() <= row.items()]


def column(rows: Iterable[Row], name: str) -> list[Any]:
    """One column of the rows."""
    return [row[name] for row in rows]


def make(name: str, context: Context) -> Reproduction:
    """Make the figure called `name`."""
    source = FIGURES[name]
    module = import_module(f"mtdinterp.reproduce.{source.module}")
    return getattr(module, source.function)(context)


def write(reproduction: Reproduction, directory: Path) -> list[Path]:
    """Write the pictures and the table behind them, named after the figure.

    Args:
        reproduction: the figure.
        directory: where the files go.

    Returns:
        The paths of the PNG, the PDF and the CSV file.
    """
    pictures = [directory / (reproduction.name + suffix) for suffix in PICTURES]
    width, height = reproduction.size
    for path in pictures:
        with saved_figure(width, height, path) as figure:
            reproduction.draw(figure)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, _columns(reproduction.table))
    writer.writeheader()
    writer.writerows(reproduction.table)
    table = directory / f"{reproduction.name}.csv"
    write_file(table, text.getvalue().encode())
    return [*pictures, table]


def _columns(table: Sequence[Row]) -> list[str]:
    """The names of a table's columns; none if no model was there to measure."""
    return list(table[0]) if table else []
