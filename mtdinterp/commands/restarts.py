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


def trial_of(out: Path, seed: int) -> Path:
    """The directory in which another seed is tried."""
    return out.with_name(f"{out.name}-seed-{seed}")


def check_trials(options: argparse.Namespace, out: Path) -> None:
    """Refuse before any training if a directory of a trial is taken.

    An interrupted restart leaves such a directory, which can be resumed.
    """
    for number in range(1, options.restarts + 1):
        check_new(
            trial_of(out, options.seed + number),
            advice=" for a restart; remove it, or choose another --out",
        )


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
        The result of the best model, or of the interrupted one after a signal, with the seed and
        the ratio of every model in "tries"; and the signal, or None.
    """
    from mtdinterp.training import DivergedError

    best = first
    best_seed = seed = options.seed
    tries = [_try(seed, first)]
    for number in range(1, options.restarts + 1):
        if best["warning"] is None:
            break
        seed = options.seed + number
        _say(
            f"seed {seed - 1} did not learn the task well; trying seed {seed} "
            f"(restart {number} of {options.restarts})"
        )
        trial = trial_of(out, seed)
        try:
            settings = argparse.Namespace(**{**vars(options), "seed": seed})
            result, interrupted = train(settings, trial)
        except DivergedError as error:
            _say(f"seed {seed} diverged: {error}")
            tries.append({"seed": seed, "ratio": None, "branch": None})
            remove_tree(trial)
            continue
        tries.append(_try(seed, result))
        if interrupted is not None:
            _say(f"the best model so far (seed {best_seed}) is in {out}")
            return {**result, "tries": tries}, interrupted
        if _badness(result) < _badness(best):
            best, best_seed = {**result, "checkpoint": str(out)}, seed
            publish(trial, out)
        remove_tree(trial)  # the worse one, if the two were exchanged
    return {**best, "tries": tries}, None


def _try(seed: int, result: Result) -> dict[str, Any]:
    return {"seed": seed, "ratio": result["ratio"], "branch": result["branch"]}


def _badness(result: Result) -> tuple[bool, float]:
    """What to minimise: first whether anything is wrong with the model, then its KL."""
    return result["warning"] is not None, result["kl"]


def _say(sentence: str) -> None:
    print(f"mtdinterp train: {sentence}", file=sys.stderr)
