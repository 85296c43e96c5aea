"""A cell: one training run and what is measured of it, in a directory of its own.

cell.json      what to train and what to measure; written once, before anything runs
attempts/      one directory per attempt to run the cell; see `attempts`
checkpoint/    the trained model
report.html    its report, with report.json
done.json      the numbers; written last, and only once
failed.json    why the cell failed for good

A cell's name ends in a hash of everything that decides its training, so that two sweeps name the
same cell alike, and a changed setting makes another cell. What is measured is not in the hash: a
finished cell that is asked for other probes is measured again and not trained again.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtdinterp.bounded_files import MissingFile, UnreadableFile, read_bounded
from mtdinterp.formatting import printable
from mtdinterp.storage import write_file

SCHEMA = 1
CELL = "cell.json"
DONE = "done.json"
FAILED = "failed.json"
ATTEMPTS = "attempts"
CHECKPOINT = "checkpoint"
REPORT = "report.html"
KEY_LENGTH = 16
"""Hexadecimal digits of the hash in a cell's name."""
MOST_BYTES = 16 * 10**6
REPORTS = ("quick", "full", "none")
DECIDING = ("task", "model", "recipe", "seeds", "threads", "plugins", "sources", "parent")
"""The fields that decide how a cell is trained."""


class CellError(ValueError):
    """A cell that cannot be read or run, with the reason in one sentence."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


@dataclass(frozen=True)
class Measure:
    """What is measured of a trained model."""

    probes: tuple[str, ...] | None = None
    """Names of the probes; all that apply if None."""
    report: str = "quick"
    """"quick", "full" or "none"."""
    sequences: int | None = None
    """Sequences for scores and probes; the report's own number if None."""

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return {
            "probes": None if self.probes is None else list(self.probes),
            "report": self.report,
            "sequences": self.sequences,
        }


@dataclass(frozen=True)
class Cell:
    """What to train and what to measure."""

    task: Mapping[str, Any]
    model: Mapping[str, Any]
    """The model's configuration."""
    recipe: Mapping[str, Any]
    seeds: Mapping[str, int]
    threads: int
    plugins: Mapping[str, str]
    """SHA-256 of each plugin file, and version of each installed plugin, by name."""
    sources: str
    """Hash of the source files that decide the numbers."""
    label: str
    """The first part of the cell's name, such as disentangled-m4-T64."""
    parent: str | None = None
    """The name of the cell whose model this one starts from."""
    measure: Measure = field(default_factory=Measure)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the grid, for tables."""

    @property
    def key(self) -> str:
        """The hash of everything that decides the training."""
        content = {name: getattr(self, name) for name in DECIDING}
        return hashlib.sha256(canonical(content).encode()).hexdigest()[:KEY_LENGTH]

    @property
    def name(self) -> str:
        """The name of the cell's directory."""
        return f"{self.label}-{self.key}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, as cell.json contains it."""
        content = {name: getattr(self, name) for name in DECIDING}
        return {
            "schema": SCHEMA,
            **content,
            "label": self.label,
            "measure": self.measure.to_dict(),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Cell":
        """The inverse of `to_dict`.

        Raises:
            CellError: if a field is missing or has another type.
        """
        if values.get("schema") != SCHEMA:
            raise CellError(f"expected cell schema {SCHEMA}, got {values.get('schema')!r:.60}")
        for name, kind in FIELD_TYPES.items():
            if not isinstance(values.get(name), kind):
                raise CellError(f"expected {name} in the file, of the right type")
        measure = values["measure"]
        probes = measure.get("probes")
        return cls(
            **{name: values[name] for name in DECIDING},
            label=values["label"],
            measure=Measure(
                None if probes is None else tuple(probes),
                measure.get("report", "quick"),
                measure.get("sequences"),
            ),
            settings=values["settings"],
        )


FIELD_TYPES: dict[str, Any] = {
    "task": dict,
    "model": dict,
    "recipe": dict,
    "seeds": dict,
    "threads": int,
    "plugins": dict,
    "sources": str,
    "label": str,
    "parent": str | None,
    "measure": dict,
    "settings": dict,
}


def canonical(content: Any) -> str:
    """JSON that is the same for equal contents: sorted keys, no spaces, no NaN."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_cell(directory: Path, cell: Cell) -> None:
    """Write cell.json unless it is there and says the same."""
    content = (json.dumps(cell.to_dict(), indent=1) + "\n").encode()
    path = directory / CELL
    try:
        if read_bounded(path, MOST_BYTES) == content:
            return
    except UnreadableFile:
        pass
    write_file(path, content)


def read_cell(directory: Path) -> Cell:
    """The cell of a directory.

    Raises:
        CellError: if the directory has no cell, or its file was changed or damaged.
    """
    values = read_json(directory / CELL)
    if values is None:
        raise CellError(f"{directory}: not a cell of a sweep ({CELL} is missing)")
    try:
        cell = Cell.from_dict(values)
        name = cell.name
    except (CellError, KeyError, TypeError) as error:
        raise CellError(f"{directory / CELL}: not written by mtdinterp sweep ({error})") from None
    if name != directory.name:
        raise CellError(f"{directory / CELL}: was changed; its settings belong to the cell {name}")
    return cell


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file that is an object; None if there is no such file.

    Raises:
        CellError: if the file cannot be read.
    """
    try:
        values = json.loads(read_bounded(path, MOST_BYTES))
    except MissingFile:
        return None
    except UnreadableFile as error:
        raise CellError(f"{path}: {error}") from None
    except (ValueError, RecursionError):
        raise CellError(f"{path}: not valid JSON") from None
    if not isinstance(values, dict):
        raise CellError(f"{path}: expected a JSON object")
    return values


def failure_of(directory: Path, cell: Cell) -> str | None:
    """Why a cell has failed for good, or None.

    A failure while something else was measured says nothing about a model that is trained.
    """
    failure = read_json(directory / FAILED)
    if failure is None:
        return None
    is_other = failure.get("measure", cell.measure.to_dict()) != cell.measure.to_dict()
    if is_other and (directory / CHECKPOINT).is_dir():
        return None
    return str(failure.get("error", ""))


def is_done(directory: Path, cell: Cell) -> bool:
    """Whether a cell is finished, and measured as it asks for."""
    done = read_json(directory / DONE)
    return done is not None and done.get("measure") == cell.measure.to_dict()
