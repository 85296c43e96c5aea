"""Train by the fast recipe from several seeds and print a Markdown table of what each run reached."""

import argparse
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from mtdinterp import MTDTask
from mtdinterp.models import LensTransformer, new_model
from mtdinterp.training import HeldOut, Trainer, initialise, recipe_for

VOCAB_SIZE = 5


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone; seed i is that of the task and of the model."""

    order: int = 4
    length: int = 64
    architecture: str = "disentangled"
    layers: int = 3
    d_mlp: int = 0
    seeds: int = 10
    changes: dict[str, Any] = field(default_factory=dict)

    def model(self) -> LensTransformer:
        return new_model(self.architecture, VOCAB_SIZE, self.length, self.layers, d_rel=self.order, d_mlp=self.d_mlp,
                         logits=self.changes.get("loss") == "cross-entropy")


PROMISES = {
    "m4": Group(),
    "m3": Group(order=3),
    "m5": Group(order=5),
    "standard": Group(architecture="standard", seeds=5),
    "five-T64": Group(order=3, layers=5, seeds=3),
    "five-T128": Group(order=3, length=128, layers=5, seeds=3),
}
ABLATIONS = {
    "cross-entropy": Group(seeds=3, changes={"loss": "cross-entropy"}),
    "cross-entropy-L5": Group(layers=5, seeds=3, changes={"loss": "cross-entropy", "steps": 10_000}),
    "cross-entropy-mlp": Group(d_mlp=64, seeds=3, changes={"loss": "cross-entropy"}),
    "all-positions": Group(seeds=3, changes={"supervision": "all"}),
}
GROUPS = {**PROMISES, **ABLATIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"some of {', '.join(GROUPS)}, or 'ablations' "
                                                                   f"(default: {', '.join(PROMISES)})")
    names = parser.parse_args().groups or list(PROMISES)
    chosen = [name for given in names for name in (ABLATIONS if given == "ablations" else [given])]
    unknown = sorted(set(chosen) - set(GROUPS))
    if unknown:
        parser.error(f"unknown group {unknown[0]}; there are {', '.join(GROUPS)}")
    print(f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    for name in chosen:
        measure(name, GROUPS[name])


def measure(name: str, group: Group) -> None:
    recipe = recipe_for("fast", group.architecture, group.layers, **group.changes)
    extra = "".join(f", {key} {value}" for key, value in group.changes.items())
    extra += f", hidden layer of {group.d_mlp}" if group.d_mlp else ""
    print(f"### {name}: {group.architecture}, {group.layers} layers, m = {group.order}, T = {group.length}, "
          f"{recipe.steps} steps{extra}\n")
    print("| task and model seed | KL | over one-step MD | over two-step MD | β (optimum) | branch | seconds in all |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for seed in range(group.seeds):
        start = time.perf_counter()
        task, model = MTDTask.random(VOCAB_SIZE, group.order, seed=seed), group.model()
        initialise(model, recipe.initialisation, seed)
        trainer = Trainer(model, task, recipe, seed, HeldOut.prepare(task, group.length, bayes=False))
        trainer.run()
        last, reference = trainer.history[-1], trainer.held_out
        ratios.append(last["ratio"])
        print(f"| {seed} | {last['kl']:.5f} | {last['ratio']:.3f} | {last['kl'] / reference.kl['two_step']:.3f} "
              f"| {last['beta']:.1f} ({reference.beta:.1f}) | {last['branch']} | {time.perf_counter() - start:.0f} |",
              flush=True)
    reached = sum(ratio <= 1.05 for ratio in ratios)
    print(f"\nAt most 1.05 × one-step MD: {reached} of {group.seeds}; median {median(ratios):.3f}.\n", flush=True)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
