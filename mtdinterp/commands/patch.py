"""`mtdinterp patch`: change one thing in a model's run, or everything in turn, and see what
follows."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtdinterp.commands.flags import add_json_flag, at_least, not_empty, number
from mtdinterp.commands.progress import stages
from mtdinterp.plotting import check_figure_path

if TYPE_CHECKING:
    from mtdinterp.checkpoints import Checkpoint
    from mtdinterp.interventions import PatchResult, SweepResult

SOURCES = ("zero", "mean", "noise", "other", "construction")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n"
        "  mtdinterp patch disentangled-m4-T64 --hook pattern --layer 1 --position -1 --source "
        "mean\n"
        "  mtdinterp patch disentangled-m4-T64 --hook resid_pre --layer 2 --block L2.L1.lag "
        "--source other\n"
        "  mtdinterp patch disentangled-m4-T64 --sweep block --same-end --out out/sweep.png"
    )
    parser.add_argument(
        "checkpoint",
        type=not_empty,
        metavar="CHECKPOINT",
        help="a checkpoint directory, or the name of a zoo model",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--hook",
        metavar="NAME",
        help="patch this hook point: its full name, or a short one with --layer",
    )
    what.add_argument(
        "--sweep",
        choices=("block", "head", "resid_pre", "attn_out"),
        help="patch every layer, position and part in turn, from one sequence into another (a mean "
        "over pairs)",
    )
    place = parser.add_argument_group("where and what, with --hook")
    place.add_argument(
        "--layer",
        type=at_least(0),
        metavar="L",
        help="counted from 0 (blocks and results count from 1: L1)",
    )
    place.add_argument(
        "--position", type=int, metavar="P", help="one position (-1 is the last; default: all)"
    )
    place.add_argument(
        "--head", type=at_least(0), metavar="H", help="one head, counted from 0 (default: all)"
    )
    place.add_argument(
        "--block", metavar="NAME", help="one named block of the stream (default: all of it)"
    )
    place.add_argument(
        "--source",
        metavar="WHAT",
        type=_source,
        help=f"{', '.join(SOURCES)}, or a number: what to put there; 'other' is the same place on "
        "other "
        "sequences, 'construction' in the exact construction (zero)",
    )
    parser.add_argument(
        "--direction",
        choices=("denoise", "noise"),
        help="with --sweep: clean into corrupted, or the other way round (denoise)",
    )
    parser.add_argument(
        "--same-end",
        action="store_true",
        help="with --sweep: corrupted sequences end in the clean ones' last tokens, so that only "
        "the "
        "in-context weights differ",
    )
    parser.add_argument(
        "--sequences", type=at_least(1), metavar="N", help="sequences (256; 8 pairs with --sweep)"
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="seed of the sequences (0)"
    )
    parser.add_argument(
        "--out", type=_figure, metavar="FILE", help="draw the result there (.png, .pdf, .svg)"
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def _source(text: str) -> str | float:
    if text in SOURCES:
        return text
    try:
        return number()(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"expected {', '.join(SOURCES)} or a number, got {text!r}"
        ) from None


def _figure(text: str) -> Path:
    try:
        return check_figure_path(Path(not_empty(text)).expanduser())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(options: argparse.Namespace) -> int:
    from mtdinterp.checkpoint_files import find_checkpoint

    find_checkpoint(options.checkpoint)  # before anything heavy is imported
    place = ("layer", "position", "head", "block", "source")
    if options.sweep and any(getattr(options, name) is not None for name in place):
        raise ValueError(
            "--layer, --position, --head, --block and --source are for --hook; "
            "a sweep goes over all of them"
        )
    if options.hook and (options.same_end or options.direction):
        raise ValueError(
            "--same-end and --direction are for a sweep; add --sweep instead of --hook"
        )
    if (
        options.hook
        and "." not in options.hook
        and options.layer is None
        and options.hook != "hook_embed"
    ):
        raise ValueError(f"--hook {options.hook} is a short name: add --layer, counted from 0")
    with stages(3 if options.out else 2) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.results import to_plain

        checkpoint = load_checkpoint(options.checkpoint)
        stage("patching")
        result: Any = _sweep(checkpoint, options) if options.sweep else _patch(checkpoint, options)
        if options.out:
            stage("drawing")
            from mtdinterp.figures import draw_patch, draw_sweep

            (draw_sweep if options.sweep else draw_patch)(result, options.out)
    if options.json:
        asked = {
            name: getattr(options, name)
            for name in (*place, "hook", "sweep", "same_end", "sequences", "seed")
        }
        print(
            json.dumps(
                {"checkpoint": str(checkpoint.path), "asked": asked, **to_plain(result)}, indent=1
            )
        )
    else:
        print(
            f"{checkpoint!r}\n" + (_sweep_table(result) if options.sweep else _patch_table(result))
        )
    if options.out and not options.json:
        print(f"figure: {options.out}")
    return 0


def _patch(checkpoint: "Checkpoint", options: argparse.Namespace) -> "PatchResult":
    from mtdinterp.interventions import Edit, FromRun, MeanOver, Noise, patch

    model, task, length = checkpoint.model, checkpoint.task, checkpoint.model.config.length
    tokens = task.sample(options.sequences or 256, length, options.seed).tokens
    other = task.sample(len(tokens), length, [options.seed, 1]).tokens
    source: Any = {
        "mean": MeanOver(other),
        "noise": Noise(seed=options.seed),
        "other": FromRun(other),
    }.get(options.source or "zero", options.source or "zero")
    if options.source == "construction":
        source = FromRun(tokens, _construction(checkpoint, tokens))
    return patch(
        model,
        tokens,
        [
            Edit(
                options.hook,
                source,
                position=options.position,
                head=options.head,
                block=options.block,
                layer=options.layer,
            )
        ],
    )


def _construction(checkpoint: "Checkpoint", tokens: Any) -> Any:
    """The exact construction for the checkpoint's depth, with the constants nearest to its
    predictions."""
    from mtdinterp.construction import construction_with
    from mtdinterp.interventions.algorithm import algorithm_of

    model, task, length = checkpoint.model, checkpoint.task, tokens.shape[1]
    return construction_with(
        task, length, algorithm_of(model, task, length).constants, model.config.architecture
    )


def _sweep(checkpoint: "Checkpoint", options: argparse.Namespace) -> "SweepResult":
    from mtdinterp.interventions import patch_sweep

    task, length = checkpoint.task, checkpoint.model.config.length
    clean, corrupted = (
        task.sample(options.sequences or 8, length, [options.seed, part]).tokens for part in (0, 1)
    )
    if options.same_end:
        corrupted[:, -task.order :] = clean[:, -task.order :]
    return patch_sweep(
        checkpoint.model, clean, corrupted, options.sweep, options.direction or "denoise"
    )


def _patch_table(result: "PatchResult") -> str:
    before, after = (
        weights.double().mean((0, 1)) for weights in (result.weights_before, result.weights_after)
    )
    shown = [offset for offset in range(len(before)) if max(before[offset], after[offset]) >= 0.01][
        :8
    ]
    lines = [
        result.summary(),
        "",
        "last layer's attention at the last position, mean over sequences:",
        f"  {'offset':<8} before   after",
    ]
    lines += [f"  {offset:<8} {before[offset]:.4f}   {after[offset]:.4f}" for offset in shown]
    return "\n".join(lines)


def _sweep_table(result: "SweepResult") -> str:
    """The places whose patch moves the metric most."""
    lines = [result.summary(), "", f"  {'layer':<6} {'position':<9} {'part':<16} metric"]
    for layer, position, part in result.strongest(10):
        value = result.values[layer, position, part].item()
        lines.append(f"  {layer + 1:<6} {position:<9} {result.parts[part]:<16} {value:.5f}")
    return "\n".join(lines)
