"""`mtdinterp report`: a page about one or several checkpoints to hand to a colleague."""

import argparse
import shlex
from pathlib import Path

from mtdinterp.commands.flags import at_least, not_empty
from mtdinterp.commands.progress import stages

FORMATS = {".html": "html", ".htm": "html", ".md": "md"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = ("examples:\n  mtdinterp report disentangled-m4-T64 -o out/report.html\n"
                     "  mtdinterp report disentangled-m4-T64 disentangled-m4-T64-mirrored -o out/compared.html\n"
                     "  mtdinterp report disentangled-m4-T64 --format md -o out/report.md")
    parser.add_argument("checkpoints", nargs="+", type=not_empty, metavar="CHECKPOINT",
                        help="a checkpoint directory, or the name of a zoo model; several are compared")
    parser.add_argument("-o", "--out", type=_file, metavar="FILE",
                        help="where to write it (report.html or report.md); every number goes next to it as .json")
    parser.add_argument("--format", choices=("html", "md"),
                        help="one self-contained page, or Markdown with a folder of figures (by the name of FILE)")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of all sequences (0)")
    parser.set_defaults(run=run)


def _file(text: str) -> Path:
    path = Path(not_empty(text)).expanduser()
    if path.suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"expected a file that ends in .html or .md, got {text!r}")
    return path


def run(options: argparse.Namespace) -> int:
    from mtdinterp.checkpoint_files import find_checkpoint

    out = options.out or Path(f"report.{options.format or 'html'}")
    if options.format and FORMATS[out.suffix] != options.format:
        raise ValueError(f"--format {options.format} does not go with {out.name}")
    if out.is_dir():
        raise ValueError(f"{out}: expected a file, got a directory")
    for name in options.checkpoints:
        find_checkpoint(name)  # before anything heavy is imported
    with stages(2 + 8 * len(options.checkpoints)) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.report import collect, judge, write_report

        findings = [collect(checkpoint, options.seed, stage)
                    for checkpoint in [load_checkpoint(name) for name in options.checkpoints]]
        stage("writing")
        command = shlex.join(["mtdinterp", "report", *options.checkpoints, "-o", str(out), "--seed", str(options.seed)])
        page, numbers = write_report(findings, out, command)
    for entry in findings:
        print(f"{entry.name}: {judge(entry).sentences[0]}")
    print(f"report: {page}\nnumbers: {numbers}")
    return 0
