"""`mtdinterp train`: train a model and save a checkpoint that can be loaded and resumed."""

import argparse
import importlib.util
import json
import os
import shlex
import sys
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtdinterp.bounded_files import expanded
from mtdinterp.checkpoint_files import (
    TRAINING,
    CheckpointError,
    check_new,
    model_name,
    read_config,
    zoo_names,
)
from mtdinterp.commands.flags import add_json_flag, at_least, not_empty, plugin_words
from mtdinterp.commands.growing import check_growth, make_grown, name_of_grown
from mtdinterp.commands.interrupts import recording_stop_signals
from mtdinterp.commands.progress import LiveLine, stages
from mtdinterp.commands.restarts import check_trials, restarted
from mtdinterp.commands.task_flags import named_after_task
from mtdinterp.commands.train_flags import add_setting_flags, check_settings, make_training
from mtdinterp.commands.train_summary import live_evaluation, run_summary, summary_table

if TYPE_CHECKING:
    from mtdinterp.training import Trainer
    from mtdinterp.training.run import Run

RECIPES = """\
  fast   Adam (0.9, 0.95), true next-token distributions as targets, batch 64, warm-up,
         cosine decay, tied initialisation. 3 layers: 8000 steps, learning rate 0.01
         (standard: 0.005). 5 layers: 20000 steps, learning rate 0.01, later rate 0.3.
  quick  like fast, with 2500 steps at a learning rate of 0.02 for 3 layers: a model for
         a first look, in a few seconds.
  grown  continues with the weights of a shorter model (--grow-from): like fast, with fewer
         steps and sequences, and a lower learning rate, the longer the sequences are.
  paper  Adam (0.9, 0.999), one-hot targets, batch 128, 500000 steps at a constant
         learning rate of 0.001, small initialisation.
  All use the mean squared error at the last position.

initialisations:
  tied      breaks the mirror symmetry
  mirrored  breaks it the other way
  default   uniform attention
  small     N(0, 0.02) everywhere
  torch     PyTorch's defaults"""
"""Written out because the recipes are expensive to import; a test compares the two."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.epilog = (
        f"recipes:\n{RECIPES}\n\nexamples:\n  mtdinterp train --order 4 --length 64 --out out/m4\n"
        "  mtdinterp train --architecture standard --recipe fast --seed 1\n"
        "  mtdinterp train --task lag-specific --order 3 --length 32\n"
        "  mtdinterp train --transition pi.csv --normalise --order 2 --concentration 0.5\n"
        "  mtdinterp train --recipe paper --steps 500000 --out out/paper\n"
        "  mtdinterp train --grow-from disentangled-m4-T64 --length 128 --out out/longer\n"
        "  mtdinterp train --recipe quick --restarts 3\n"
        "  mtdinterp train --resume out/paper"
    )
    add_setting_flags(parser)
    parser.add_argument(
        "--out",
        type=not_empty,
        metavar="DIR",
        help="new or empty directory for the checkpoint (default: named after the model, such as "
        "out/disentangled-m4-T64)",
    )
    parser.add_argument(
        "--resume",
        type=not_empty,
        metavar="DIR",
        help="resume the run in this directory with its own settings",
    )
    parser.add_argument(
        "--grow-from",
        type=not_empty,
        metavar="CHECKPOINT",
        help="start from the weights of a shorter model, a directory or a name from mtdinterp zoo; "
        "give the new --length",
    )
    parser.add_argument(
        "--restarts",
        type=at_least(0),
        default=0,
        metavar="N",
        help="if the model does not learn the task well, try up to N other seeds and keep the best",
    )
    parser.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="also log to Weights & Biases, offline unless WANDB_MODE is set",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, or resume a run, and print what it reached; returns the exit code."""
    _check(options)
    out = _directory(options)
    _check_directory(out, resume=bool(options.resume))
    check_trials(options, out)
    result, interrupted = _train_one(options, out)
    if interrupted is None and options.restarts:
        result, interrupted = restarted(options, out, result, _train_one)
    print(json.dumps(result, indent=1) if options.json else summary_table(result))
    if result["warning"]:
        sys.stdout.flush()  # so the warning comes last if both streams go to the same place
        print(f"mtdinterp train: warning: {result['warning']}", file=sys.stderr)
    if interrupted is None:
        return 0
    again = ["mtdinterp", "train", "--resume", result["checkpoint"], *plugin_words(options)]
    print(
        f"mtdinterp train: interrupted at step {result['step']}; everything is saved. Resume "
        f"with:\n  {shlex.join(again)}",
        file=sys.stderr,
    )
    return 128 + interrupted


