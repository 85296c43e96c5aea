"""`mtdinterp reproduce`: the paper's figures and tables, with its claims next to measurements."""

import argparse
import json
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtdinterp.bounded_files import expanded
from mtdinterp.commands.flags import add_json_flag, at_least, check_writable, not_empty
from mtdinterp.commands.progress import stages
from mtdinterp.reproduce.registry import ALL, FIGURES, chosen

if TYPE_CHECKING:
    from mtdinterp.checkpoints.provenance import Provenance
    from mtdinterp.reproduce.figure import Reproduction
    from mtdinterp.reproduce.models import Models

EXAMPLES = """\
examples:
  mtdinterp reproduce kl-lengths
  mtdinterp reproduce all -o out/reproduce
  mtdinterp reproduce five-layers --train    # trains the models with the zoo's recipes
  mtdinterp reproduce kl-lengths --from out/sweep    # uses the models of a sweep"""
WIDTH = 110
"""Columns of printed text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments and its help to a parser."""
    parser.epilog = f"{_listing()}\n\n{EXAMPLES}"
    parser.add_argument(
        "figures", nargs="+", metavar="FIGURE", help="figures to make, listed below"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=_directory,
        default=Path("out") / "reproduce",
        metavar="DIR",
        help="directory for figures (.png, .pdf) and numbers (.csv) (default: out/reproduce)",
    )
    origin = parser.add_mutually_exclusive_group()
    origin.add_argument(
        "--train",
        action="store_true",
        help="train the models instead of loading them from the zoo, which takes from half a "
        "minute to hours per model; runs are kept in DIR/runs, and interrupted runs are resumed",
    )
    origin.add_argument(
        "--from",
        dest="sweep",
        type=not_empty,
        metavar="DIR",
        help="use the models of a sweep (mtdinterp sweep run) instead of the zoo's, as far as they "
        "were trained with the zoo's settings",
    )
    parser.add_argument(
        "--seed",
        type=at_least(0),
        default=0,
        metavar="N",
        help="seed of all sequences (default: 0)",
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def _listing() -> str:
    """The figures with their summaries, for the help."""
    width = max(map(len, FIGURES))
    lines = [f"  {name:<{width}}  {source.summary}" for name, source in FIGURES.items()]
    return "\n".join(["figures:", *lines, f"  {ALL:<{width}}  all figures, collected on one page"])


def _directory(text: str) -> Path:
    path = expanded(not_empty(text))
    # Not by `Path.exists`, which fails for a name that is too long.
    if os.path.exists(path) and not os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path}: expected a directory, got a file")
    return path


def run(options: argparse.Namespace) -> int:
    """Make the figures, write their files and print what was measured."""
    names = chosen(options.figures)
    check_writable(options.out / "index.html")
    if options.sweep:
        _checkpoints(
            options.sweep
        )  # a wrong directory is an error before anything heavy is imported
    made: list[Reproduction] = []
    with stages(len(names) + 1) as stage:
        stage("importing")
        from mtdinterp.reproduce.figure import Context, make, write

        models = _models(options)
        context = Context(models, options.seed, announce=_announce)
        for name in names:
            stage(name)
            found = make(name, context)
            write(found, options.out)
            made.append(found)
    if ALL in options.figures:
        _write_page(made, options, models)
    if options.json:
        print(json.dumps(_plain(made, options.out), indent=1))
    else:
        print(_text(made, options))
    return 0


def _announce(message: str) -> None:
    """Write a line of progress."""
    from tqdm import tqdm

    # tqdm writes the line above its progress bar.
    tqdm.write(f"  {message}", file=sys.stderr)


def _models(options: argparse.Namespace) -> "Models":
    """Where trained models come from."""
    from mtdinterp.reproduce.models import ListedModels, TrainedModels, ZooModels

    if options.train:
        return TrainedModels(options.out / "runs", _announce)
    if options.sweep:
        return ListedModels(_checkpoints(options.sweep), "the sweep")
    return ZooModels()


