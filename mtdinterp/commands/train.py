"""`mtdinterp train`: train a model, watch it, and leave a checkpoint that can be loaded and
resumed."""

import argparse
import importlib.util
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtdinterp.checkpoint_files import (
    TRAINING,
    CheckpointError,
    check_new,
    model_name,
    read_config,
    zoo_names,
)
from mtdinterp.commands.flags import (
    Given,
    add_json_flag,
    add_model_flags,
    add_task_flags,
    at_least,
    check_order_below_length,
    not_empty,
    number,
)
from mtdinterp.commands.progress import LiveLine, stages

if TYPE_CHECKING:
    from mtdinterp.training import Trainer
    from mtdinterp.training.run import Run

RECIPE_FLAGS: dict[str, dict[str, Any]] = {
    "steps": {"type": at_least(1), "metavar": "N", "help": "how many steps to train"},
    "batch_size": {"type": at_least(1), "metavar": "N", "help": "sequences a step"},
    "micro_batch_size": {
        "type": at_least(1),
        "metavar": "N",
        "help": "sequences at once, for memory",
    },
    "learning_rate": {
        "type": number(minimum=0, exclusive=True),
        "metavar": "X",
        "help": "Adam's, at its highest",
    },
    "later_rate": {
        "type": number(minimum=0, exclusive=True),
        "metavar": "X",
        "help": "factor for all layers but the first, reached after a tenth of the steps (such as "
        "0.3)",
    },
    "adam_betas": {
        "type": number(minimum=0),
        "nargs": 2,
        "metavar": ("B1", "B2"),
        "help": "decays of Adam's means",
    },
    "schedule": {"choices": ("constant", "cosine"), "help": "of the learning rate"},
    "warmup": {
        "type": at_least(0),
        "metavar": "N",
        "help": "steps over which the learning rate rises",
    },
    "initialisation": {
        "choices": ("tied", "default", "small", "torch", "mirrored"),
        "help": "where to start",
    },
    "targets": {
        "choices": ("expected", "sampled"),
        "help": "the true next distribution, or one draw from it",
    },
    "loss": {
        "choices": ("mse", "cross-entropy"),
        "help": "mean squared error, or cross-entropy of a softmax",
    },
    "supervision": {"choices": ("last", "all"), "help": "positions that have a target"},
    "evaluate_every": {"type": at_least(1), "metavar": "N", "help": "steps between evaluations"},
    "save_every": {"type": at_least(1), "metavar": "N", "help": "steps between saves"},
    "device": {"metavar": "NAME", "help": "as torch names it (cpu)"},
}

ARCHITECTURE_FLAGS = ("d_rel", "d_model")
"""Flags for settings that only some architectures have."""

RECIPES = """\
  fast   Adam (0.9, 0.95) to the true next distribution, batch 64, warm-up, cosine decay,
         tied start. 3 layers: 8000 steps, rate 0.01 (standard: 0.005). 5 layers: 20000 steps,
         rate 0.01, later rate 0.3 times that.
  paper  Adam (0.9, 0.999) to one-hot targets, batch 128, 500000 steps at a constant 0.001,
         small normal start.
  Both: mean squared error at the last position. Starts: tied breaks the mirror symmetry,
  mirrored breaks it the other way, default has uniform attention, small is N(0, 0.02)
  everywhere, torch is as PyTorch's own layers."""
