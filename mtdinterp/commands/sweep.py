"""`mtdinterp sweep`: run a grid of training runs, here or on a cluster, and collect the results."""

import argparse
import json
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtdinterp.commands.flags import add_plugin_flag, plugin_words
from mtdinterp.commands.interrupts import recording_stop_signals
from mtdinterp.commands.sweep_flags import (
    MOST_CRASHES,
    add_cell_flags,
    add_run_flags,
    add_status_flags,
    add_table_flags,
)
from mtdinterp.sweep.grid import find_grid, read_grid

if TYPE_CHECKING:
    from mtdinterp.sweep.directory import Sweep
    from mtdinterp.sweep.engines import Engine, Resources
    from mtdinterp.sweep.planning import Plan
    from mtdinterp.sweep.status import Status

EXIT_CODES = {"done": 0, "failed": 1, "busy": 3, "waiting": 4}
"""The exit code of `sweep cell` for every way in which a cell can end; if it was stopped, 128 and
the number of the signal."""
CONTINUE = "Continue with:\n  "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions with their flags."""
    parser.epilog = (
        "examples:\n  mtdinterp sweep run smoke --out out/smoke\n"
        "  mtdinterp sweep run grid.yaml --dry-run\n"
        "  mtdinterp sweep run grid.yaml --engine ray --address auto --out /shared/grid\n"
        "  mtdinterp sweep status out/smoke\n"
        "  mtdinterp sweep table out/smoke"
    )
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=type(parser)
    )
    for name, (summary, add_flags, run) in ACTIONS.items():
        action = actions.add_parser(
            name,
            help=summary,
            description=summary[:1].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_flags(action)
        # The flag may also stand before the action, whose default must not replace it.
        add_plugin_flag(action, argparse.SUPPRESS)
        action.set_defaults(run=run)


def run_grid(options: argparse.Namespace) -> int:
    """Run the cells of a grid; returns the exit code."""
    from mtdinterp.sweep.directory import check_place, sweep_path

    path = find_grid(options.grid)
    grid = read_grid(path)
    out = sweep_path(options.out) if options.out else Path("out") / path.stem
    check_place(out)
    if options.address and options.engine != "ray":
        raise ValueError("--address belongs to --engine ray; add it, or leave out --address")
    if options.slurm and options.engine != "slurm":
        raise ValueError("--slurm belongs to --engine slurm; add it, or leave out --slurm")
    print("checking the grid …", file=sys.stderr)
    from mtdinterp.sweep.planning import plan

    planned = plan(grid, path.parent, options.cpus_per_cell or 1)
    if options.dry_run:
        return _show_estimate(planned, options)
    return _drive(planned, out, options)


def _show_estimate(planned: "Plan", options: argparse.Namespace) -> int:
    from mtdinterp.sweep.estimating import estimate

    found = estimate(planned, options.plugins)
    print(json.dumps(found.to_dict(), indent=1) if options.json else found.text())
    return 0


def _drive(planned: "Plan", out: Path, options: argparse.Namespace) -> int:
    """Run all cells on the chosen engine, and write the table."""
    from mtdinterp.sweep.board import Board
    from mtdinterp.sweep.directory import write_sweep
    from mtdinterp.sweep.driving import Driver, retry_failed, summary

    again = shlex.join(_command(options, out))
    engine = _engine(planned, options, out)
    board = Board()
    stop: list[int] = []
    try:
        sweep = write_sweep(out, planned, again)
        if options.retry_failed:
            retry_failed(sweep)
        with recording_stop_signals(stop):
            try:
                driver = Driver(sweep, engine, board.show, lambda: bool(stop))
                found = driver.run()
            except KeyboardInterrupt:
                engine.kill()
                print(f"mtdinterp sweep: stopped at once. {CONTINUE}{again}", file=sys.stderr)
                raise
    finally:
        board.close()
        engine.close()
    print(f"mtdinterp sweep: {summary(found)}", file=sys.stderr)
    files = _write_results(sweep)
    if options.json:
        print(json.dumps(_as_dict(sweep, found), indent=1))
    else:
        print(_report(sweep, found, files))
    if stop:
        saved = "everything is saved"
        if driver.n_killed:
            saved = f"{driver.n_killed} cells did not save in time and resume from their last save"
        print(f"mtdinterp sweep: stopped; {saved}. {CONTINUE}{again}", file=sys.stderr)
        return 128 + stop[0]
    return 0 if all(status.state == "done" for status in found.values()) else 1


def _resources(options: argparse.Namespace) -> "Resources":
    from mtdinterp.sweep.engines import Resources

    return Resources(
        most_at_once=options.max_concurrent,
        most_crashes=options.attempts,
        plugins=[Path(path).absolute() for path in options.plugins],
    )


def _engine(planned: "Plan", options: argparse.Namespace, out: Path) -> "Engine":
    """The chosen engine."""
    resources = _resources(options)
    if options.engine == "ray":
        from mtdinterp.sweep.engines.ray import RayEngine

        threads = max(cell.threads for cell in planned.cells)
        return RayEngine(resources, options.address, threads)
    if options.engine == "slurm":
        from mtdinterp.sweep.engines.slurm import SlurmEngine

        return SlurmEngine(resources, out, options.slurm)
    from mtdinterp.sweep.engines.local import LocalEngine

    return LocalEngine(resources)


def _command(options: argparse.Namespace, out: Path) -> list[str]:
    """The command that continues this sweep."""
    words = ["mtdinterp", "sweep", "run", options.grid, "--out", str(out)]
    if options.engine != "local":
        words += ["--engine", options.engine]
    if options.address:
        words += ["--address", options.address]
    for entry in options.slurm:
        words += ["--slurm", entry]
    if options.cpus_per_cell is not None:
        words += ["--cpus-per-cell", str(options.cpus_per_cell)]
    if options.max_concurrent is not None:
        words += ["--max-concurrent", str(options.max_concurrent)]
    if options.attempts != MOST_CRASHES:
        words += ["--attempts", str(options.attempts)]
    return words + plugin_words(options)


def _write_results(sweep: "Sweep") -> list[Path]:
    from mtdinterp.sweep.page import write_page
    from mtdinterp.sweep.table import write_table

    return [*write_table(sweep), write_page(sweep)]


def run_one(options: argparse.Namespace) -> int:
    """Run one cell; returns the exit code."""
    from mtdinterp.sweep.cells import read_cell
    from mtdinterp.sweep.engines.local import THREAD_VARIABLES

    directory = Path(options.directory).absolute()
    threads = str(read_cell(directory).threads)
    # Before anything heavy is imported: some libraries count their threads when they are loaded.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, threads))
    stop: list[int] = []
    with recording_stop_signals(stop):
        if options.until_eof:
            _stop_at_eof(stop)
        from mtdinterp.sweep.running import run_cell

        def progress(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        ended = run_cell(
            directory,
            options.engine,
            lambda: bool(stop),
            options.attempts,
            progress,
            capture=options.until_eof,
        )
    if options.json:
        print(json.dumps(ended.to_dict(), indent=1))
    else:
        reason = f": {ended.reason}" if ended.reason else ""
        print(f"{ended.name}: {ended.how}{reason}")
    if ended.how == "stopped":
        return 128 + stop[0]
    return EXIT_CODES[ended.how]


def _stop_at_eof(stop: list[int]) -> None:
    """Stop when standard input ends, which it does when the process that started this one ends."""
    import signal

    def wait() -> None:
        while os.read(0, 1024):
            pass
        stop.append(signal.SIGTERM)

    threading.Thread(target=wait, name="until-eof", daemon=True).start()


def show_status(options: argparse.Namespace) -> int:
    """Print the state of every cell; returns the exit code."""
    from mtdinterp.sweep.directory import read_sweep, sweep_path
    from mtdinterp.sweep.status import statuses

    sweep = read_sweep(sweep_path(options.directory))
    found = statuses(sweep)
    print(json.dumps(_as_dict(sweep, found), indent=1) if options.json else _report(sweep, found))
    return 0


def make_table(options: argparse.Namespace) -> int:
    """Write the table and the page; returns the exit code."""
    from mtdinterp.sweep.directory import read_sweep, sweep_path
    from mtdinterp.sweep.page import write_page
    from mtdinterp.sweep.table import read_rows, write_table

    sweep = read_sweep(sweep_path(options.directory))
    files = [
        *write_table(sweep),
        write_page(sweep, x=options.x, facets=options.facets, columns=options.y),
    ]
    if options.json:
        print(json.dumps(read_rows(sweep), indent=1))
    else:
        for file in files:
            print(file)
    return 0


def _as_dict(sweep: "Sweep", found: "dict[str, Status]") -> dict[str, Any]:
    """The states as plain values for `--json`."""
    cells = []
    for name, status in found.items():
        cells.append(
            {
                "name": name,
                "state": status.state,
                "reason": status.reason,
                "step": status.step,
                "steps": status.steps,
                "settings": dict(status.entry.settings),
                "directory": str(sweep.directory(name)),
            }
        )
    return {"directory": str(sweep.path), "title": sweep.title, "cells": cells}


def _report(sweep: "Sweep", found: "dict[str, Status]", files: list[Path] | None = None) -> str:
    """The states as text: a line per cell, then the errors."""
    from mtdinterp.sweep.driving import summary
    from mtdinterp.sweep.status import log_of

    width = max(map(len, found), default=0)
    lines = [sweep.title] if sweep.title else []
    for name, status in found.items():
        note = ""
        if status.state == "running":
            note = f"{status.phase} {status.share:.0%}" if status.steps else status.phase
        elif status.reason:
            note = status.reason
        lines.append(f"{name:<{width}}  {status.state:<8} {note}".rstrip())
    failed = [name for name, status in found.items() if status.state == "failed"]
    if failed:
        lines.append(f"log of the first failed cell: {log_of(sweep.directory(failed[0]))}")
    lines.append(f"{summary(found)}; directory {sweep.path}")
    lines += [str(file) for file in files or ()]
    return "\n".join(lines)


ACTIONS = {
    "run": ("run the cells of a grid", add_run_flags, run_grid),
    "cell": ("run one cell", add_cell_flags, run_one),
    "status": ("show what every cell is doing", add_status_flags, show_status),
    "table": ("collect the results", add_table_flags, make_table),
}
"""What each action is for, its flags, and the function that runs it."""
