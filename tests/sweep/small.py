"""A sweep of four tiny cells, for tests of engines and drivers."""

from mtdinterp.sweep.cells import DONE, read_json
from mtdinterp.sweep.directory import write_sweep
from mtdinterp.sweep.grid import expand
from mtdinterp.sweep.planning import plan

SETTINGS = {
    "vocab_size": 3,
    "order": 2,
    "length": 12,
    "steps": 30,
    "batch_size": 4,
    "evaluate_every": 10,
    "save_every": 5,
    "report": "none",
    "probes": "recover_beta",
    "sequences": 64,
}
"""A training run of a fraction of a second."""


def small_sweep(path, **changes):
    """Write a sweep of tiny cells.

    Args:
        path: the sweep's directory.
        changes: settings that replace those of `SETTINGS`; two seeds by two lengths by default.

    Returns:
        The sweep.
    """
    settings = {**SETTINGS, "length": [12, 16], "seed": [0, 1], **changes}
    planned = plan(expand(settings), path)
    return write_sweep(path, planned, "mtdinterp sweep run small.yaml")


def weights_of(sweep):
    """The checksum of every finished cell's weights, by name."""
    found = {}
    for directory in sweep.directories:
        done = read_json(directory / DONE)
        if done is not None:
            found[directory.name] = done["weights_sha256"]
    return found
