"""`mtdinterp bench`: measure speed and memory, and print a table or JSON."""

import argparse
import json
from typing import Any

from mtdinterp.commands.flags import add_json_flag
from mtdinterp.commands.progress import stages

GROUP_NAMES = (
    "sampler",
    "posterior",
    "training-step",
    "long-step",
    "hooks",
    "probes",
    "sweep",
    "app",
    "engines",
)
"""Listed here because `mtdinterp.bench` is expensive to import; a test compares the two."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.epilog = (
        "examples:\n  mtdinterp bench\n  mtdinterp bench --group training-step --quick --json"
    )
    parser.add_argument(
        "--group",
        action="append",
        choices=GROUP_NAMES,
        help="measure only this group; may be given several times",
    )
    parser.add_argument(
        "--quick", action="store_true", help="use fewer repetitions and only small sizes"
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure the chosen groups and print the results; returns the exit code."""
    names = list(dict.fromkeys(options.group or GROUP_NAMES))
    measurements = []
    with stages(len(names) + 1) as stage:
        stage("importing")
        import torch

        from mtdinterp.bench import run_group

        for name in names:
            stage(name)
            measurements += run_group(name, options.quick)
    result = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "measurements": [vars(measurement) for measurement in measurements],
    }
    print(json.dumps(result, indent=1) if options.json else _table(result))
    return 0


def _table(result: dict[str, Any]) -> str:
    rows = result["measurements"]
    width = max(len(row["name"]) for row in rows)
    lines = [
        f"torch {result['torch']}, {result['threads']} threads; medians of interleaved runs",
        "",
    ]
    for row in rows:
        value = "n/a" if row["value"] is None else f"{row['value']:.4g}"
        lines.append(f"{row['name']:<{width}}  {value:>10} {row['unit']}{_target(row)}")
    return "\n".join(lines)


def _target(row: dict[str, Any]) -> str:
    """The value to reach, if there is one."""
    if row["aim"] is None:
        return ""
    relation = "≤" if row["at_most"] else "≥"
    return f"  (target {relation} {row['aim']:g})"
