"""Sweeps whose files are written by hand: finished, failed and waiting cells without any training.

The settings of a cell are also its name, such as `length16-seed0`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtdinterp.sweep.cells import CELL, CHECKPOINT, DONE, FAILED, REPORT, Cell, Measure
from mtdinterp.sweep.directory import SWEEP, Entry, Sweep, as_dict, read_sweep

RUN = {"host": "here", "seconds": 2.5, "mtdinterp": "0.1.0", "torch": "2.0"}


@dataclass(frozen=True)
class Made:
    """One cell to write."""

    settings: Mapping[str, Any]
    metrics: Mapping[str, Any] | None = None
    """Its metrics if it is finished."""
    probes: Mapping[str, Any] = field(default_factory=dict)
    failure: str = ""
    """Why it failed, if it did."""
    report: bool = True
    run: Mapping[str, Any] = field(default_factory=lambda: RUN)


def write_files(
    path: Path, cells: Sequence[Made], varied: Sequence[str], title: str = "a title"
) -> Sweep:
    """Write the directory of a sweep and read it back."""
    entries = []
    for made in cells:
        cell = _cell(made)
        entries.append(Entry(cell.name, None, dict(made.settings), 1.0))
        directory = path / "cells" / cell.name
        _write(directory / CELL, cell.to_dict())
        if made.failure:
            _write(directory / FAILED, {"error": made.failure})
        if made.metrics is not None:
            _write(directory / DONE, _done(cell, made))
            (directory / CHECKPOINT).mkdir()
            if made.report:
                (directory / REPORT).write_text("a report")
    command = "mtdinterp sweep run grid.yaml"
    sweep = Sweep(path, title, tuple(varied), tuple(entries), command)
    _write(path / SWEEP, as_dict(sweep))
    return read_sweep(path)


def _cell(made: Made) -> Cell:
    label = "-".join(f"{name}{value}" for name, value in made.settings.items())
    allowed = "".join(mark if mark.isalnum() or mark in "._-" else "_" for mark in label)
    return Cell(
        task={},
        model={},
        recipe={},
        seeds={},
        threads=1,
        plugins={},
        sources="",
        label=allowed.encode("ascii", "ignore").decode()[:100],
        measure=Measure(report="quick" if made.report else "none"),
        settings=made.settings,
    )


def _done(cell: Cell, made: Made) -> dict[str, Any]:
    return {
        "name": cell.name,
        "measure": cell.measure.to_dict(),
        "weights_sha256": "0" * 64,
        "metrics": dict(made.metrics or {}),
        "probes": dict(made.probes),
        "run": dict(made.run),
    }


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