def _checkpoints(sweep: str) -> dict[str, Path]:
    """The checkpoints of a sweep's finished cells, by the cells' names."""
    from mtdinterp.sweep.cells import CHECKPOINT
    from mtdinterp.sweep.directory import read_sweep, sweep_path
    from mtdinterp.sweep.status import FINISHED, statuses

    found = read_sweep(sweep_path(sweep))
    return {
        name: found.directory(name) / CHECKPOINT
        for name, status in statuses(found).items()
        if status.state == FINISHED
    }


def _write_page(
    made: Sequence["Reproduction"], options: argparse.Namespace, models: "Models"
) -> None:
    """Write all figures as JSON, as Markdown and as a page.

    The page is last, so that an interruption never leaves a page without its numbers.
    """
    from mtdinterp.pages.page import render
    from mtdinterp.reproduce.page import compose, markdown
    from mtdinterp.storage import write_file

    command = shlex.join(_command(options))
    origin = _origin(options)
    provenance = _provenance(command, models)
    page: Path = options.out / "index.html"
    numbers = json.dumps(_plain(made, options.out), indent=1) + "\n"
    document = compose(made, options.out, command, origin)
    write_file(page.with_suffix(".json"), numbers.encode())
    write_file(page.with_suffix(".md"), markdown(made, origin, provenance).encode())
    write_file(page, render(document).encode())


def _command(options: argparse.Namespace) -> list[str]:
    """The command that makes all figures again."""
    command = ["mtdinterp", "reproduce", ALL]
    if options.train:
        command.append("--train")
    if options.sweep:
        command += ["--from", options.sweep]
    if options.seed:
        command += ["--seed", str(options.seed)]
    return command


def _origin(options: argparse.Namespace) -> str:
    """A sentence about where trained models come from."""
    if options.train:
        return "Models were trained again with the zoo's recipes."
    if options.sweep:
        return f"Trained models are those of the sweep in {options.sweep}."
    return "Trained models are those of the zoo."


def _provenance(command: str, models: "Models") -> "Provenance":
    """The command, the versions and the weights of stored models."""
    from mtdinterp.checkpoint_files import zoo_names
    from mtdinterp.checkpoints.provenance import provenance_of
    from mtdinterp.reproduce.models import ListedModels

    if isinstance(models, ListedModels):
        return provenance_of(command, models.used)
    return provenance_of(command, zoo_names() if models.stored else ())


def _plain(made: Sequence["Reproduction"], out: Path) -> dict[str, Any]:
    """The figures as plain values for JSON, by name."""
    from mtdinterp.results import to_plain

    figures = {}
    for figure in made:
        figures[figure.name] = {
            "title": figure.title,
            "claim": figure.claim,
            "measured": list(figure.measured),
            "numbers": to_plain(dict(figure.numbers)),
            "csv": str(out / f"{figure.name}.csv"),
        }
    return figures


def _text(made: Sequence["Reproduction"], options: argparse.Namespace) -> str:
    """The claims and measurements as text for the terminal."""
    parts = []
    for found in made:
        lines = [f"{found.name}: {found.title}", *_wrapped("paper", found.claim)]
        first, *others = found.measured
        lines += _wrapped("measured", first)
        for paragraph in others:
            lines += _wrapped("", paragraph)
        lines.append(f"  {'files':<8}  {options.out / found.name}.png, .pdf, .csv")
        parts.append("\n".join(lines))
    if ALL in options.figures:
        parts.append(f"page: {options.out / 'index.html'}")
    return "\n\n".join(parts)


def _wrapped(head: str, paragraph: str) -> list[str]:
    """A paragraph wrapped into lines that are indented after its heading."""
    indent = f"  {head:<8}  "
    return textwrap.wrap(
        paragraph, WIDTH, initial_indent=indent, subsequent_indent=" " * len(indent)
    )
