"""The runs that `measure_recipes` measures: groups of runs that differ only in their seeds."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from mtdinterp.training import Recipe, recipe_for
from mtdinterp.training.zoo import TASK_SEED, VOCAB_SIZE

THREADS = 2
"""Threads of every run, and so the processors that its time is measured on."""
STEPS = {"one_step": "one-step MD", "two_step": "two-step MD"}
"""Estimators of the held-out set that runs are compared with."""


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
    base: str = "fast"
    """The name of the recipe."""
    changes: dict[str, Any] = field(default_factory=dict)
    """Fields of the recipe that differ from it."""
    at_most: dict[str, float] = field(default_factory=lambda: {"one_step": 1.05})
    """The largest KL of a successful run, divided by that of an estimator of the held-out set."""
    seconds: float = math.inf
    """The longest training time of a successful run."""

    def settings(self, name: str) -> dict[str, Any]:
        """The group as a part of a grid file."""
        settings = {
            "group": name,
            "order": self.order,
            "length": self.length,
            "architecture": self.architecture,
            "layers": self.layers,
        }
        if self.d_mlp:
            settings["d_mlp"] = self.d_mlp
        if self.d_rel:
            settings["d_rel"] = self.d_rel
        if self.base != "fast":
            settings["recipe"] = self.base
        seeds = list(range(self.seeds))
        if self.task_seed is None:
            together = {"seed": seeds, "task_seed": seeds.copy()}
            return {**settings, **self.changes, "zip": together}
        return {**settings, **self.changes, "task_seed": self.task_seed, "seed": seeds}

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
        if self.base != "fast":
            parts.append(f"{self.base} recipe")
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
        # Criteria, and what the recipe repeats.
        for name in ("at_most", "seconds", "changes", "base"):
            settings["group"].pop(name, None)
        for name in ("evaluate_every", "save_every"):
            settings["recipe"].pop(name, None)
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def recipe(self) -> Recipe:
        """The recipe with the group's changes."""
        return recipe_for(self.base, self.architecture, self.layers, **self.changes)


def _unusual(settings: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, so that new fields add nothing."""
    found = {}
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if entry.default is MISSING or value != entry.default:
            found[entry.name] = value
    return found


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
QUICK = {
    f"quick-m{order}": Group(order=order, base="quick", seeds=10, seconds=10) for order in (3, 4, 5)
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
GROUPS = {**PROMISES, **QUICK, **WIDE, **ABLATIONS}


def recipes_grid(groups: Mapping[str, Group]) -> dict[str, Any]:
    """The contents of a grid file with one cell per run."""
    return {
        "title": "the fast recipe from several seeds, and the paper's appendix",
        "vocab_size": VOCAB_SIZE,
        "threads": THREADS,
        "probes": "none",
        "report": "none",
        "grids": [group.settings(name) for name, group in groups.items()],
    }
