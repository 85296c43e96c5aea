"""Train the zoo's models from their seeds and store them in the package.

The models are the cells of a grid, which `mtdinterp sweep run` runs in out/zoo. It can be stopped
at any moment; the same command continues. The package gets each finished model with its
configuration and its history.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grid_runs import BAD_INPUT, run_grid

from mtdinterp import load_checkpoint, save_checkpoint
from mtdinterp.checkpoint_files import ZOO, zoo_names
from mtdinterp.commands.train_summary import live_evaluation
from mtdinterp.sweep.cells import CHECKPOINT, canonical, is_done, read_cell
from mtdinterp.sweep.directory import read_sweep
from mtdinterp.training.zoo import ENTRIES, VOCAB_SIZE, Entry

OUT = Path("out") / "zoo"
COMMON = {
    "vocab_size": VOCAB_SIZE,
    "probes": "none",
    "report": "none",
}
"""The settings of all models; `scripts/measure_zoo` probes them."""


def main() -> int:
    """Build the models that the command line names, or all that are missing."""
    parser = argparse.ArgumentParser(
        prog="scripts/build_zoo",
        usage="scripts/build_zoo [-h] [--list] [--out DIR] [NAME ...] [FLAG ...]",
        description=__doc__,
        epilog="NAME: models to build (default: all that are missing). FLAG: flags of `mtdinterp "
        "sweep run`, such as --engine, after the names.",
        allow_abbrev=False,
    )
    parser.add_argument("--list", action="store_true", help="list the models without building any")
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help=f"directory of the sweep ({OUT})"
    )
    options, words = parser.parse_known_args()
    names, flags = names_and_flags(words)
    known = {entry.name: entry for entry in ENTRIES}
    unknown = sorted(set(names) - set(known))
    if unknown:
        parser.error(f"unknown model {unknown[0]}; --list shows the known ones")
    present = set(zoo_names())
    if options.list:
        for name in known:
            status = "built" if name in present else "missing"
            print(f"{name:<32} {status}")
        return 0
    missing = [name for name in known if name not in present]
    chosen = [known[name] for name in dict.fromkeys(names or missing)]
    if not chosen:
        print("all models are built; name those to build again", file=sys.stderr)
        return 0
    return build(chosen, options.out, flags=flags)


def names_and_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first flag, and those from it on."""
    is_flag = [word.startswith("-") for word in words]
    first = is_flag.index(True) if any(is_flag) else len(words)
    return list(words[:first]), list(words[first:])


def build(entries: Sequence[Entry], out: Path, zoo: Path = ZOO, flags: Sequence[str] = ()) -> int:
    """Train models, or continue where an earlier call stopped, and store those that are finished.

    Args:
        entries: the models.
        out: the directory of the sweep that trains them.
        zoo: where to store them.
        flags: other flags of `mtdinterp sweep run`.

    Returns:
        The exit code.
    """
    code = run_grid(zoo_grid(entries), out, flags)
    if code != BAD_INPUT and "--dry-run" not in flags:
        store(entries, out, zoo)
    return code


def zoo_grid(entries: Iterable[Entry]) -> dict[str, Any]:
    """The contents of a grid file with one cell per model, and per model that one grows from."""
    chains: dict[str, list[Entry]] = {}
    for entry in entries:
        known = chains.setdefault(entry.chain[0].name, [])
        shorter, longer = sorted((known, entry.chain), key=len)
        if longer[: len(shorter)] != shorter:
            raise ValueError(f"{entry.name}: two models grow from {shorter[-1].grown_from}")
        chains[entry.chain[0].name] = longer
    grids = [chain_grid(chain) for chain in chains.values()]
    return {"title": "the models of the zoo", **COMMON, "grids": grids}


def chain_grid(chain: Sequence[Entry]) -> dict[str, Any]:
    """The part of a grid file that describes models, each grown from the one before."""
    settings = [settings_of(entry) for entry in chain]
    if len(chain) == 1:
        return settings[0]
    varied = {name: [entry[name] for entry in settings] for name in ("length", "recipe")}
    common = {name: value for name, value in settings[0].items() if name not in varied}
    if any({**entry, **common} != entry or len(entry) != len(settings[0]) for entry in settings):
        raise ValueError(f"{chain[-1].name}: models of a chain differ in length and recipe only")
    return {**common, "from": "length", "zip": varied}


def settings_of(entry: Entry) -> dict[str, Any]:
    """The settings of one model that are not common to all."""
    return {
        "order": entry.order,
        "length": entry.length,
        "task_seed": entry.task_seed,
        "architecture": entry.architecture,
        "layers": entry.layers,
        "seed": entry.seed,
        "recipe": entry.recipe,
        **entry.changes,
    }


def store(entries: Iterable[Entry], out: Path, zoo: Path) -> None:
    """Store the finished models of a sweep under their names, without the training state."""
    by_settings = {canonical({**COMMON, **settings_of(entry)}): entry for entry in entries}
    sweep = read_sweep(out)
    for cell in sweep.entries:
        entry = by_settings.get(canonical(cell.settings))
        directory = sweep.directory(cell.name)
        if entry is None or not is_done(directory, read_cell(directory)):
            continue
        checkpoint = load_checkpoint(directory / CHECKPOINT)
        parent = None
        if entry.grown_from is not None:
            parent = {**checkpoint.config["parent"], "name": entry.grown_from.name}
        save_checkpoint(
            zoo / entry.name,
            checkpoint.model,
            checkpoint.task,
            recipe=checkpoint.config["recipe"],
            seeds=checkpoint.config["seeds"],
            history=checkpoint.history,
            parent=parent,
        )
        last = live_evaluation(checkpoint.history[-1])
        print(f"{entry.name}: stored, {last}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
