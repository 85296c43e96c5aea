"""`mtdinterp train --restarts N`: other seeds, if a model did not learn the task well."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtdinterp.checkpoint_files import check_new
from mtdinterp.storage import publish, remove_tree

Result = dict[str, Any]
TrainOne = Callable[[argparse.Namespace, Path], tuple[Result, int | None]]


def restarted(
    options: argparse.Namespace, out: Path, first: Result, train: TrainOne
) -> tuple[Result, int | None]:
    """Train with the seeds that follow until a model is good, and keep the best in `out`.

    Args:
        options: the options of `mtdinterp train`; the number of restarts is the most that is tried.
        out: the directory of the first model, which the best one gets in the end.
        first: what the first model reached.
        train: trains one model, with the seed of its options.

    Returns:
        What the best model reached, with the seed of every model and its ratio in "tries"; and the
        signal that stopped the last one, or None. If a signal came, the result is that of the model
        that was stopped.
    """
    best = first
    seed = options.seed
    tries = [_try(seed, first)]
    for number in range(1, options.restarts + 1):
        if best["warning"] is None:
            break
        seed = options.seed + number
        print(
            f"mtdinterp train: seed {seed - 1} did not learn the task well; trying seed {seed} "
            f"(restart {number} of {options.restarts})",
            file=sys.stderr,
        )
        trial = out.with_name(f"{out.name}-seed-{seed}")
        check_new(trial, advice="; remove it, or choose another --out")
        result, interrupted = train(argparse.Namespace(**{**vars(options), "seed": seed}), trial)
        tries.append(_try(seed, result))
        if interrupted is not None:
            return {**result, "tries": tries}, interrupted
        if _badness(result) < _badness(best):
            best = {**result, "checkpoint": str(out)}
            publish(trial, out)
        remove_tree(trial)  # the worse one, if the two were exchanged
    return {**best, "tries": tries}, None


def _try(seed: int, result: Result) -> dict[str, Any]:
    return {"seed": seed, "ratio": result["ratio"], "branch": result["branch"]}


def _badness(result: Result) -> tuple[bool, float]:
    """What to minimise: first whether anything is wrong with the model, then its KL."""
    return result["warning"] is not None, result["kl"]
