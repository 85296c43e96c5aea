"""Train with the fast recipe from several seeds and write the tables of docs/results/training.md.

Each group has its own section. The sections of the measured groups are replaced, and the others are
left as they are.
"""

import argparse
import hashlib
import json
import math
import platform
import sys
import time
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
from result_pages import RESULTS, replace_section, table

from mtdinterp import MTDTask
from mtdinterp.architectures import new_model
from mtdinterp.checkpoints.provenance import provenance_of
from mtdinterp.models import LensTransformer
from mtdinterp.training import HeldOut, Recipe, Trainer, initialise, recipe_for
from mtdinterp.training.zoo import TASK_SEED, VOCAB_SIZE


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    order: int = 4
    length: int = 64
    architecture: str = "disentangled"
    layers: int = 3
    d_mlp: int = 0
    d_rel: int | None = None
    seeds: int = 10
    """How many runs, with seeds 0, 1, …"""
    task_seed: int | None = None
    """The seed of every run's task; that of the model if None."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe that differ from the fast one."""
    at_most: dict[str, float] = field(default_factory=lambda: {"one_step": 1.05})
    """The largest KL of a successful run, divided by that of an estimator of the held-out set."""
    seconds: float = math.inf
    """The longest time of a successful run."""

    def model(self) -> LensTransformer:
        """A model before its initialisation."""
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
        """What a run must reach to count as successful, in words."""
        parts = [f"at most {most:g} × {STEPS[name]}" for name, most in self.at_most.items()]
        parts.append("direct")
        if self.seconds < math.inf:
            parts.append(f"within {self.seconds:g} s")
        return ", ".join(parts)

    def title(self, name: str) -> str:
        """The heading of the group's table."""
        parts = [
            f"{self.architecture}, {self.layers} layers, m = {self.order}, T = {self.length}",
            f"{self.recipe.steps} steps",
        ]
        parts += [f"{key} {value}" for key, value in self.changes.items()]
        if self.d_mlp:
            parts.append(f"hidden layer of {self.d_mlp}")
        if self.d_rel:
            parts.append(f"lag blocks of {self.d_rel}")
        return f"{name}: {', '.join(parts)}"

    @property
    def digest(self) -> str:
        """SHA-256 of all settings that decide the results and differ from their defaults."""
        settings = {"group": _unusual(self), "recipe": _unusual(self.recipe)}
        for name in ("at_most", "seconds", "changes"):  # criteria, and what the recipe repeats
            settings["group"].pop(name, None)
        for name in ("evaluate_every", "save_every"):
            settings["recipe"].pop(name, None)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def recipe(self) -> Recipe:
        """The fast recipe with the group's changes."""
        return recipe_for("fast", self.architecture, self.layers, **self.changes)


