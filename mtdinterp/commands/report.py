"""`mtdinterp report`: a page about one or several checkpoints to hand to a colleague."""

import argparse
import shlex
import sys
from pathlib import Path

from mtdinterp.commands.flags import at_least, not_empty
from mtdinterp.commands.progress import stages


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = ("examples:\n  mtdinterp report disentangled-m4-T64 -o out/report.html\n"
                     "  mtdinterp report disentangled-m4-T64 disentangled-m4-T64-mirrored -o out/compared.html")
    parser.add_argument("checkpoints", nargs="+", type=not_empty, metavar="CHECKPOINT",
                        help="a checkpoint directory, or the name of a zoo model; several are compared")
    parser.add_argument("-o", "--out", type=_page, default=Path("report.html"), metavar="FILE",
                        help="the page (report.html); every number goes next to it as .json")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of all sequences (0)")
    parser.set_defaults(run=run)


def _page(text: str) -> Path:
    path = Path(not_empty(text)).expanduser()
    if path.suffix not in (".html", ".htm"):
        raise argparse.ArgumentTypeError(f"expected a file that ends in .html, got {text!r}")
    return path


def run(options: argparse.Namespace) -> int:
    from mtdinterp.checkpoint_files import find_checkpoint

    for name in options.checkpoints:
        find_checkpoint(name)  # before anything heavy is imported
    with stages(1 + 8 * len(options.checkpoints)) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.report import collect, judge, write_report

        findings = [collect(load_checkpoint(name), options.seed, stage) for name in options.checkpoints]
    command = shlex.join(["mtdinterp", "report", *options.checkpoints, "-o", str(options.out), "--seed",
                          str(options.seed)])
    page, numbers = write_report(findings, options.out, command)
    for entry in findings:
        print(f"{entry.name}: {judge(entry).sentences[0]}")
    print(f"report: {page}\nnumbers: {numbers}", file=sys.stdout)
    return 0
