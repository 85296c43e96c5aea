"""The flags that describe one training run, and the one place that makes a run from them.

`mtdinterp train` and the grids of sweeps have the same settings: both add the flags
(`add_setting_flags`), check them before anything heavy is imported (`check_settings`), and then
make the task, the model and the recipe (`make_training`).
"""

import argparse
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtdinterp import catalogue
from mtdinterp.commands.flags import Given, add_model_flags, at_least, number
from mtdinterp.commands.task_flags import add_task_flags, make_task, settle_task_flags, task_seeds

if TYPE_CHECKING:
    from mtdinterp.models import LensTransformer
    from mtdinterp.tasks import Task
    from mtdinterp.training import Recipe

RECIPE_FLAGS: dict[str, dict[str, Any]] = {
    "steps": {"type": at_least(1), "metavar": "N", "help": "training steps"},
    "batch_size": {"type": at_least(1), "metavar": "N", "help": "sequences per step"},
    "micro_batch_size": {
        "type": at_least(1),
        "metavar": "N",
        "help": "sequences per forward pass, to save memory",
    },
    "learning_rate": {
        "type": number(minimum=0, exclusive=True),
        "metavar": "X",
        "help": "peak Adam learning rate",
    },
    "later_rate": {
        "type": number(minimum=0, exclusive=True),
        "metavar": "X",
        "help": "factor, such as 0.3, on the learning rate of all layers but the first; it is "
        "reached after a tenth of the steps",
    },
    "adam_betas": {
        "type": number(minimum=0),
        "nargs": 2,
        "metavar": ("B1", "B2"),
        "help": "decay rates of Adam's running averages",
    },
    "schedule": {
        "choices": ("constant", "cosine"),
        "help": "learning-rate schedule after the warm-up",
    },
    "warmup": {
        "type": at_least(0),
        "metavar": "N",
        "help": "steps over which the learning rate rises from zero",
    },
    "initialisation": {
        "metavar": "NAME",
        "help": "initialisation of the weights: tied, default, small, torch, mirrored, or one that "
        "your own architecture defines",
    },
    "targets": {
        "choices": ("expected", "sampled"),
        "help": "train on the true next-token distribution, or on one token drawn from it",
    },
    "loss": {
        "choices": ("mse", "cross-entropy"),
        "help": "mean squared error of the outputs, or cross-entropy of their softmax",
    },
    "supervision": {
        "choices": ("last", "all"),
        "help": "train on the last position, or on all positions",
    },
    "evaluate_every": {"type": at_least(1), "metavar": "N", "help": "steps between evaluations"},
    "save_every": {"type": at_least(1), "metavar": "N", "help": "steps between saves"},
    "snapshots": {
        "type": at_least(0),
        "metavar": "N",
        "help": "keep the weights at N logarithmically spaced steps and at step 0, for reports and "
        "trace_development (default: 0)",
    },
    "device": {"metavar": "NAME", "help": "torch device (default: cpu)"},
}

STARTS = ("tied", "default", "small", "torch", "mirrored")
"""Initialisations of the built-in architectures, listed here so that errors are instant."""
ARCHITECTURE_FLAGS = ("d_rel", "d_model")
"""Flags for settings that only some architectures have."""
COMMON_SETTINGS = {
    "vocab_size": "--vocab-size",
    "length": "--length",
    "n_layers": "--layers",
    "n_heads": "--heads",
    "n_components": "--order",
    "d_mlp": "--d-mlp",
    "logits": "--loss",
}
"""Settings that every architecture has, with the flag of each."""