def _unusual(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, so that new fields add nothing."""
    found = {}
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if entry.default is MISSING or value != entry.default:
            found[entry.name] = value
    return found


@dataclass(frozen=True)
class Outcome:
    """What one run reached."""

    kl: float
    ratios: dict[str, float]
    """KL divided by that of tuned mirror descent, by the keys of `STEPS`."""
    beta: float
    optimal_beta: float
    branch: str
    seconds: float
    """Including the preparation of the held-out set."""

    def meets(self, group: Group) -> bool:
        """Whether the run is successful by the group's criterion."""
        close = all(self.ratios[name] <= most for name, most in group.at_most.items())
        return close and self.branch == "direct" and self.seconds <= group.seconds

    def row(self, seed: int) -> tuple[str, ...]:
        """The run's row of the table."""
        return (
            str(seed),
            f"{self.kl:.5f}",
            f"{self.ratios['one_step']:.3f}",
            f"{self.ratios['two_step']:.3f}",
            f"{self.beta:.1f} ({self.optimal_beta:.1f})",
            self.branch,
            f"{self.seconds:.0f}",
        )


STEPS = {"one_step": "one-step MD", "two_step": "two-step MD"}
"""Estimators of the held-out set that runs are compared with."""
FIVE: dict[str, Any] = {
    "order": 3,
    "layers": 5,
    "seeds": 3,
    "task_seed": TASK_SEED,
    "at_most": {"one_step": 1.0, "two_step": 1.05},
}
"""The runs of the zoo."""
PROMISES = {
    "m4": Group(seconds=60),
    "m3": Group(order=3, seconds=60),
    "m5": Group(order=5, seconds=60),
    "standard": Group(architecture="standard", seeds=5, seconds=240),
    "five-T64": Group(**FIVE),
    "five-T128": Group(**FIVE, length=128),
}
WIDE = {f"m{order}-wide": Group(order=order, d_rel=8, seeds=3, seconds=60) for order in (3, 4, 5)}
"""Lag blocks of one width for every order, so that the start does not depend on the order."""
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
    """Measure the groups that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"any of {', '.join(GROUPS)}, or 'ablations' (default: {', '.join(PROMISES)})",
    )
    chosen: list[str] = []
    for name in parser.parse_args().groups or PROMISES:
        chosen += ABLATIONS if name == "ablations" else [name]
    unknown = sorted(set(chosen) - set(GROUPS))
    if unknown:
        parser.error(f"unknown group {unknown[0]}; the known ones are {', '.join(GROUPS)}")
    for name in chosen:
        replace_section(RESULTS / "training.md", measure(name, GROUPS[name]))


def measure(name: str, group: Group) -> str:
    """Train all runs of a group.

    Args:
        name: the name of the group.
        group: the group.

    Returns:
        The group's section: its heading, what made it, its table, and how many runs succeeded.
    """
    seeds = "task and model seed" if group.task_seed is None else "model seed"
    header = (
        seeds,
        "KL",
        "over one-step MD",
        "over two-step MD",
        "β (optimum)",
        "branch",
        "seconds in all",
    )
    outcomes = []
    for seed in range(group.seeds):
        outcome = train(group, seed)
        outcomes.append(outcome)
        print(f"{name}:", *outcome.row(seed), file=sys.stderr, flush=True)
    rows = [outcome.row(seed) for seed, outcome in enumerate(outcomes)]
    reached = sum(outcome.meets(group) for outcome in outcomes)
    middle = median(outcome.ratios["one_step"] for outcome in outcomes)
    machine = (
        f"Machine: {_processor()}, threads: {torch.get_num_threads()}. SHA-256 of the settings:"
    )
    parts = [
        f"## {group.title(name)}",
        *provenance_of(f"scripts/measure_recipes {name}").markdown(),
        machine,
        f"    {group.digest}  {name}",
        table(header, rows),
        f"Reached ({group.criterion}): {reached} of {group.seeds}; median {middle:.3f} × one-step "
        "MD.",
    ]
    return "\n\n".join(parts) + "\n"


def train(group: Group, seed: int) -> Outcome:
    """Train one run of a group."""
    started = time.perf_counter()
    task_seed = seed if group.task_seed is None else group.task_seed
    task = MTDTask.random(VOCAB_SIZE, group.order, seed=task_seed)
    recipe = group.recipe
    model = group.model()
    initialise(model, recipe.initialisation, seed)
    held_out = HeldOut.prepare(task, group.length, bayes=False)
    if held_out.beta is None or held_out.left_out:
        reasons = "; ".join(held_out.left_out.values())
        raise SystemExit(f"task seed {task_seed}: {reasons}")
    trainer = Trainer(model, task, recipe, seed, held_out)
    trainer.run()
    last = trainer.history[-1]
    return Outcome(
        kl=last["kl"],
        ratios={name: last["kl"] / held_out.kl[name] for name in STEPS},
        beta=last["beta"],
        optimal_beta=held_out.beta,
        branch=last["branch"],
        seconds=time.perf_counter() - started,
    )


def _processor() -> str:
    """The processor's name, or the machine's type if the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.machine()
    for line in cpuinfo.read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


if __name__ == "__main__":
    main()
