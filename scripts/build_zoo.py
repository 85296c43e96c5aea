"""Train the zoo's models from their seeds, and store of each what loading needs: model,
configuration, history.

A run lives in out/zoo/NAME while it trains, where it can be stopped and resumed.
"""

import argparse
import sys
import time
from pathlib import Path

from mtdinterp import save_checkpoint
from mtdinterp.checkpoint_files import ZOO, zoo_names
from mtdinterp.commands.train import live_evaluation
from mtdinterp.training.run import Run
from mtdinterp.training.zoo import ENTRIES, Entry, entry_run

RUNS = Path("out") / "zoo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="which models (all that are missing)"
    )
    parser.add_argument(
        "--list", action="store_true", help="show what there is to build, and build nothing"
    )
    options = parser.parse_args()
    known = {entry.name: entry for entry in ENTRIES}
    unknown = sorted(set(options.names) - set(known))
    if unknown:
        parser.error(f"unknown model {unknown[0]}; --list shows the known ones")
    present = set(zoo_names())
    if options.list:
        for name in known:
            print(f"{name:<32} {'built' if name in present else 'missing'}")
        return
    for name in options.names or [name for name in known if name not in present]:
        build(known[name])


def build(entry: Entry) -> None:
    began = time.perf_counter()
    with entry_run(entry, RUNS / entry.name) as run:
        print(f"{entry.name}: from step {run.trainer.step}", file=sys.stderr, flush=True)
        run.train()
        _export(run, entry)
    print(
        f"{entry.name}: {live_evaluation(run.trainer.history[-1])}, "
        f"{time.perf_counter() - began:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def _export(run: Run, entry: Entry) -> None:
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
