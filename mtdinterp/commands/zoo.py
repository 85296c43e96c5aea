"""`mtdinterp zoo`: list the models that ship with the package, without loading them."""

import argparse
import json
from pathlib import Path
from typing import Any

from mtdinterp.checkpoint_files import (
    CONFIG,
    HISTORY,
    WEIGHTS,
    ZOO,
    CheckpointError,
    parse_config,
    read_together,
    zoo_names,
)
from mtdinterp.commands.flags import add_json_flag
from mtdinterp.history_lines import HistoryError, parse_history

HEADER = ("name", "recipe", "steps", "KL", "ratio", "β", "branch", "training", "size")
SHOWN = ("step", "kl", "ratio", "beta", "branch", "seconds")
"""Fields of the last evaluation that the table shows."""


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
    contents = read_together(path, (CONFIG, WEIGHTS, HISTORY))
    config = parse_config(path, contents.get(CONFIG))
    last = _last_evaluation(path, contents.get(HISTORY, b""))
    recipe = _part(path, config, "recipe", ("name", "initialisation"))
    model = _part(path, config, "model", ("architecture", "n_layers", "length"))
    task = _part(path, config, "task", ("order",))
    return {
        "name": path.name,
        "architecture": model["architecture"],
        "layers": model["n_layers"],
        "order": task["order"],
        "length": model["length"],
        "recipe": recipe["name"],
        "initialisation": recipe["initialisation"],
        "steps": last["step"],
        "seeds": config.get("seeds"),
        "kl": last["kl"],
        "ratio": last["ratio"],
        "beta": last["beta"],
        "branch": last["branch"],
        "seconds": last["seconds"],
        "kilobytes": sum(map(len, contents.values())) / 1000,
    }


def _last_evaluation(path: Path, content: bytes) -> dict[str, Any]:
    """The last entry of a history, with all its numbers."""
    try:
        entries = parse_history(content.decode())
    except (HistoryError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path / HISTORY}: {error}") from error
    last = entries[-1] if entries else {}
    missing = [name for name in SHOWN if last.get(name) is None]
    if missing:
        raise CheckpointError(f"{path / HISTORY}: expected {missing[0]} in its last line")
    return last


def _part(path: Path, config: dict[str, Any], name: str, fields: tuple[str, ...]) -> dict[str, Any]:
    """An entry of config.json that is an object with all fields that the table shows."""
    part = config.get(name)
    if not isinstance(part, dict) or not set(fields) <= set(part):
        raise CheckpointError(
            f"{path / CONFIG}: expected {name} to be an object with {', '.join(fields)}"
        )
    return part


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
