"""The flags that describe a task, and the one place that makes a task from them.

A command adds the flags (`add_task_flags`), settles them before anything heavy is imported
(`settle_task_flags`), and then makes the task (`make_task`).
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mtdinterp.commands.flags import (
    DEFAULT_TASK,
    add_task_kind_flag,
    at_least,
    not_empty,
    number,
)
from mtdinterp.formatting import counted

if TYPE_CHECKING:
    from mtdinterp.tasks import Task

VOCAB_SIZE = 5
ORDER = 4
TASK_SEED = 0
"""Defaults for what neither a flag nor a file sets."""


def add_task_flags(parser: argparse.ArgumentParser, length: int = 64) -> None:
    """Add the flags that describe a task, random or from a file, and the seed.

    Args:
        parser: the parser to add them to.
        length: the default context length.
    """
    add_task_kind_flag(parser)
    # No defaults here: `settle_task_flags` must know what was given.
    parser.add_argument(
        "--vocab-size",
        type=at_least(2),
        metavar="Q",
        help=f"vocabulary size (default: {VOCAB_SIZE})",
    )
    # With a single lag there are no weights to infer.
    parser.add_argument(
        "--order", type=at_least(2), metavar="M", help=f"number of lags (default: {ORDER})"
    )
    parser.add_argument(
        "--length",
        type=at_least(2),
        default=length,
        metavar="T",
        help=f"context length (default: {length})",
    )
    parser.add_argument(
        "--transition",
        type=not_empty,
        metavar="FILE",
        help="read the transition probabilities from a CSV, NPY or JSON file (default: random); "
        "row a is the distribution of the next token after token a",
    )
    parser.add_argument(
        "--normalise",
        action="store_true",
        help="divide each row of --transition by its sum, for files with rounded entries",
    )
    parser.add_argument(
        "--concentration",
        type=number(minimum=0, exclusive=True),
        nargs="+",
        default=[1.0],
        metavar="X",
        help="concentration of the Dirichlet prior over the mixture weights: one number, or one "
        "per lag (default: 1)",
    )
    parser.add_argument(
        "--task-seed",
        type=at_least(0),
        metavar="N",
        help=f"seed of random transition probabilities (default: {TASK_SEED})",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of everything else (default: 0)",
    )


def settle_task_flags(options: argparse.Namespace) -> None:
    """Read the file of --transition, fill in defaults, and refuse flags that contradict each other.

    Afterwards `options.vocab_size` and `options.order` are those of the task, `options.task_seed`
    is None if nothing about the task is random, and `options.matrices` is the contents of the file
    (None without one).

    Args:
        options: the options of a parser with `add_task_flags`; changed in place.

    Raises:
        ValueError: with one sentence that says which flag to change.
    """
    options.matrices = None
    if options.transition is None:
        _settle_random(options)
    else:
        _settle_from_file(options)
    if options.order >= options.length:
        raise ValueError(
            f"--order must be less than --length {options.length}, got {options.order}"
        )
    n_given = len(options.concentration)
    if n_given not in (1, options.order):
        raise ValueError(
            f"--concentration: expected one number, or one per lag ({options.order}); got {n_given}"
        )


def _settle_random(options: argparse.Namespace) -> None:
    if options.normalise:
        raise ValueError(
            "--normalise applies only with --transition FILE; leave it out, or give a file"
        )
    options.vocab_size = options.vocab_size or VOCAB_SIZE
    options.order = options.order or ORDER
    if options.task_seed is None:
        options.task_seed = TASK_SEED


def _settle_from_file(options: argparse.Namespace) -> None:
    from mtdinterp.matrix_files import read_transition

    if options.task_seed is not None:
        raise ValueError(
            "--task-seed draws random transition probabilities; leave it out with --transition"
        )
    path = options.transition
    matrices = read_transition(path, options.normalise)
    vocab_size = matrices.shape[-1]
    if options.vocab_size not in (None, vocab_size):
        raise ValueError(
            f"--vocab-size {options.vocab_size}: {path} has {vocab_size} tokens; leave out "
            "--vocab-size"
        )
    options.vocab_size = vocab_size
    options.matrices = matrices
    if matrices.ndim == 2:
        options.order = options.order or ORDER
        return
    n_lags = len(matrices)
    if n_lags < 2:
        raise ValueError(
            f"{path}: expected matrices for at least 2 lags, got 1; with a single lag there are no "
            "weights to infer"
        )
    if options.order not in (None, n_lags):
        raise ValueError(
            f"--order {options.order}: {path} has {counted(n_lags, 'lag')}; leave out --order"
        )
    options.order = n_lags


def make_task(options: argparse.Namespace) -> "Task":
    """The task that settled options describe; one of a plugin is checked first.

    Raises:
        PluginFailed: if the task comes from a plugin and does not work.
    """
    from mtdinterp.providers import failures_named
    from mtdinterp.registry import TASKS
    from mtdinterp.tasks.checking import check_task

    provider = TASKS.provider(options.task)
    with failures_named("task", options.task, provider):
        task = _make(options)
        if provider is not None:
            check_task(task, options.length)
    return task


def _make(options: argparse.Namespace) -> "Task":
    from mtdinterp.registry import TASKS

    kind = TASKS[options.task]
    several = len(options.concentration) > 1
    concentration = options.concentration if several else options.concentration[0]
    if options.matrices is None:
        return kind.random(options.vocab_size, options.order, options.task_seed, concentration)
    return kind.from_transition(options.matrices, options.order, concentration)


def task_seeds(options: argparse.Namespace) -> dict[str, int]:
    """The seed of the task for a checkpoint; none if its probabilities came from a file."""
    return {} if options.task_seed is None else {"task": options.task_seed}


def describe_source(options: argparse.Namespace) -> str:
    """Where the transition probabilities came from, in a few words."""
    if options.transition is None:
        return f"task seed {options.task_seed}"
    return f"transition probabilities from {options.transition}"


def named_after_task(name: str, options: argparse.Namespace) -> str:
    """A model's name, extended by everything that sets its task apart from the default one.

    Args:
        name: the model's name.
        options: settled options.

    Returns:
        A name for a directory: the task and the file's name come first, the prior last.
    """
    parts = [name]
    if options.transition is not None:
        stem = Path(options.transition).stem
        kept = "".join(mark if mark.isalnum() or mark in "._-" else "-" for mark in stem)
        parts.insert(0, kept.strip(".-") or "own")
    if options.task != DEFAULT_TASK:
        parts.insert(0, options.task)
    if options.task_seed:  # None with a file, and 0 by default
        parts.append(f"task{options.task_seed}")
    if options.concentration != [1.0]:
        values = [f"{value:g}" for value in options.concentration]
        parts.append("a" + "-".join(values))
    return "-".join(parts)
