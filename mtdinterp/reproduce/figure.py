"""What a figure is, whatever it shows: the paper's claim, what was measured, the numbers and how to
draw them."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mtdinterp.plotting import saved_figure
from mtdinterp.reproduce.models import Models
from mtdinterp.reproduce.registry import FIGURES
from mtdinterp.task import MTDTask, Sample
from mtdinterp.training.evaluation import HELD_OUT_SEED, held_out_data

PICTURES = (".png", ".pdf")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Reproduction:
    """One figure or table of the paper, made again."""

    name: str
    title: str
    claim: str
    """What the paper says, in our words, and where."""
    measured: tuple[str, ...]
    """What was found here, one sentence or two a paragraph, misses and hedges included."""
    numbers: Mapping[str, Any]
    """Those that the sentences are made from."""
    table: Sequence[Row]
    """Everything that is drawn; every row has the same columns."""
    draw: Callable[[Any], None]
    """Draws it on a matplotlib figure."""
    size: tuple[float, float]
    """Width and height in inches."""


@dataclass(frozen=True)
class Context:
    """What all figures are made from."""

    models: Models
    seed: int = 0
    """Of all sequences; 0 gives those that training is evaluated on."""
    n_sequences: int | None = None
    """For everything that is a mean over sequences; None: as many as each figure needs."""

    def data(self, task: MTDTask, length: int) -> Sample:
        """The held-out sequences of a task and length: no model was trained on them."""
        if self.seed == 0:
            return held_out_data(task, length, self.n_sequences)
        n_sequences = self.n_sequences or len(held_out_data(task, length).tokens)
        return task.sample(n_sequences, length, seed=(*HELD_OUT_SEED, self.seed))

    def count(self, usual: int) -> int:
        return usual if self.n_sequences is None else min(usual, self.n_sequences)


def make(name: str, context: Context) -> Reproduction:
    source = FIGURES[name]
    module = import_module(f"mtdinterp.reproduce.{source.module}")
    return getattr(module, source.function)(context)


def write(reproduction: Reproduction, directory: Path) -> list[Path]:
    """The pictures and the table behind them, named after the figure."""
    paths = [directory / (reproduction.name + suffix) for suffix in (*PICTURES, ".csv")]
    for path in paths[:-1]:
        with saved_figure(*reproduction.size, path) as figure:
            reproduction.draw(figure)
    with paths[-1].open("w", newline="") as file:
        writer = csv.DictWriter(file, list(reproduction.table[0]))
        writer.writeheader()
        writer.writerows(reproduction.table)
    return paths
