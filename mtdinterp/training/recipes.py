"""How a model is trained: one field per setting, and the named recipes.

`fast` reaches the construction in under a minute, and `quick` in seconds but less exactly. `grown`
continues with the weights of a shorter model and needs few steps. `paper` is the paper's own, slow
and noisy.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from mtdinterp import registry
from mtdinterp.architectures import start_names
from mtdinterp.checks import check_count, check_number, check_option
from mtdinterp.history_lines import MOST_ENTRIES
from mtdinterp.native.step import LOSSES

TARGETS = ("expected", "sampled")
SUPERVISIONS = ("last", "all")
SCHEDULES = ("constant", "cosine")
RECIPES = ("fast", "quick", "grown", "paper")
MOST_SNAPSHOTS = 1000
"""More would take more disk than anybody wants: each is as large as the model."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All training settings except the model, the task and the seed."""

    name: str = "custom"
    steps: int
    batch_size: int
    """Sequences per step."""
    learning_rate: float
    """Peak learning rate of Adam."""
    later_rate: float = 1.0
    """Factor on the learning rate of everything after layer 1, from a tenth of the steps on."""
    adam_betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of Adam's running means of the gradient and of its square."""
    schedule: str = "cosine"
    """"constant", or "cosine" decay to zero; both after a linear warm-up."""
    warmup: int = 0
    """Steps over which the learning rate rises from zero."""
    initialisation: str = "tied"
    """The name of one of the architecture's starts."""
    targets: str = "expected"
    """"expected" is the true next-token distribution, "sampled" a one-hot draw from it. Both have
    the same minimiser."""
    loss: str = "mse"
    supervision: str = "last"
    """Positions that have a target: "last" or "all"."""
    micro_batch_size: int | None = None
    """Sequences per forward pass, to save memory; None for the whole batch. Gradients are summed
    over the batch."""
    evaluate_every: int = 500
    """Steps between evaluations."""
    save_every: int = 2000
    """Steps between saves."""
    snapshots: int = 0
    """How many snapshots of the weights to keep, at logarithmically spaced steps."""
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "save_every"):
            self._count(name)
        # One entry of the history is the evaluation before the first step.
        most = MOST_ENTRIES - 1
        if self.steps > most * self.evaluate_every:
            raise ValueError(
                f"evaluate_every: expected at most {most} evaluations in {self.steps} "
                f"steps, got one every {self.evaluate_every}"
            )
        self._count("warmup", minimum=0)
        self._count("snapshots", minimum=0)
        if self.snapshots > MOST_SNAPSHOTS:
            raise ValueError(
                f"snapshots: expected at most {MOST_SNAPSHOTS:,}, got {self.snapshots:,}"
            )
        if self.micro_batch_size is not None:
            self._count("micro_batch_size")
        for name in ("learning_rate", "later_rate"):
            check_number(name, getattr(self, name), minimum=0, exclusive=True)
        if len(self.adam_betas) != 2 or not all(0 <= beta < 1 for beta in self.adam_betas):
            raise ValueError(
                f"adam_betas: expected two numbers in [0, 1), got {self.adam_betas!r:.60}"
            )
        check_option("schedule", self.schedule, SCHEDULES)
        check_option("initialisation", self.initialisation, start_names())
        check_option("targets", self.targets, TARGETS)
        check_option("loss", self.loss, LOSSES)
        check_option("supervision", self.supervision, SUPERVISIONS)

    def _count(self, name: str, minimum: int = 1) -> None:
        """Check a field and store it as a plain int."""
        object.__setattr__(self, name, check_count(name, getattr(self, name), minimum))

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        rising = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        falling = 1.0
        if self.schedule == "cosine":
            falling = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.learning_rate * rising * falling

    def later_share(self, step: int) -> float:
        """The factor of the layers after the first at a step, counted from 0.

        It starts at 1: if later layers are slower than layer 1 from the start, layer 1 may leave
        the plateau towards the mirrored solution.
        """
        return self.later_rate ** min(1.0, 10 * step / self.steps)

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """The inverse of `to_dict`, also through JSON; an unknown field is an error."""
        known = [field.name for field in fields(cls)]
        read: dict[str, Any] = {}
        for name, value in values.items():
            check_option("recipe field", name, known)
            read[name] = tuple(value) if isinstance(value, list) else value
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


FAST_STEPS = 8000
"""Steps of the fast recipe with three layers."""

