"""`mtdinterp zoo`: the models that ship with the package, from their configurations and
histories."""

import argparse
import json
from pathlib import Path
from typing import Any

from mtdinterp.checkpoint_files import CONFIG, HISTORY, WEIGHTS, ZOO, read_config, zoo_names
from mtdinterp.commands.flags import add_json_flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "examples:\n  mtdinterp zoo\n  mtdinterp zoo --json"
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    entries = [entry(ZOO / name) for name in zoo_names()]
    print(json.dumps(entries, indent=1) if options.json else _table(entries))
    return 0


def entry(path: Path) -> dict[str, Any]:
    """What is known of one model without loading it."""
    config = read_config(path)
    last = json.loads((path / HISTORY).read_text().splitlines()[-1])
    recipe, model = config["recipe"], config["model"]
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
        "kilobytes": sum((path / name).stat().st_size for name in (CONFIG, WEIGHTS, HISTORY))
        / 1000,
    }


def _table(entries: list[dict[str, Any]]) -> str:
    if not entries:
        return "The zoo is empty: scripts/build_zoo fills it."
    header = ("name", "recipe", "steps", "KL", "ratio", "β", "branch", "training", "size")
    rows = [
        (
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
        for row in entries
    ]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]
    lines += [
        "",
        "KL(truth ‖ prediction) on held-out sequences; ratio: over that of tuned one-step mirror "
        "descent.",
        "Training: wall clock of the run that made it; the long ones had one core of a busy "
        "machine.",
        f"Load one with mtdinterp.load_checkpoint({entries[0]['name']!r}).",
    ]
    return "\n".join(lines)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
