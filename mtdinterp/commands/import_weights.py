"""`mtdinterp import`: weights of another program as a checkpoint."""

import argparse
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from mtdinterp.bounded_files import expanded
from mtdinterp.checkpoint_files import CheckpointError, read_file
from mtdinterp.commands.flags import add_json_flag, checkpoint_directory, not_empty
from mtdinterp.commands.progress import stages
from mtdinterp.formatting import counted

MOST_JSON = 10**8
"""Bytes that a configuration or a mapping may have."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of this command."""
    parser.epilog = (
        "The forward formula of both architectures, and every parameter's name and shape, are in\n"
        "docs/models.md. Without --reference, a wrong transpose of a square matrix cannot be\n"
        "detected.\n\n"
        "examples:\n"
        "  mtdinterp import weights.pt --config config.json --out out/mine\n"
        "  mtdinterp import weights.safetensors --config config.json --mapping mapping.json "
        "\\\n      --reference reference.npz --out out/mine"
    )
    parser.add_argument(
        "weights",
        type=not_empty,
        metavar="WEIGHTS",
        help="a safetensors file, or a state dict saved with torch.save",
    )
    parser.add_argument(
        "--config",
        type=not_empty,
        required=True,
        metavar="FILE",
        help='JSON file with the entries "model" and "task", like the config.json of a checkpoint',
    )
    parser.add_argument(
        "--mapping",
        type=not_empty,
        metavar="FILE",
        help="JSON file that maps each parameter of the model to its name in WEIGHTS or to [name, "
        '"transpose"] (default: the names are the same)',
    )
    parser.add_argument(
        "--reference",
        type=not_empty,
        metavar="FILE",
        help="inputs and outputs of the original program to check against: a .safetensors or .npz "
        'file with the arrays "tokens" [batch, pos] and "outputs" [batch, pos, vocab] (or '
        "[batch, vocab] for the last position alone)",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="NAME",
        help="a tensor in WEIGHTS that the model does not need; may be given several times",
    )
    parser.add_argument(
        "--out",
        type=checkpoint_directory,
        required=True,
        metavar="DIR",
        help="save the checkpoint in this directory",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Import the weights, check them and write the checkpoint; returns the exit code."""
    config = _read_object(options.config)
    mapping = _read_object(options.mapping) if options.mapping else None
    with stages(3 if options.reference else 2) as stage:
        stage("importing")
        from mtdinterp import import_checkpoint, save_checkpoint
        from mtdinterp.checkpoints.importing import UncheckedOrientation
        from mtdinterp.checkpoints.load import build_from
        from mtdinterp.checkpoints.weight_files import read_reference

        _, task = build_from(Path(options.config), config)
        reference = None
        if options.reference:
            stage("checking")
            reference = read_reference(expanded(options.reference))
        with warnings.catch_warnings():
            # The command's own warning below names the flag.
            warnings.simplefilter("ignore", UncheckedOrientation)
            checkpoint = import_checkpoint(
                options.weights, config["model"], task, mapping, reference, ignore=options.ignore
            )
        stage("saving")
        path = save_checkpoint(
            options.out, checkpoint.model, task, recipe=checkpoint.config["recipe"]
        )
    n_parameters = sum(parameter.numel() for parameter in checkpoint.model.parameters())
    n_checked = None if reference is None else len(reference[0])
    printed = {"checkpoint": str(path), "parameters": n_parameters, "checked_sequences": n_checked}
    print(json.dumps(printed, indent=1) if options.json else _as_text(printed))
    if n_checked is None:
        print(
            "mtdinterp import: warning: the outputs were not compared with the original program, "
            "so a wrong transpose of a square matrix would go unnoticed; use --reference",
            file=sys.stderr,
        )
    return 0


def _as_text(printed: dict[str, Any]) -> str:
    lines = [f"checkpoint: {printed['checkpoint']} ({printed['parameters']:,} parameters)"]
    count = printed["checked_sequences"]
    if count is not None:
        lines.append(
            f"the outputs agree with those of the original program on {counted(count, 'sequence')}"
        )
    return "\n".join(lines)


def _read_object(name: str) -> dict[str, Any]:
    """A JSON object from a file."""
    path = expanded(name)
    content = read_file(path, MOST_JSON)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {type(value).__name__}")
    return value
