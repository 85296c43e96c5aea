"""`mtdinterp report`: a page about one or several checkpoints to hand to a colleague."""

import argparse
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from mtdinterp.bounded_files import UnreadableFile, expanded, read_bounded
from mtdinterp.commands.flags import (
    at_least,
    check_writable,
    not_empty,
    plugin_words,
    probe_names,
)
from mtdinterp.commands.progress import stages

if TYPE_CHECKING:
    from mtdinterp.report import Findings, Verdict

OTHER_STAGES = 3
"""Stages of one checkpoint besides its probes: scores, explanation and interventions."""
FORMATS = {".html": "html", ".htm": "html", ".md": "md"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's flags."""
    parser.epilog = (
        "examples:\n  mtdinterp report disentangled-m4-T64 -o out/report.html\n"
        "  mtdinterp report disentangled-m4-T64 disentangled-m4-T64-mirrored -o out/compared.html\n"
        "  mtdinterp report disentangled-m4-T64 --format md -o out/report.md\n"
        "  mtdinterp report out/m4 --quick"
    )
    parser.add_argument(
        "checkpoints",
        nargs="+",
        type=not_empty,
        metavar="CHECKPOINT",
        help="a checkpoint directory, or the name of a zoo model; the report compares several",
    )
    parser.add_argument(
        "-o",
        "--out",
        type=_file,
        metavar="FILE",
        help="output file (default: report.html or report.md); a .json file of the "
        "same name contains all numbers, so give pages of different models different names",
    )
    parser.add_argument(
        "--format",
        choices=("html", "md"),
        help="html: one self-contained page; md: Markdown and a folder of figures named after FILE",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="skip the slow interventions (interchanges, patch sweep, circuit) and use 256 "
        "sequences unless --sequences is given",
    )
    parser.add_argument(
        "--sequences",
        type=at_least(32),
        metavar="N",
        help="number of sequences for scores, explanation and probes, at least 32 (default: "
        "depends on the measurement; the report shows n for every claim)",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of the sequences of explanation, probes and interventions (default: 0); scores "
        "always use the same held-out sequences",
    )
    parser.set_defaults(run=run)


def _file(text: str) -> Path:
    path = expanded(not_empty(text))
    if path.suffix not in FORMATS:
        raise argparse.ArgumentTypeError(f"expected a file that ends in .html or .md, got {text!r}")
    return path


MOST_BYTES = 100 * 10**6
"""Larger JSON files are not those of a report."""


def _check_own(out: Path, command: str) -> None:
    """Refuse to overwrite a JSON file that is not an older report's, or that another page needs.

    Args:
        out: the page to write.
        command: the command that makes it.
    """
    path = out.with_suffix(".json")
    if not path.exists():
        return
    try:
        found = json.loads(read_bounded(path, MOST_BYTES))
    except (UnreadableFile, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not {"verdict", "models"} & set(found):
        raise ValueError(
            f"{path} exists and was not written by mtdinterp report; refusing to overwrite it"
        )
    measured, page = _measured(str(found.get("command", "")))
    other = out.with_suffix(page.suffix)
    is_other = page.suffix in FORMATS and page.suffix != out.suffix and other.exists()
    if is_other and measured != _measured(command)[0]:
        raise ValueError(
            f"{path} contains the numbers of {other}, which was made from other checkpoints or "
            "settings; choose another name with --out"
        )


def _measured(command: str) -> tuple[list[str], Path]:
    """A command without its output file, and that file; an empty path if it names none."""
    words = shlex.split(command)
    if "-o" not in words[:-1]:
        return words, Path()
    place = words.index("-o")
    return words[:place] + words[place + 2 :], Path(words[place + 1])


def run(options: argparse.Namespace) -> int:
    """Measure, judge and write the report."""
    from mtdinterp.checkpoint_files import find_checkpoint

    out = options.out or Path(f"report.{options.format or 'html'}")
    if options.format and FORMATS[out.suffix] != options.format:
        raise ValueError(f"--format {options.format} does not match the file name {out.name}")
    check_writable(out)
    _check_own(out, _command(options, out))
    for name in options.checkpoints:
        find_checkpoint(name)  # before anything heavy is imported
    n_probes = len(probe_names(options))
    per_checkpoint = n_probes + OTHER_STAGES
    with stages(2 + per_checkpoint * len(options.checkpoints)) as stage:
        stage("importing")
        from mtdinterp import load_checkpoint
        from mtdinterp.report import collect, judge, write_report

        checkpoints = [load_checkpoint(name) for name in options.checkpoints]
        settings = {"n_sequences": options.sequences, "quick": options.quick, "seed": options.seed}
        findings = [collect(entry, stage=stage, **settings) for entry in checkpoints]
        stage("writing")
        page, numbers = write_report(findings, out, _command(options, out))
    for name, entry in zip(options.checkpoints, findings, strict=True):
        print(f"{name}: {short_answer(judge(entry), entry)}")
    print(f"report: {page}\nnumbers: {numbers}")
    return 0


def short_answer(verdict: "Verdict", findings: "Findings") -> str:
    """The verdict for a terminal: what was named, what it ties with, and on how many sequences."""
    identification = findings.probes["identify_algorithm"]
    sentences = [verdict.sentences[0]]
    tie = identification.tie_sentence()
    if tie in verdict.sentences:
        sentences.append(tie)
    sentences.append(f"Compared on {identification.n_held} sequences, seed {identification.seed}.")
    return " ".join(sentences)


def _command(options: argparse.Namespace, out: Path) -> str:
    """The command that makes this report again."""
    words = ["mtdinterp", "report", *options.checkpoints, *plugin_words(options)]
    words += ["-o", str(out), "--seed", str(options.seed)]
    if options.quick:
        words.append("--quick")
    if options.sequences is not None:
        words += ["--sequences", str(options.sequences)]
    return shlex.join(words)