ADAM_BETAS = (0.9, 0.95)
"""Adam's decay rates in the fast recipe.

The large gradients of the first steps must be forgotten before the small ones of the plateau
arrive. With the usual 0.999 they keep the steps small for thousands of steps, and some tasks never
leave the plateau.
"""


def fast(architecture: str = "disentangled", n_layers: int = 3, n_heads: int = 1) -> Recipe:
    """The recipe that finds the construction quickly, for one architecture and depth.

    Args:
        architecture: the name of a registered architecture, which may change some fields.
        n_layers: number of layers.
        n_heads: heads per layer.

    Returns:
        The recipe; its start is "default" unless the architecture has a better one.
    """
    base = Recipe(
        name="fast",
        steps=FAST_STEPS,
        batch_size=64,
        learning_rate=1e-2,
        warmup=200,
        adam_betas=ADAM_BETAS,
        initialisation="default",
    )
    return replace(base, **registry.ARCHITECTURES[architecture].fast_recipe(n_layers, n_heads))


QUICK_STEPS, QUICK_RATE = 0.3125, 2.0
"""Steps and learning rate of the quick recipe over those of the fast one."""


def quick(architecture: str = "disentangled", n_layers: int = 3, n_heads: int = 1) -> Recipe:
    """The fast recipe with fewer steps at a higher rate, for a first look.

    Args:
        architecture: the name of a registered architecture.
        n_layers: number of layers.
        n_heads: heads per layer.

    Returns:
        The recipe.
    """
    base = fast(architecture, n_layers, n_heads)
    return replace(
        base,
        name="quick",
        steps=round(QUICK_STEPS * base.steps),
        learning_rate=QUICK_RATE * base.learning_rate,
    )


@dataclass(frozen=True)
class GrownSettings:
    """What growing to a length takes: fewer steps and sequences than training from scratch."""

    length: int
    """The longest sequences that these settings are for."""
    steps: int
    """For models that the fast recipe trains for `FAST_STEPS`; others get as many more."""
    batch_size: int
    rate: float
    """The learning rate, as a share of that of the fast recipe."""
    warmup: int = 200


GROWN = (
    GrownSettings(128, steps=4000, batch_size=64, rate=0.5),
    GrownSettings(256, steps=4000, batch_size=32, rate=0.5),
    GrownSettings(512, steps=3000, batch_size=24, rate=0.4),
    GrownSettings(1024, steps=2500, batch_size=16, rate=0.3),
)
LONGEST = GrownSettings(2**31, steps=1500, batch_size=16, rate=0.3, warmup=500)
"""Beyond 1024 the steps are few and slow, so the first ones must not do damage."""


def grown(architecture: str, n_layers: int, n_heads: int, length: int) -> Recipe:
    """The recipe for a model that starts from the weights of a shorter one.

    Args:
        architecture: the name of a registered architecture.
        n_layers: number of layers.
        n_heads: heads per layer.
        length: the length of the model that is trained.

    Returns:
        The recipe; its initialisation is not used.
    """
    base = fast(architecture, n_layers, n_heads)
    settings = next((entry for entry in GROWN if length <= entry.length), LONGEST)
    return replace(
        base,
        name="grown",
        steps=round(settings.steps * base.steps / FAST_STEPS),
        batch_size=settings.batch_size,
        learning_rate=settings.rate * base.learning_rate,
        warmup=settings.warmup,
    )


def recipe_for(
    name: str,
    architecture: str,
    n_layers: int,
    n_heads: int = 1,
    *,
    length: int | None = None,
    **changes: Any,
) -> Recipe:
    """A named recipe with some of its fields changed.

    Args:
        name: one of `RECIPES`.
        architecture: the name of a registered architecture.
        n_layers: number of layers.
        n_heads: heads per layer.
        length: the length of the model, on which "grown" depends.
        changes: fields to change; None keeps the recipe's value.

    Returns:
        The recipe; if a change made a difference, its name says so.
    """
    check_option("recipe", name, RECIPES)
    base = PAPER
    if name in ("fast", "quick"):
        base = (fast if name == "fast" else quick)(architecture, n_layers, n_heads)
    elif name == "grown":
        if length is None:
            raise ValueError("recipe: grown depends on the length; give length=")
        base = grown(architecture, n_layers, n_heads, length)
    given = {key: value for key, value in changes.items() if value is not None}
    changed = replace(base, **given)
    return changed if changed == base else replace(changed, name=f"{name}, changed")
