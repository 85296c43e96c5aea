"""`mtdinterp zoo`: list the models that ship with the package, without loading them."""

import argparse
import json
from pathlib import Path
from typing import Any

from mtdinterp.checkpoint_files import CONFIG, HISTORY, WEIGHTS, ZOO, read_config, zoo_names
from mtdinterp.commands.flags import add_json_flag

HEADER = ("name", "recipe", "steps", "KL", "ratio", "β", "branch", "training", "size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.epilog = "examples:\n  mtdinterp zoo\n  mtdinterp zoo --json"
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the zoo; returns the exit code."""
    entries = [entry(ZOO / name) for name in zoo_names()]
    print(json.dumps(entries, indent=1) if options.json else _table(entries))
    return 0


def entry(path: Path) -> dict[str, Any]:
    """One model's row, read from its configuration and history."""
    config = read_config(path)
    last = json.loads((path / HISTORY).read_text().splitlines()[-1])
    recipe = config["recipe"]
    model = config["model"]
    sizes = [(path / name).stat().st_size for name in (CONFIG, WEIGHTS, HISTORY)]
    return {
        "name": path.name,
        "architecture": model["architecture"],
        "layers": model["n_layers"],
        "order": config["task"]["order"],
        "length": model["length"],
        "recipe": recipe["name"],
        "initialisation": recipe["initialisation"],
        "steps": last["step"],
        "seeds": config["seeds"],
        "kl": last["kl"],
        "ratio": last["ratio"],
        "beta": last["beta"],
        "branch": last["branch"],
        "seconds": last["seconds"],
        "kilobytes": sum(sizes) / 1000,
    }


def _table(entries: list[dict[str, Any]]) -> str:
    if not entries:
        return "The zoo is empty; scripts/build_zoo fills it."
    rows = [HEADER, *map(_cells, entries)]
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [_line(row, widths) for row in rows]
    lines += [
        "",
        "KL(truth ‖ prediction) on held-out sequences; ratio: divided by the KL of tuned one-step "
        "mirror descent.",
        "Training: wall-clock time of the run; the long runs had one core of a busy machine.",
        f"Load one with mtdinterp.load_checkpoint({entries[0]['name']!r}).",
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One model's row of the table, in the order of `HEADER`."""
    return (
        row["name"],
        row["recipe"],
        str(row["steps"]),
        f"{row['kl']:.5f}",
        f"{row['ratio']:.3f}",
        f"{row['beta']:.1f}",
        row["branch"],
        _duration(row["seconds"]),
        f"{row['kilobytes']:.0f} kB",
    )


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = [f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)]
    return "  ".join(padded).rstrip()


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