"""Written out, since what knows them is heavy to import; a test compares."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        f"recipes:\n{RECIPES}\n\nexamples:\n  mtdinterp train --order 4 --length 64 --out out/m4\n"
        "  mtdinterp train --architecture standard --recipe fast --seed 1\n"
        "  mtdinterp train --recipe paper --steps 500000 --out out/paper\n"
        "  mtdinterp train --resume out/paper"
    )
    parser.register("action", None, Given)
    add_task_flags(parser)
    add_model_flags(parser)
    parser.add_argument(
        "--heads", type=at_least(1), default=1, metavar="H", help="heads per layer (1)"
    )
    parser.add_argument(
        "--d-rel",
        type=at_least(1),
        metavar="D",
        help="width of the disentangled transformer's value tables (the order)",
    )
    parser.add_argument(
        "--d-model",
        type=at_least(1),
        metavar="D",
        help="width of the standard transformer's stream (32)",
    )
    parser.add_argument(
        "--d-mlp",
        type=at_least(0),
        default=0,
        metavar="D",
        help="width of a hidden layer before the output (0: none)",
    )
    parser.add_argument(
        "--recipe", choices=("fast", "paper"), default="fast", help="the set of choices (fast)"
    )
    group = parser.add_argument_group("parts of the recipe, each instead of what the recipe says")
    for name, settings in RECIPE_FLAGS.items():
        group.add_argument("--" + name.replace("_", "-"), dest=name, **settings)
    parser.add_argument(
        "--out",
        type=not_empty,
        metavar="DIR",
        help="a new or empty directory (out/ and a name such as disentangled-m4-T64)",
    )
    parser.add_argument(
        "--resume",
        type=not_empty,
        metavar="DIR",
        help="go on with the run that is there, with its own settings",
    )
    parser.add_argument(
        "--wandb",
        metavar="PROJECT",
        help="also log to Weights & Biases, offline unless WANDB_MODE says otherwise",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run, given=())


def run(options: argparse.Namespace) -> int:
    _check(options)
    out = Path(
        options.resume
        or options.out
        or Path("out")
        / model_name(
            options.architecture, options.order, options.length, options.layers, options.seed
        )
    ).expanduser()
    _check_directory(out, resume=bool(options.resume))
    with ExitStack() as stack:
        with stages(2) as stage:
            stage("importing")
            run_in_directory = _resume(out) if options.resume else _begin(options, out)
            stage("preparing the held-out set")
            running = stack.enter_context(run_in_directory)
        interrupted = _train(running, options)
    result = {**_summary(running), "interrupted": interrupted is not None}
    print(json.dumps(result, indent=1) if options.json else _table(result))
    if interrupted is not None:
        print(
            f"mtdinterp train: interrupted at step {running.trainer.step}; everything is saved. Go "
            "on with:\n"
            f"  mtdinterp train --resume {shlex.quote(str(running.path))}",
            file=sys.stderr,
        )
        return 128 + interrupted
    return 0


def _check(options: argparse.Namespace) -> None:
    """What can be refused before anything heavy is imported."""
    check_order_below_length(options)
    if options.wandb and importlib.util.find_spec("wandb") is None:
        raise ValueError("--wandb needs the wandb package: pip install wandb")
    given = [name for name in options.given if name not in ("resume", "wandb")]
    if options.resume and given:
        raise ValueError(
            "--resume goes on with the run's own settings; leave out "
            f"--{given[0].replace('_', '-')}"
        )
    for name in ARCHITECTURE_FLAGS:
        if name in given:
            _check_setting(options.architecture, name)


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


def _check_directory(path: Path, resume: bool) -> None:
    """Before anything heavy is imported."""
    if resume:
        if not path.is_dir():
            zoo = "; the zoo's models hold no runs" if path.name in zoo_names() else ""
            raise CheckpointError(f"{path}: no such directory to resume{zoo}")
        if read_config(path).get("recipe") is None or not (path / TRAINING).exists():
            raise CheckpointError(
                f"{path}: this checkpoint holds no run to resume ({TRAINING} is missing)"
            )
        if not os.access(path, os.W_OK):
            raise CheckpointError(
                f"{path}: a run goes on where it was, and this directory cannot be written to"
            )
    else:
        check_new(path, advice="; choose another with --out")
        parent = next(ancestor for ancestor in path.absolute().parents if ancestor.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise CheckpointError(
                f"{path}: cannot be made, {parent} is not a directory that can be written to"
            )


def _begin(options: argparse.Namespace, out: Path) -> AbstractContextManager["Run"]:
    from mtdinterp import MTDTask
    from mtdinterp.registry import ARCHITECTURES
    from mtdinterp.training import recipe_for
    from mtdinterp.training.run import new_run

    task = MTDTask.random(options.vocab_size, options.order, seed=options.task_seed)
    changes = {name: getattr(options, name) for name in RECIPE_FLAGS}
    changes["adam_betas"] = tuple(options.adam_betas) if options.adam_betas else None
    recipe = recipe_for(
        options.recipe, options.architecture, options.layers, options.heads, **changes
    )
    model = ARCHITECTURES[options.architecture].new_model(
        options.vocab_size,
        options.length,
        options.layers,
        options.heads,
        n_components=options.order,
        d_mlp=options.d_mlp,
        logits=recipe.loss == "cross-entropy",
        **{name: getattr(options, name) for name in ARCHITECTURE_FLAGS},
    )
    return new_run(out, model, task, recipe, {"task": options.task_seed, "model": options.seed})


def _resume(path: Path) -> AbstractContextManager["Run"]:
    from mtdinterp.training.run import resumed_run

    return resumed_run(path)


def _train(running: "Run", options: argparse.Namespace) -> int | None:
    """Train to the end or to a signal that asks to stop, saving on the way; the signal."""
    trainer = running.trainer
    if trainer.finished:
        running.save_evaluation()  # from the state, should these files be damaged
        print(f"mtdinterp train: {running.path} is finished already", file=sys.stderr)
        return None
    line = LiveLine(trainer.recipe.steps)
    stop: list[int] = []
    with _on_interrupt(stop), _logging(options, running) as log:

        def after_evaluation(trainer: "Trainer") -> None:
            line.evaluated(trainer.step, live_evaluation(trainer.history[-1]))
            log(trainer.history[-1])

        def after_step(trainer: "Trainer") -> bool:
            if not stop:
                line.stepped(trainer.step)
            return not stop

        try:
            line.started(
                trainer.step, live_evaluation(trainer.history[-1]) if trainer.history else ""
            )
            running.train(after_step, after_evaluation)
        finally:
            line.close()
    return stop[0] if stop and not trainer.finished else None


@contextmanager
def _on_interrupt(stop: list[int]) -> Iterator[None]:
    """Ctrl-C, being asked to terminate, or losing the terminal ends the run after the step it is
    in; a second time ends it at once. Signals that somebody chose to ignore (nohup) stay so."""
    terminals = [
        stream.fileno() for stream in (sys.__stdout__, sys.__stderr__) if stream and stream.isatty()
    ]

    def handle(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:  # writing to a terminal that is gone is an error
            with open(os.devnull, "wb") as nowhere:
                for terminal in terminals:
                    os.dup2(nowhere.fileno(), terminal)
        if (
            stop and number != signal.SIGHUP
        ):  # a shell and the system may both tell of one lost terminal
            raise KeyboardInterrupt
        stop.append(number)

    signals = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    try:
        before = [signal.signal(number, handle) for number in signals]
    except ValueError:  # not the main thread, where signals do not arrive
        yield
        return
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _logging(options: argparse.Namespace, running: "Run") -> AbstractContextManager[Any]:
    from mtdinterp.training.tracking import tracker

    trainer = running.trainer
    return tracker(
        options.wandb,
        running.path.name,
        {
            "recipe": trainer.recipe.to_dict(),
            "model": trainer.model.config.to_dict(),
            "seed": trainer.seed,
            "order": trainer.task.order,
        },
    )


def live_evaluation(entry: dict[str, Any]) -> str:
    """One evaluation where there is little room."""
    loss = "" if entry["loss"] is None else f"loss {entry['loss']:.5f} "
    return (
        f"{loss}KL {entry['kl']:.5f} {entry['ratio']:.3f}×MD β {_number(entry['beta'])} "
        f"{entry['branch']}"
    )


def _number(value: float | None, digits: int = 1) -> str:
    """A reading may be missing."""
    return "—" if value is None else f"{value:.{digits}f}"


def _summary(running: "Run") -> dict[str, Any]:
    trainer = running.trainer
    last = trainer.history[-1]
    return {
        "checkpoint": str(running.path),
        "step": trainer.step,
        "steps": trainer.recipe.steps,
        "evaluated_at": last["step"],
        "seconds": trainer.seconds,
        "attention_path": trainer.model.attention_path(training=True).name,
        **{
            key: last[key]
            for key in ("kl", "kl_stderr", "ratio", "beta", "beta_r2", "gain", "gain_r2", "branch")
        },
        "optimal_beta": trainer.held_out.beta,
        "kl_of_estimators": trainer.held_out.kl,
    }


def _table(result: dict[str, Any]) -> str:
    names = {
        "uniform": "uniform weights",
        "one_step": "one-step MD (tuned)",
        "two_step": "two-step MD (tuned)",
        "exact_bayes": "exact posterior mean",
    }
    gain = (
        ""
        if result["gain"] is None
        else f" (gain {result['gain']:.2f}, R² {_number(result['gain_r2'], 2)})"
    )
    rows = [
        ("this model", result["kl"]),
        *((names[key], kl) for key, kl in result["kl_of_estimators"].items()),
    ]
    lines = [
        f"step {result['step']} of {result['steps']}, {result['seconds']:.1f} s of training",
        f"KL(truth ‖ prediction) on held-out sequences at step {result['evaluated_at']}, standard "
        "error "
        f"{result['kl_stderr']:.1g}:",
    ]
    lines += [f"  {name:<22} {kl:.5f}" for name, kl in rows]
    lines += [
        f"ratio to one-step MD     {result['ratio']:.3f}",
        f"β of the last layer      {_number(result['beta'])} (R² {_number(result['beta_r2'], 2)}; "
        f"optimum {result['optimal_beta']:.1f})",
        f"branch                   {result['branch']}{gain}",
        f"checkpoint               {result['checkpoint']}",
    ]
    return "\n".join(lines)
