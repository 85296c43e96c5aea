"""`mtdinterp report`: a page about one or several checkpoints to hand to a colleague."""

import argparse
import json
import shlex
from pathlib import Path

from mtdinterp.commands.flags import at_least, check_writable, not_empty
from mtdinterp.commands.progress import stages

N_STAGES = 8
"""Of one checkpoint; counted here because the bar is shown before anything heavy is imported."""
FORMATS = {".html": "html", ".htm": "html", ".md": "md"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "examples:\n  mtdinterp report disentangled-m4-T64 -o out/report.html\n"
        "  mtdinterp report disentangled-m4-T64 disentangled-m4-T64-mirrored -o out/compared.html\n"
        "  mtdinterp report disentangled-m4-T64 --format md -o out/report.md"
    )
    parser.add_argument(
        "checkpoints",
        nargs="+",
        type=not_empty,
        metavar="CHECKPOINT",
        help="a checkpoint directory, or the name of a zoo model; several are compared",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=_file,
        metavar="FILE",
        help="where to write it (report.html or report.md); every number goes next to it as .json",
    )
    parser.add_argument(
        "--format",
        choices=("html", "md"),
        help="one self-contained page, or Markdown with a folder of figures (by the name of FILE)",
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="seed of all sequences (0)"
    )
    parser.set_defaults(run=run)


def _file(text: str) -> Path:
    path = Path(not_empty(text)).expanduser()
    if path.suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"expected a file that ends in .html or .md, got {text!r}")
    return path


def _check_own(path: Path) -> None:
    """The numbers go to a file that the user did not name: nothing but an older report's is
    replaced there."""
    if not path.exists():
        return
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not {"verdict", "models"} & set(found):
        raise ValueError(
            f"{path} is there and no report's: it would be replaced; choose another name"
        )


def run(options: argparse.Namespace) -> int:
    from mtdinterp.checkpoint_files import find_checkpoint

    out = options.out or Path(f"report.{options.format or 'html'}")
    if options.format and FORMATS[out.suffix] != options.format:
        raise ValueError(f"--format {options.format} does not go with {out.name}")
    check_writable(out)
    _check_own(out.with_suffix(".json"))
    for name in options.checkpoints:
        find_checkpoint(name)  # before anything heavy is imported
    with stages(2 + N_STAGES * len(options.checkpoints)) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.report import collect, judge, write_report

        findings = [
            collect(checkpoint, options.seed, stage)
            for checkpoint in [load_checkpoint(name) for name in options.checkpoints]
        ]
        stage("writing")
        command = shlex.join(
            [
                "mtdinterp",
                "report",
                *options.checkpoints,
                "-o",
                str(out),
                "--seed",
                str(options.seed),
            ]
        )
        page, numbers = write_report(findings, out, command)
    for name, entry in zip(options.checkpoints, findings, strict=True):
        print(f"{name}: {judge(entry).sentences[0]}")
    print(f"report: {page}\nnumbers: {numbers}")
    return 0