@dataclass(frozen=True, eq=False)
class Training:
    """What a run is made of."""

    task: "Task"
    model: "LensTransformer"
    """The model before its initialisation."""
    recipe: "Recipe"
    seeds: dict[str, int]
    """The seeds of task and model, as a checkpoint stores them."""


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """Add every flag that decides what is trained and how; `given` records those that were used."""
    parser.register("action", None, Given)
    add_task_flags(parser)
    add_model_flags(parser)
    parser.add_argument(
        "--heads", type=at_least(1), default=1, metavar="H", help="heads per layer (default: 1)"
    )
    parser.add_argument(
        "--d-rel",
        type=at_least(1),
        metavar="D",
        help="width of the disentangled transformer's value tables (default: the order)",
    )
    parser.add_argument(
        "--d-model",
        type=at_least(1),
        metavar="D",
        help="width of the standard transformer's stream (default: 32)",
    )
    parser.add_argument(
        "--d-mlp",
        type=at_least(0),
        default=0,
        metavar="D",
        help="width of a hidden layer before the output (default: 0, no hidden layer)",
    )
    parser.add_argument(
        "--setting",
        action="append",
        type=_setting,
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="any other setting of the architecture, for example of one in a plugin; may be given "
        "several times",
    )
    parser.add_argument(
        "--recipe",
        choices=("fast", "quick", "grown", "paper"),
        default="fast",
        help="training recipe, described below (default: fast; with --grow-from: grown)",
    )
    group = parser.add_argument_group("override individual recipe settings")
    for name, settings in RECIPE_FLAGS.items():
        group.add_argument("--" + name.replace("_", "-"), dest=name, **settings)
    parser.set_defaults(given=())


def check_settings(options: argparse.Namespace) -> None:
    """Settle the task, and refuse settings that contradict each other.

    Args:
        options: the options of a parser with `add_setting_flags`; changed in place.

    Raises:
        ValueError: with one sentence that says which flag to change.
    """
    settle_task_flags(options)
    for name in ARCHITECTURE_FLAGS:
        if name in options.given:
            _check_setting(options.architecture, name)
    own = catalogue.built_in(*catalogue.SOURCES["architecture"])
    start = options.initialisation
    if start is not None and options.architecture in own and start not in STARTS:
        raise ValueError(f"--initialisation: expected one of {', '.join(STARTS)}; got {start!r}")


def make_training(options: argparse.Namespace) -> Training:
    """The task, the model and the recipe that checked options describe."""
    from mtdinterp.registry import ARCHITECTURES
    from mtdinterp.training import recipe_for

    task = make_task(options)
    recipe = recipe_for(
        options.recipe,
        options.architecture,
        options.layers,
        options.heads,
        length=options.length,
        **recipe_changes(options),
    )
    model = ARCHITECTURES[options.architecture].new_model(
        task.vocab_size,
        options.length,
        options.layers,
        options.heads,
        n_components=task.n_components,
        d_mlp=options.d_mlp,
        logits=recipe.loss == "cross-entropy",
        **({name: getattr(options, name) for name in ARCHITECTURE_FLAGS} | dict(options.settings)),
    )
    return Training(task, model, recipe, {**task_seeds(options), "model": options.seed})


def recipe_changes(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of the recipe that flags change; None where they do not."""
    changes = {name: getattr(options, name) for name in RECIPE_FLAGS}
    changes["adam_betas"] = tuple(options.adam_betas) if options.adam_betas else None
    return changes


def _setting(text: str) -> tuple[str, Any]:
    """An argparse type: NAME=VALUE, with a number, true, false or a text as the value."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    if name in COMMON_SETTINGS:
        raise argparse.ArgumentTypeError(f"{name} has a flag of its own: {COMMON_SETTINGS[name]}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _check_setting(architecture: str, name: str) -> None:
    """Refuse a flag for a setting that the chosen architecture does not have."""
    from mtdinterp.registry import ARCHITECTURES

    chosen = ARCHITECTURES[architecture]
    if name not in chosen.settings:
        owners = [known.label for known in ARCHITECTURES.values() if name in known.settings]
        raise ValueError(
            f"--{name.replace('_', '-')} is a width of the {', '.join(owners)}, not of the "
            f"{chosen.label}"
        )
