"""How a model is trained: every choice is a field, and two recipes name good or faithful sets of
them.

`fast` reaches the construction in under a minute; `paper` is the paper's own, slow and noisy.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from mtdinterp.checks import check_count, check_number, check_option
from mtdinterp.native.step import LOSSES
from mtdinterp.training.initialise import INITIALISATIONS

TARGETS = ("expected", "sampled")
SUPERVISIONS = ("last", "all")
SCHEDULES = ("constant", "cosine")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides how training goes, apart from the model, the task and the seed."""

    name: str = "custom"
    steps: int
    batch_size: int
    learning_rate: float
    later_rate: float = 1.0
    """What all that comes after layer 1 has of the learning rate, from a tenth of the steps on."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay of Adam's running means of the gradient and of its square."""
    schedule: str = "cosine"
    """constant, or cosine decay to zero; both after a linear warm-up."""
    warmup: int = 0
    """Steps over which the learning rate rises from zero."""
    initialisation: str = "tied"
    targets: str = "expected"
    """expected: the true conditional distribution. sampled: one token drawn from it, one-hot. Same
    minimiser."""
    loss: str = "mse"
    supervision: str = "last"
    """Which positions have a target: the last alone, or all."""
    micro_batch_size: int | None = None
    """Sequences at once, for memory; gradients of a batch are added up. None: the whole batch."""
    evaluate_every: int = 500
    save_every: int = 2000
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "save_every"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        object.__setattr__(self, "warmup", check_count("warmup", self.warmup, minimum=0))
        if self.micro_batch_size is not None:
            object.__setattr__(
                self, "micro_batch_size", check_count("micro_batch_size", self.micro_batch_size)
            )
        for name in ("learning_rate", "later_rate"):
            check_number(name, getattr(self, name), minimum=0, exclusive=True)
        if len(self.adam_betas) != 2 or not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ValueError(f"adam_betas: expected two numbers in [0, 1), got {self.adam_betas}")
        check_option("schedule", self.schedule, SCHEDULES)
        check_option("initialisation", self.initialisation, INITIALISATIONS)
        check_option("targets", self.targets, TARGETS)
        check_option("loss", self.loss, LOSSES)
        check_option("supervision", self.supervision, SUPERVISIONS)

    def rate_at(self, step: int) -> float:
        """The learning rate of step 0, 1, …"""
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        falling = (
            0.5 * (1 + math.cos(math.pi * step / self.steps)) if self.schedule == "cosine" else 1.0
        )
        return self.learning_rate * rising * falling

    def later_share(self, step: int) -> float:
        """1 at first: where later layers do not keep up with it, layer 1 may leave the plateau the
        mirrored way."""
        return self.later_rate ** min(1.0, 10 * step / self.steps)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """The inverse of `to_dict`, also through JSON; an unknown field is an error that lists the
        known ones."""
        for name in values:
            check_option("recipe field", name, [field.name for field in fields(cls)])
        read: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
        return cls(**read)


PAPER = Recipe(
    name="paper",
    steps=500_000,
    batch_size=128,
    learning_rate=1e-3,
    schedule="constant",
    initialisation="small",
    targets="sampled",
    evaluate_every=5000,
    save_every=25_000,
)


QUICK = (0.9, 0.95)
"""Adam forgets the large gradients of the first steps in time for the small ones of the plateau:
with the usual 0.999 they keep its steps small for thousands of steps, and some tasks do not leave
the plateau at all."""


def fast(architecture: str = "disentangled", n_layers: int = 3, n_heads: int = 1) -> Recipe:
    """The recipe that finds the construction quickly, for one architecture and depth.

    Where there is nothing to tie (fewer than three layers, several heads) it starts from the
    default.
    """
    if n_layers < 3 or n_heads > 1:
        return replace(fast(architecture, max(3, n_layers)), initialisation="default")
    if architecture == "standard":
        return Recipe(
            name="fast", steps=8000, batch_size=64, learning_rate=5e-3, warmup=200, adam_betas=QUICK
        )
    if n_layers >= 5:
        return Recipe(
            name="fast",
            steps=20_000,
            batch_size=64,
            learning_rate=1e-2,
            later_rate=0.3,
            warmup=500,
            adam_betas=QUICK,
            evaluate_every=1000,
        )
    return Recipe(
        name="fast", steps=8000, batch_size=64, learning_rate=1e-2, warmup=200, adam_betas=QUICK
    )


def recipe_for(
    name: str, architecture: str, n_layers: int, n_heads: int = 1, **changes: Any
) -> Recipe:
    """A named recipe, with some of its fields changed where a change is not None; its name then
    says so."""
    check_option("recipe", name, ("fast", "paper"))
    base = fast(architecture, n_layers, n_heads) if name == "fast" else PAPER
    changed = replace(base, **{key: value for key, value in changes.items() if value is not None})
    return changed if changed == base else replace(changed, name=f"{name}, changed")
