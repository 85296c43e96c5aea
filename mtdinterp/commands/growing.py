"""`mtdinterp train --grow-from`: a longer model that starts from the weights of a checkpoint.

The task and the model come from the checkpoint. Flags that describe them may be repeated, but must
agree with it.
"""

import argparse
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mtdinterp.checkpoint_files import CheckpointError, find_checkpoint, read_config
from mtdinterp.commands.train_flags import RECIPE_FLAGS, recipe_changes

if TYPE_CHECKING:
    from mtdinterp.checkpoints import Checkpoint
    from mtdinterp.models import LensTransformer
    from mtdinterp.tasks import Task
    from mtdinterp.training import Recipe

OWN_FLAGS = ("length", "seed", "recipe", "grow_from", *RECIPE_FLAGS)
"""Flags that describe the new run."""
REPEATED_FLAGS = (
    "order",
    "vocab_size",
    "architecture",
    "layers",
    "heads",
    "d_rel",
    "d_model",
    "d_mlp",
    "task_seed",
)
"""Flags that may repeat what the checkpoint says."""


@dataclass(frozen=True, eq=False)
class GrownTraining:
    """What a run of a grown model is made of."""

    task: "Task"
    model: "LensTransformer"
    """The model with the weights that it starts from."""
    recipe: "Recipe"
    seeds: dict[str, int]
    parent: dict[str, Any]
    """Where the weights come from, as the checkpoint records it."""


def check_growth(options: argparse.Namespace) -> None:
    """Check the flags that can be checked without loading the model.

    Args:
        options: the options of `mtdinterp train` with --grow-from.

    Raises:
        ValueError: with one sentence that says which flag to change.
    """
    own = {*OWN_FLAGS, *REPEATED_FLAGS, "out", "restarts", "wandb"}
    for name in options.given:
        if name not in own:
            raise ValueError(
                f"--grow-from takes the task and the model from the checkpoint; leave out "
                f"--{name.replace('_', '-')}"
            )
    if options.settings:
        raise ValueError("--grow-from takes the model from the checkpoint; leave out --setting")
    if options.initialisation is not None:
        raise ValueError(
            "--grow-from starts from the checkpoint's weights; leave out --initialisation"
        )
    source = find_checkpoint(options.grow_from).resolve()
    before = read_config(source).get("model", {}).get("length")
    if "length" not in options.given:
        raise ValueError(f"--grow-from needs the new --length; {source.name} has {before}")
    if isinstance(before, int) and options.length <= before:
        raise ValueError(
            f"--length: a model of length {before} can only become longer, got {options.length}"
        )


def name_of_grown(options: argparse.Namespace) -> str:
    """The checkpoint's name with the new length, and the seed of the new run unless it is 0."""
    name = find_checkpoint(options.grow_from).resolve().name
    named, found = re.subn(r"(?<=-T)\d+", str(options.length), name, count=1)
    named = named if found else f"{name}-T{options.length}"
    return f"{named}-seed{options.seed}" if options.seed else named


def make_grown(options: argparse.Namespace) -> GrownTraining:
    """The run that checked options describe.

    Raises:
        CheckpointError: if the checkpoint is another model than the flags say.
    """
    from mtdinterp import load_checkpoint
    from mtdinterp.checkpoints.save import parent_of
    from mtdinterp.training import grow, recipe_for

    checkpoint = load_checkpoint(options.grow_from)
    _check_repeated(options, checkpoint)
    config = checkpoint.model.config
    most_heads = max(config.n_heads) if isinstance(config.n_heads, tuple) else config.n_heads
    recipe = recipe_for(
        options.recipe if "recipe" in options.given else "grown",
        config.architecture,
        config.n_layers,
        most_heads,
        length=options.length,
        **recipe_changes(options),
    )
    task_seed = checkpoint.config.get("seeds", {}).get("task")
    seeds = {} if task_seed is None else {"task": task_seed}
    return GrownTraining(
        checkpoint.task,
        grow(checkpoint.model, options.length, checkpoint.task.n_components),
        recipe,
        {**seeds, "model": options.seed},
        parent_of(checkpoint.path.resolve().name, checkpoint.model),
    )


def _check_repeated(options: argparse.Namespace, checkpoint: "Checkpoint") -> None:
    """Refuse flags that contradict the checkpoint."""
    values: dict[str, Any] = {
        **checkpoint.model.config.to_dict(),
        "order": checkpoint.task.n_components,
        "layers": checkpoint.model.config.n_layers,
        "heads": checkpoint.model.config.n_heads,
        "task_seed": checkpoint.config.get("seeds", {}).get("task"),
    }
    source = checkpoint.path.resolve().name
    for name in REPEATED_FLAGS:
        if name in options.given and getattr(options, name) != values.get(name):
            flag = name.replace("_", "-")
            raise CheckpointError(
                f"--{flag} {getattr(options, name)}: {source} has {values.get(name, 'none')}, and "
                f"growing changes only the length; leave out --{flag}"
            )
