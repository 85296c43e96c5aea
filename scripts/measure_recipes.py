"""Train by the fast recipe from several seeds and print a Markdown table of what each run
reached."""

import argparse
import math
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from mtdinterp import MTDTask
from mtdinterp.architectures import new_model
from mtdinterp.models import LensTransformer
from mtdinterp.training import HeldOut, Trainer, initialise, recipe_for
from mtdinterp.training.zoo import TASK_SEED, VOCAB_SIZE


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone: that of the model, and of the task unless that has one
    of its own."""

    order: int = 4
    length: int = 64
    architecture: str = "disentangled"
    layers: int = 3
    d_mlp: int = 0
    d_rel: int | None = None
    seeds: int = 10
    task_seed: int | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    at_most: dict[str, float] = field(default_factory=lambda: {"one_step": 1.05})
    """What a run must reach to count: its KL over that of tuned mirror descent of one and of two
    steps."""
    seconds: float = math.inf
    """And in which time."""

    def model(self) -> LensTransformer:
        return new_model(
            self.architecture,
            VOCAB_SIZE,
            self.length,
            self.layers,
            n_components=self.order,
            d_rel=self.d_rel,
            d_mlp=self.d_mlp,
            logits=self.changes.get("loss") == "cross-entropy",
        )

    @property
    def criterion(self) -> str:
        ratios = [f"at most {most:g} × {STEPS[name]}" for name, most in self.at_most.items()]
        return ", ".join(
            [
                *ratios,
                "direct",
                *([f"within {self.seconds:g} s"] if self.seconds < math.inf else []),
            ]
        )


STEPS = {"one_step": "one-step MD", "two_step": "two-step MD"}
FIVE: dict[str, Any] = {
    "order": 3,
    "layers": 5,
    "seeds": 3,
    "task_seed": TASK_SEED,
    "at_most": {"one_step": 1.0, "two_step": 1.05},
}
"""The zoo's own runs."""
PROMISES = {
    "m4": Group(seconds=60),
    "m3": Group(order=3, seconds=60),
    "m5": Group(order=5, seconds=60),
    "standard": Group(architecture="standard", seeds=5, seconds=240),
    "five-T64": Group(**FIVE),
    "five-T128": Group(**FIVE, length=128),
}
WIDE = {f"m{order}-wide": Group(order=order, d_rel=8, seeds=3, seconds=60) for order in (3, 4, 5)}
"""The lag blocks as wide for every number of lags: the start then knows nothing of it."""
ABLATIONS = {
    "cross-entropy": Group(seeds=3, changes={"loss": "cross-entropy"}),
    "cross-entropy-L5": Group(
        layers=5, seeds=3, changes={"loss": "cross-entropy", "steps": 10_000, "later_rate": 1.0}
    ),
    "cross-entropy-mlp": Group(d_mlp=64, seeds=3, changes={"loss": "cross-entropy"}),
    "all-positions": Group(seeds=3, changes={"supervision": "all"}),
}
GROUPS = {**PROMISES, **WIDE, **ABLATIONS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"some of {', '.join(GROUPS)}, or 'ablations' (default: {', '.join(PROMISES)})",
    )
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
    extra += f", lag blocks of {group.d_rel}" if group.d_rel else ""
    print(
        f"### {name}: {group.architecture}, {group.layers} layers, m = {group.order}, T = "
        f"{group.length}, "
        f"{recipe.steps} steps{extra}\n"
    )
    seeds = "task and model seed" if group.task_seed is None else "model seed"
    print(
        f"| {seeds} | KL | over one-step MD | over two-step MD | β (optimum) | branch | seconds in "
        "all |"
    )
    print("|---|---|---|---|---|---|---|")
    ratios, reached = [], 0
    for seed in range(group.seeds):
        start = time.perf_counter()
        task_seed = seed if group.task_seed is None else group.task_seed
        task, model = MTDTask.random(VOCAB_SIZE, group.order, seed=task_seed), group.model()
        initialise(model, recipe.initialisation, seed)
        trainer = Trainer(
            model, task, recipe, seed, HeldOut.prepare(task, group.length, bayes=False)
        )
        trainer.run()
        last, reference = trainer.history[-1], trainer.held_out
        over, seconds = (
            {name: last["kl"] / reference.kl[name] for name in STEPS},
            time.perf_counter() - start,
        )
        ratios.append(over["one_step"])
        reached += (
            all(over[name] <= most for name, most in group.at_most.items())
            and last["branch"] == "direct"
            and seconds <= group.seconds
        )
        print(
            f"| {seed} | {last['kl']:.5f} | {over['one_step']:.3f} | {over['two_step']:.3f} "
            f"| {last['beta']:.1f} ({reference.beta:.1f}) | {last['branch']} | {seconds:.0f} |",
            flush=True,
        )
    print(
        f"\nReached ({group.criterion}): {reached} of {group.seeds}; median {median(ratios):.3f} × "
        "one-step MD.\n",
        flush=True,
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
