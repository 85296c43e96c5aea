"""A sweep of four cells that take a second or two each."""

import json
from pathlib import Path
from typing import Any

from mtdinterp.sweep.cells import DONE
from mtdinterp.sweep.directory import Sweep, write_sweep
from mtdinterp.sweep.grid import expand
from mtdinterp.sweep.planning import plan

SETTINGS: dict[str, Any] = {
    "title": "a small sweep",
    "vocab_size": 3,
    "order": 2,
    "length": 12,
    "architecture": ["disentangled", "standard"],
    "seed": [0, 1],
    "steps": 30,
    "evaluate_every": 10,
    "save_every": 5,
    "sequences": 32,
    "probes": ["recover_beta"],
    "report": "none",
}


def small_sweep(path: Path, **changes: Any) -> Sweep:
    """Write a small sweep.

    Args:
        path: its directory.
        changes: settings that differ from `SETTINGS`.

    Returns:
        The sweep, of which nothing has run.
    """
    planned = plan(expand({**SETTINGS, **changes}), path)
    return write_sweep(path, planned, "")


def weights(sweep: Sweep) -> dict[str, str]:
    """The checksum of every finished cell's weights."""
    found = {}
    for entry in sweep.entries:
        done = sweep.directory(entry.name) / DONE
        if done.exists():
            found[entry.name] = json.loads(done.read_text())["weights_sha256"]
    return found
