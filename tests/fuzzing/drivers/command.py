"""The command line: any words after `mtdinterp`, up to the point where long work would begin.

Words may contain places such as {run} or {pi.csv}, which stand for files of the case.
"""

import os
from pathlib import Path
from typing import Any, NoReturn

import matplotlib.font_manager
import uvicorn

from fuzzing.drivers.commands import CommandRefused, Reached, run_command
from fuzzing.materials import Materials
from mtdinterp import bench, catalogue, report
from mtdinterp.commands import train
from mtdinterp.interventions import sweep
from mtdinterp.report import collect
from mtdinterp.reproduce import figure
from mtdinterp.sweep import estimating
from mtdinterp.sweep.driving import Driver
from mtdinterp.tasks.lags import LagTask
from mtdinterp.training.evaluation import HeldOut

REFUSALS = (CommandRefused,)
FILES = ("weights.pt", "mapping.json", "reference.npz", "pi.csv", "pi.npy", "pi.json", "plugin.py")
GRID = "vocab_size: 3\norder: 2\nlength: [12, 16]\nseed: [0, 1]\nsteps: 30\nfrom: length\n"
SWEEP = '{"schema": 1, "title": "", "varied": [], "command": "", "cells": []}'
RUN = ("config.json", "model.safetensors", "history.jsonl", "training.pt")
STUBS = (
    (HeldOut, "prepare"),
    (LagTask, "sample"),
    (bench, "run_group"),
    (report, "collect"),
    (collect, "collect_probes"),
    (figure, "make"),
    (estimating, "estimate"),
    (Driver, "run"),
    (uvicorn.Server, "run"),
)
"""Where each command begins its long work; all of its input has been checked by then."""


def prepare(materials: Materials) -> None:
    """Import what the commands import lazily."""
    _ = train, sweep, matplotlib.font_manager
    for kind in catalogue.SOURCES:
        catalogue.known(kind)


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Write the files that words may name."""
    (directory / "run").mkdir()
    for name in RUN:
        (directory / "run" / name).write_bytes(materials.bytes(f"run/{name}"))
    for name in FILES:
        (directory / name).write_bytes(materials.bytes(name))
    (directory / "grid.yaml").write_text(GRID)
    (directory / "sweep").mkdir()
    (directory / "sweep" / "sweep.json").write_text(SWEEP)
    (directory / "empty").mkdir()
    os.mkfifo(directory / "pipe.csv")
    os.environ["HOME"] = str(directory)


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """Run the command line."""
    for holder, name in STUBS:
        setattr(holder, name, _reached)
    # A word of a command line is bytes; Python shows those that are not UTF-8 as surrogates.
    words = [word.replace("\0", "") for word in case["words"]]
    return run_command(words)


def _reached(*arguments: Any, **options: Any) -> NoReturn:
    raise Reached
