"""The flags of `mtdinterp sweep`, one function per action."""

import argparse

from mtdinterp.commands.flags import add_json_flag, at_least, not_empty
from mtdinterp.sweep.attempts import MOST_CRASHES
from mtdinterp.sweep.engines import ENGINES
from mtdinterp.sweep.grid import read_grid, shipped_grids


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `sweep run`."""
    grids = "\n".join(f"  {name:<10} {title}" for name, title in _titles().items())
    engines = "\n".join(f"  {name:<10} {label}" for name, label in ENGINES.items())
    parser.epilog = (
        f"grids that ship with mtdinterp:\n{grids}\n\nengines:\n{engines}\n\n"
        "examples:\n  mtdinterp sweep run smoke --out out/smoke\n"
        "  mtdinterp sweep run grid.yaml --dry-run\n"
        "  mtdinterp sweep run grid.yaml --cpus-per-cell 2 --max-concurrent 4\n"
        "  mtdinterp sweep run grid.yaml --engine slurm --slurm partition=long --out /shared/grid"
    )
    parser.add_argument(
        "grid",
        type=not_empty,
        metavar="GRID",
        help="a grid file (.yaml or .json), or the name of a shipped grid, listed below",
    )
    parser.add_argument(
        "--out",
        type=not_empty,
        metavar="DIR",
        help="directory of the sweep, which all workers share (default: out/ and the grid's name)",
    )
    parser.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        default="local",
        help="what runs the cells, listed below (default: local)",
    )
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="address of a Ray cluster, such as auto or ray://head:10001 (default: start Ray here)",
    )
    parser.add_argument(
        "--slurm",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the Slurm jobs, such as partition=long or time=120; may be given "
        "several times",
    )
    parser.add_argument(
        "--cpus-per-cell",
        type=at_least(1),
        metavar="N",
        help="threads of a cell whose grid does not set `threads` (default: 1)",
    )
    parser.add_argument(
        "--max-concurrent",
        type=at_least(1),
        metavar="N",
        help="maximum number of concurrent cells; on Slurm, waiting jobs count too (default: as "
        "many as fit)",
    )
    parser.add_argument(
        "--attempts",
        type=at_least(1),
        default=MOST_CRASHES,
        metavar="N",
        help="a cell fails after N consecutive attempts that died without saving a new training "
        f"step (default: {MOST_CRASHES})",
    )
    parser.add_argument(
        "--retry-failed", action="store_true", help="run failed cells again, from where they were"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="run nothing; show the cells, and how long they would take on 1, 8, 64 and 512 "
        "workers, from times measured on this machine",
    )
    add_json_flag(parser)


def _titles() -> dict[str, str]:
    """The titles of the shipped grids, by name."""
    return {name: read_grid(path).title for name, path in shipped_grids().items()}


def add_cell_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `sweep cell`."""
    parser.epilog = (
        "Finishes the cell from wherever it was; does nothing if it is finished.\n"
        "exit codes: 0 finished, 1 failed, 2 bad input, 3 another process runs it, 4 it waits for\n"
        "another cell, 128 and the number of the signal if it was stopped\n\n"
        "example:\n  mtdinterp sweep cell out/smoke/cells/NAME"
    )
    parser.add_argument("directory", type=not_empty, metavar="DIR", help="the cell's directory")
    parser.add_argument(
        "--attempts", type=at_least(1), default=MOST_CRASHES, help=argparse.SUPPRESS
    )
    parser.add_argument("--engine", default="by hand", help=argparse.SUPPRESS)
    parser.add_argument("--until-eof", action="store_true", help=argparse.SUPPRESS)
    add_json_flag(parser)


def add_status_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `sweep status`."""
    parser.epilog = "example:\n  mtdinterp sweep status out/smoke"
    parser.add_argument("directory", type=not_empty, metavar="DIR", help="the sweep's directory")
    add_json_flag(parser)


def add_table_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `sweep table`."""
    parser.epilog = (
        "Writes results.parquet, results.csv and index.html into the sweep's directory.\n\n"
        "examples:\n  mtdinterp sweep table out/smoke\n"
        "  mtdinterp sweep table out/smoke --x length --facets order --y ratio"
    )
    parser.add_argument("directory", type=not_empty, metavar="DIR", help="the sweep's directory")
    parser.add_argument("--x", metavar="SETTING", help="x axis of the page's charts")
    parser.add_argument("--facets", metavar="SETTING", help="one chart for each of its values")
    parser.add_argument(
        "--y",
        action="append",
        metavar="COLUMN",
        help="a column of the table to draw; may be given several times (default: kl, ratio, beta)",
    )
    add_json_flag(parser)
