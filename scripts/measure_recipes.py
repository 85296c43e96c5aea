"""Train by the fast recipe from several seeds and print a Markdown table of what each run reached."""

import argparse
import platform
import time
from pathlib import Path
from statistics import median

import torch

from mtdinterp import MTDTask
from mtdinterp.models import DisentangledConfig, DisentangledTransformer, StandardConfig, StandardTransformer
from mtdinterp.training import HeldOut, Trainer, initialise, recipe_for

GROUPS = {
    **{f"m{order}": {"architecture": "disentangled", "layers": 3, "order": order, "length": 64, "seeds": 10}
       for order in (3, 4, 5)},
    "standard": {"architecture": "standard", "layers": 3, "order": 4, "length": 64, "seeds": 5},
    "five-T64": {"architecture": "disentangled", "layers": 5, "order": 3, "length": 64, "seeds": 3},
    "five-T128": {"architecture": "disentangled", "layers": 5, "order": 3, "length": 128, "seeds": 3},
}
VOCAB_SIZE = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"some of {', '.join(GROUPS)} (all)")
    chosen = parser.parse_args().groups or list(GROUPS)
    unknown = sorted(set(chosen) - set(GROUPS))
    if unknown:
        parser.error(f"unknown group {unknown[0]}; there are {', '.join(GROUPS)}")
    print(f"{_processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}\n")
    for name in chosen:
        measure(name, **GROUPS[name])


def measure(name: str, architecture: str, layers: int, order: int, length: int, seeds: int) -> None:
    recipe = recipe_for("fast", architecture, layers)
    print(f"### {name}: {architecture}, {layers} layers, m = {order}, T = {length}, {recipe.steps} steps\n")
    print("| task and model seed | KL | over one-step MD | over two-step MD | β (optimum) | branch | seconds in all |")
    print("|---|---|---|---|---|---|---|")
    ratios = []
    for seed in range(seeds):
        start = time.perf_counter()
        task = MTDTask.random(VOCAB_SIZE, order, seed=seed)
        shared = {"vocab_size": VOCAB_SIZE, "length": length, "n_layers": layers}
        model = (DisentangledTransformer(DisentangledConfig(**shared, d_rel=order)) if architecture == "disentangled"
                 else StandardTransformer(StandardConfig(**shared)))
        initialise(model, recipe.initialisation, seed)
        trainer = Trainer(model, task, recipe, seed, HeldOut.prepare(task, length, bayes=False))
        trainer.run()
        last, reference = trainer.history[-1], trainer.held_out
        ratios.append(last["ratio"])
        print(f"| {seed} | {last['kl']:.5f} | {last['ratio']:.3f} | {last['kl'] / reference.kl['two_step']:.3f} "
              f"| {last['beta']:.1f} ({reference.beta:.1f}) | {last['branch']} | {time.perf_counter() - start:.0f} |",
              flush=True)
    reached = sum(ratio <= 1.05 for ratio in ratios)
    print(f"\nAt most 1.05 × one-step MD: {reached} of {seeds}; median {median(ratios):.3f}.\n", flush=True)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


if __name__ == "__main__":
    main()
