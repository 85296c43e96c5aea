"""Train the zoo's models from their seeds, and store of each what loading needs: model, configuration, history.

A run lives in out/zoo/NAME while it trains, where it can be stopped and resumed.
"""

import argparse
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtdinterp import MTDTask, save_checkpoint
from mtdinterp.checkpoint_files import ZOO, zoo_names
from mtdinterp.commands.train import describe_evaluation, model_name
from mtdinterp.models import new_model
from mtdinterp.training import recipe_for
from mtdinterp.training.run import Run, new_run, resumed_run

RUNS = Path("out") / "zoo"
VOCAB_SIZE, TASK_SEED = 5, 0


@dataclass(frozen=True)
class Entry:
    """One model; all of them learn the task of seed 0 for their order."""

    order: int
    length: int
    architecture: str = "disentangled"
    layers: int = 3
    seed: int = 0
    recipe: str = "fast"
    changes: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""

    @property
    def name(self) -> str:
        return model_name(self.architecture, self.order, self.length, self.layers, self.seed) + self.suffix


ENTRIES = (
    *(Entry(order, length) for length in (64, 128, 256) for order in (3, 4, 5)),
    *(Entry(order, 64, "standard") for order in (3, 4, 5)),
    Entry(4, 128, "standard"),
    *(Entry(3, length, layers=5, seed=seed) for length in (64, 128) for seed in (0, 1, 2)),
    Entry(4, 64, changes={"initialisation": "mirrored"}, suffix="-mirrored"),
    *(Entry(order, 64, recipe="paper", suffix="-paper") for order in (4, 3, 5)),
    *(Entry(4, 64, seed=seed, recipe="paper", suffix="-paper") for seed in (1, 2)),
    Entry(4, 128, recipe="paper", suffix="-paper"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which models (all that are missing)")
    parser.add_argument("--list", action="store_true", help="show what there is to build, and build nothing")
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
    directory = RUNS / entry.name
    with (resumed_run(directory) if directory.exists() else _begin(entry, directory)) as run:
        print(f"{entry.name}: from step {run.trainer.step}", file=sys.stderr, flush=True)
        trainer = run.trainer

        def after_step(_: Any) -> bool:
            if trainer.step % trainer.recipe.save_every == 0 or trainer.finished:
                run.save()
            return True

        trainer.run(after_step)
        _export(run, entry)
    print(f"{entry.name}: {describe_evaluation(trainer.history[-1])}, {time.perf_counter() - began:.0f} s",
          file=sys.stderr, flush=True)


def _begin(entry: Entry, directory: Path) -> Any:
    model = new_model(entry.architecture, VOCAB_SIZE, entry.length, entry.layers, d_rel=entry.order)
    task = MTDTask.random(VOCAB_SIZE, entry.order, seed=TASK_SEED)
    recipe = recipe_for(entry.recipe, entry.architecture, entry.layers, **entry.changes)
    return new_run(directory, model, task, recipe, {"task": TASK_SEED, "model": entry.seed})


def _export(run: Run, entry: Entry) -> None:
    trainer = run.trainer
    save_checkpoint(ZOO / entry.name, trainer.model, trainer.task, recipe=trainer.recipe.to_dict(),
                    seeds={"task": TASK_SEED, "model": entry.seed}, history=trainer.history)


if __name__ == "__main__":
    main()