def _train_one(options: argparse.Namespace, out: Path) -> tuple[dict[str, Any], int | None]:
    """Train one model to the end or until a signal asks to stop.

    Returns:
        What it reached, and that signal, or None.
    """
    with ExitStack() as stack:
        with stages(2) as stage:
            stage("importing")
            run_in_directory = _resume(out) if options.resume else _begin(options, out)
            stage("preparing the held-out set")
            running = stack.enter_context(run_in_directory)
        interrupted = _train(running, options)
    return {**run_summary(running), "interrupted": interrupted is not None}, interrupted


def _directory(options: argparse.Namespace) -> Path:
    """Where the run is or will be; by default a directory named after the model and the task."""
    given = options.resume or options.out
    if given:
        return expanded(given)
    if options.grow_from:
        return Path("out") / name_of_grown(options)
    name = model_name(
        options.architecture, options.order, options.length, options.layers, options.seed
    )
    return Path("out") / named_after_task(name, options)


def _check(options: argparse.Namespace) -> None:
    """Refuse what can be refused before anything heavy is imported."""
    if options.wandb and importlib.util.find_spec("wandb") is None:
        raise ValueError("--wandb needs the wandb package: pip install wandb")
    given = [name for name in options.given if name not in ("resume", "wandb")]
    if options.resume and given:
        raise ValueError(
            f"--resume uses the run's own settings; leave out --{given[0].replace('_', '-')}"
        )
    if options.resume and options.settings:
        raise ValueError("--resume uses the run's own settings; leave out --setting")
    if options.grow_from and not options.resume:
        check_growth(options)
    elif options.recipe == "grown":
        raise ValueError("--recipe grown starts from a shorter model; give it with --grow-from")
    check_settings(options)


def _check_directory(path: Path, resume: bool) -> None:
    """Refuse a directory that cannot be resumed, or cannot hold a new run."""
    if resume:
        if not path.is_dir():
            zoo = "; zoo models cannot be resumed" if path.name in zoo_names() else ""
            raise CheckpointError(f"{path}: no such directory to resume{zoo}")
        if read_config(path).get("recipe") is None or not (path / TRAINING).exists():
            raise CheckpointError(
                f"{path}: this checkpoint has no run to resume ({TRAINING} is missing)"
            )
        if not os.access(path, os.W_OK):
            raise CheckpointError(
                f"{path}: a run is resumed in its own directory, but this one is not writable"
            )
    else:
        check_new(path, advice="; choose another with --out")
        parent = next(ancestor for ancestor in path.absolute().parents if ancestor.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise CheckpointError(
                f"{path}: cannot be created because {parent} is not a writable directory"
            )


def _begin(options: argparse.Namespace, out: Path) -> AbstractContextManager["Run"]:
    from mtdinterp.training.run import new_run

    if options.grow_from:
        grown = make_grown(options)
        return new_run(out, grown.model, grown.task, grown.recipe, grown.seeds, parent=grown.parent)
    made = make_training(options)
    return new_run(out, made.model, made.task, made.recipe, made.seeds)


def _resume(path: Path) -> AbstractContextManager["Run"]:
    from mtdinterp.training.run import resumed_run

    return resumed_run(path)


def _train(running: "Run", options: argparse.Namespace) -> int | None:
    """Train to the end or until a signal asks to stop; returns that signal, or None."""
    trainer = running.trainer
    if trainer.finished:
        running.save_evaluation()  # repairs these files from the state if they are damaged
        print(f"mtdinterp train: {running.path} is already finished", file=sys.stderr)
        return None
    line = LiveLine(trainer.recipe.steps)
    stop: list[int] = []

    def after_evaluation(trainer: "Trainer") -> None:
        line.evaluated(trainer.step, live_evaluation(trainer.history[-1]))
        log(trainer.history[-1])

    def after_step(trainer: "Trainer") -> bool:
        if not stop:
            line.stepped(trainer.step)
        return not stop

    latest = live_evaluation(trainer.history[-1]) if trainer.history else ""
    with recording_stop_signals(stop), _logging(options, running) as log:
        try:
            line.started(trainer.step, latest)
            running.train(after_step, after_evaluation)
        finally:
            line.close()
    return stop[0] if stop and not trainer.finished else None


def _logging(options: argparse.Namespace, running: "Run") -> AbstractContextManager[Any]:
    from mtdinterp.training.tracking import tracker

    trainer = running.trainer
    settings = {
        "recipe": trainer.recipe.to_dict(),
        "model": trainer.model.config.to_dict(),
        "seed": trainer.seed,
        "task": trainer.task.name,
        "order": trainer.task.n_components,
    }
    return tracker(options.wandb, running.path.name, settings)
