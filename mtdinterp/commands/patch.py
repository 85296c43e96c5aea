"""`mtdinterp patch`: patch one activation of a model, or every activation in turn."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtdinterp.bounded_files import expanded
from mtdinterp.checkpoint_files import find_checkpoint
from mtdinterp.commands.flags import add_json_flag, at_least, not_empty, number
from mtdinterp.commands.progress import stages
from mtdinterp.plotting import check_figure_path

if TYPE_CHECKING:
    from torch import Tensor

    from mtdinterp.checkpoints import Checkpoint
    from mtdinterp.interventions import PatchResult, SweepResult
    from mtdinterp.models import LensTransformer

PLACE_FLAGS = ("layer", "position", "head", "block", "source")
"""Flags that say where and what to patch, for --hook only."""
SOURCES = ("zero", "mean", "noise", "other", "construction")
LEAST_ATTENTION = 0.01
"""Offsets with less attention before and after are not shown."""
MOST_OFFSETS = 8
"""How many offsets are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
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
        help="patch this hook point, given by its full name, or by its short name and --layer",
    )
    what.add_argument(
        "--sweep",
        choices=("block", "head", "resid_pre", "attn_out"),
        help="patch from one sequence into another, one layer, position and part at a time, and "
        "average over pairs of sequences",
    )
    place = parser.add_argument_group("what to patch, with --hook")
    place.add_argument(
        "--layer",
        type=at_least(0),
        metavar="L",
        help="layer, counted from 0 (block names and results count from 1, as in L1)",
    )
    place.add_argument(
        "--position", type=int, metavar="P", help="one position (-1 is the last; default: all)"
    )
    place.add_argument(
        "--head", type=at_least(0), metavar="H", help="one head, counted from 0 (default: all)"
    )
    place.add_argument(
        "--block", metavar="NAME", help="one named block of the stream (default: the whole stream)"
    )
    place.add_argument(
        "--source",
        metavar="WHAT",
        type=_source,
        help=f"the new value: {', '.join(SOURCES)}, or a number (default: zero). 'other' takes the "
        "value from a run on other sequences, 'construction' from the reference construction",
    )
    parser.add_argument(
        "--direction",
        choices=("denoise", "noise"),
        help="with --sweep: patch clean activations into the corrupted run (denoise, the default) "
        "or the reverse (noise)",
    )
    parser.add_argument(
        "--same-end",
        action="store_true",
        help="with --sweep: corrupted sequences end in the same tokens as the clean ones, so only "
        "the in-context weights differ",
    )
    parser.add_argument(
        "--sequences",
        type=at_least(1),
        metavar="N",
        help="number of sequences (default: 256), or of pairs with --sweep (default: 8)",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of the sequences (default: 0)",
    )
    parser.add_argument(
        "--out",
        type=_figure,
        metavar="FILE",
        help="save a plot of the result to this file (.png, .pdf, .svg)",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def _source(text: str) -> str | float:
    """An argparse type: the name of a source, or a number."""
    if text in SOURCES:
        return text
    try:
        return number()(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"expected {', '.join(SOURCES)} or a number, got {text!r}"
        ) from None


def _figure(text: str) -> Path:
    """An argparse type: a path with the suffix of a figure."""
    try:
        return check_figure_path(expanded(not_empty(text)))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def run(options: argparse.Namespace) -> int:
    """Patch, draw if asked to, and print the result; returns the exit code."""
    _check(options)
    with stages(3 if options.out else 2) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint

        checkpoint = load_checkpoint(options.checkpoint)
        stage("patching")
        result: Any = _sweep(checkpoint, options) if options.sweep else _patch(checkpoint, options)
        if options.out:
            stage("drawing")
            _draw(result, options)
    if options.json:
        print(_json(checkpoint, options, result))
        return 0
    table = _sweep_table(result) if options.sweep else _patch_table(result)
    print(f"{checkpoint!r}\n{table}")
    if options.out:
        print(f"figure: {options.out}")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Refuse what can be refused before anything heavy is imported."""
    find_checkpoint(options.checkpoint)
    if options.sweep and any(getattr(options, name) is not None for name in PLACE_FLAGS):
        raise ValueError(
            "--layer, --position, --head, --block and --source apply only to --hook; a sweep "
            "covers all places"
        )
    if not options.hook:
        return
    if options.same_end or options.direction:
        raise ValueError(
            "--same-end and --direction apply only to --sweep; leave them out, or replace --hook "
            "by --sweep"
        )
    is_full_name = "." in options.hook or options.hook == "hook_embed"
    if not is_full_name and options.layer is None:
        raise ValueError(f"--hook {options.hook} is a short name: add --layer, counted from 0")


def _draw(result: Any, options: argparse.Namespace) -> None:
    from mtdinterp.figures import draw_patch, draw_sweep

    draw = draw_sweep if options.sweep else draw_patch
    draw(result, options.out)


def _json(checkpoint: "Checkpoint", options: argparse.Namespace, result: Any) -> str:
    from mtdinterp.results import to_plain

    names = (*PLACE_FLAGS, "hook", "sweep", "same_end", "sequences", "seed")
    asked = {name: getattr(options, name) for name in names}
    values = {"checkpoint": str(checkpoint.path), "asked": asked, **to_plain(result)}
    return json.dumps(values, indent=1)


def _patch(checkpoint: "Checkpoint", options: argparse.Namespace) -> "PatchResult":
    """Patch one place."""
    from mtdinterp.interventions import Edit, patch

    length = checkpoint.model.config.length
    tokens = checkpoint.task.sample(options.sequences or 256, length, options.seed).tokens
    edit = Edit(
        options.hook,
        _new_value(checkpoint, options, tokens),
        position=options.position,
        head=options.head,
        block=options.block,
        layer=options.layer,
    )
    return patch(checkpoint.model, tokens, [edit])


def _new_value(checkpoint: "Checkpoint", options: argparse.Namespace, tokens: "Tensor") -> Any:
    """The source of an edit: what --source names, for these sequences."""
    from mtdinterp.interventions import FromRun, MeanOver, Noise

    if options.source == "noise":
        return Noise(seed=options.seed)
    if options.source == "construction":
        return FromRun(tokens, _reference(checkpoint))
    if options.source in ("mean", "other"):
        length = tokens.shape[1]
        others = checkpoint.task.sample(len(tokens), length, [options.seed, 1]).tokens
        return MeanOver(others) if options.source == "mean" else FromRun(others)
    return "zero" if options.source is None else options.source


def _reference(checkpoint: "Checkpoint") -> "LensTransformer":
    """The reference construction with the constants that explain the model best.

    Raises:
        NotApplicable: if no construction is known for the model, with the reason.
    """
    from mtdinterp import explain
    from mtdinterp.errors import NotApplicable

    explanation = explain(checkpoint.model, checkpoint.task)
    reference = explanation.reference()
    if reference is None:
        raise NotApplicable(f"--source construction: {explanation.no_implementation}")
    return reference


def _sweep(checkpoint: "Checkpoint", options: argparse.Namespace) -> "SweepResult":
    """Patch every place in turn."""
    from mtdinterp.interventions import patch_sweep

    task = checkpoint.task
    length = checkpoint.model.config.length
    n_pairs = options.sequences or 8
    clean = task.sample(n_pairs, length, [options.seed, 0]).tokens
    corrupted = task.sample(n_pairs, length, [options.seed, 1]).tokens
    if options.same_end:
        # The next token depends on the tokens at the read offsets and on the weights alone.
        offsets = [offset for offset in task.read_offsets if offset is not None]
        first = length - 1 - max(offsets)
        corrupted[:, first:] = clean[:, first:]
    direction = options.direction or "denoise"
    return patch_sweep(checkpoint.model, clean, corrupted, options.sweep, direction)


def _patch_table(result: "PatchResult") -> str:
    before = result.weights_before.double().mean((0, 1))
    after = result.weights_after.double().mean((0, 1))
    largest = before.maximum(after)
    lines = [
        result.summary(),
        "",
        "last layer's attention at the last position, mean over sequences:",
        f"  {'offset':<8} before   after",
    ]
    shown = (largest >= LEAST_ATTENTION).nonzero().flatten().tolist()
    for offset in shown[:MOST_OFFSETS]:
        lines.append(f"  {offset:<8} {before[offset]:.4f}   {after[offset]:.4f}")
    return "\n".join(lines)


def _sweep_table(result: "SweepResult") -> str:
    """The places whose patch changes the metric most."""
    lines = [result.summary(), "", f"  {'layer':<6} {'position':<9} {'part':<16} metric"]
    for layer, position, part in result.strongest(10):
        value = result.values[layer, position, part].item()
        lines.append(f"  {layer + 1:<6} {position:<9} {result.parts[part]:<16} {value:.5f}")
    return "\n".join(lines)
