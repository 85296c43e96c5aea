"""`mtdinterp decompile`: a model as a short program, with what each of its terms adds."""

import argparse
import json
from pathlib import Path
from typing import Any

from mtdinterp.bounded_files import expanded
from mtdinterp.commands.flags import add_json_flag, at_least, not_empty
from mtdinterp.commands.progress import stages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.epilog = (
        "examples:\n"
        "  mtdinterp decompile disentangled-m4-T64\n"
        "  mtdinterp decompile standard-m4-T64 --sequences 4096 --out out/program.py"
    )
    parser.add_argument(
        "checkpoint",
        type=not_empty,
        metavar="CHECKPOINT",
        help="a checkpoint directory, or the name of a zoo model; three layers with one head each",
    )
    parser.add_argument(
        "--sequences",
        type=at_least(8),
        default=1024,
        metavar="N",
        help="number of sequences to measure on (default: 1024); the time grows with it and with "
        "the square of their length: seconds at T = 64, minutes at T = 256, hours at T = 1984",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of the sequences (default: 0)",
    )
    parser.add_argument(
        "--out",
        type=not_empty,
        metavar="FILE",
        help="write the program with all its constants to this file; it needs NumPy only",
    )
    parser.add_argument(
        "--short", action="store_true", help="write and show the short program, not the whole one"
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Decompile, write the program if asked to, and print what was found."""
    from mtdinterp.checkpoint_files import find_checkpoint
    from mtdinterp.storage import write_file

    find_checkpoint(options.checkpoint)  # before anything heavy is imported
    with stages(2) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.decompile import decompile

        checkpoint = load_checkpoint(options.checkpoint)
        stage("decompiling")
        found = decompile(
            checkpoint.model, checkpoint.task, n_sequences=options.sequences, seed=options.seed
        )
    if options.out is not None:
        path = Path(expanded(options.out))
        source = found.short_source if options.short else found.source
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, source.encode())
    print(_as_json(checkpoint, found) if options.json else _as_text(checkpoint, found, options))
    return 0


def _as_json(checkpoint: Any, found: Any) -> str:
    from mtdinterp.results import to_plain

    return json.dumps({"checkpoint": str(checkpoint.path), **to_plain(found)}, indent=1)


def _as_text(checkpoint: Any, found: Any, options: argparse.Namespace) -> str:
    from mtdinterp.results import origin_of

    code = found.short_code if options.short else found.code
    parts = [repr(checkpoint), f"{found.summary()}\n({origin_of(found)})", _table(found)]
    if options.out is not None:
        parts.append(f"program with its constants: {options.out}")
    else:
        parts.append(f"{code}\n--out FILE writes it with its constants.")
    return "\n\n".join(parts)


def _table(found: Any) -> str:
    """What every term adds, with its meaning below."""
    table = found.table()
    rows = []
    for name, _, *numbers in (table.header, *table.rows):
        rows.append((name, *numbers))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    for place, term in enumerate(found.terms):
        lines.insert(2 * place + 2, f"    {term.says}")
    return "\n".join(line.rstrip() for line in lines)
