"""Train the zoo's models from their seeds and store them in the package.

A run is kept in out/zoo/NAME while it trains, where it can be stopped and resumed. The package
gets the model, its configuration and its history.
"""

import argparse
import sys
import time
from pathlib import Path

from mtdinterp import save_checkpoint
from mtdinterp.checkpoint_files import ZOO, zoo_names
from mtdinterp.commands.train_summary import live_evaluation
from mtdinterp.training.run import Run
from mtdinterp.training.zoo import ENTRIES, Entry, entry_run

RUNS = Path("out") / "zoo"


def main() -> None:
    """Build the models that the command line names, or all that are missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="models to build (default: all that are missing)"
    )
    parser.add_argument("--list", action="store_true", help="list the models without building any")
    options = parser.parse_args()
    known = {entry.name: entry for entry in ENTRIES}
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"unknown model {unknown[0]}; --list shows the known ones")
    present = set(zoo_names())
    if options.list:
        for name in known:
            status = "built" if name in present else "missing"
            print(f"{name:<32} {status}")
        return
    missing = [name for name in known if name not in present]
    for name in options.names or missing:
        build(known[name])


def build(entry: Entry) -> None:
    """Train one model, or resume its run, and store it."""
    started = time.perf_counter()
    with entry_run(entry, RUNS / entry.name) as run:
        print(f"{entry.name}: from step {run.trainer.step}", file=sys.stderr, flush=True)
        run.train()
        _export(run, entry)
    seconds = time.perf_counter() - started
    last = live_evaluation(run.trainer.history[-1])
    print(f"{entry.name}: {last}, {seconds:.0f} s", file=sys.stderr, flush=True)


def _export(run: Run, entry: Entry) -> None:
    """Store what loading needs, without the state that resuming needs."""
    trainer = run.trainer
    save_checkpoint(
        ZOO / entry.name,
        trainer.model,
        trainer.task,
        recipe=trainer.recipe.to_dict(),
        seeds=entry.seeds,
        history=trainer.history,
    )


if __name__ == "__main__":
    main()
