"""Run a grid that a script has made, with `mtdinterp sweep run`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mtdinterp.cli import main
from mtdinterp.storage import write_file

BAD_INPUT = 2
"""The exit code of a sweep that was refused, before any cell ran."""


def run_grid(contents: Mapping[str, Any], out: Path, flags: Sequence[str] = ()) -> int:
    """Run a grid; the grid file is written next to the sweep's directory.

    Args:
        contents: the contents of the grid file.
        out: the directory of the sweep. Cells that an earlier sweep has finished are not run again.
        flags: other flags of `mtdinterp sweep run`.

    Returns:
        The exit code: 0 if all cells are finished, and otherwise that of `mtdinterp sweep run`.
    """
    grid = out.parent / f"{out.name}.json"
    write_file(grid, (json.dumps(contents, indent=1) + "\n").encode())
    return main(["sweep", "run", str(grid), "--out", str(out), *flags])
