"""`mtdinterp reproduce`: the paper's figures and tables made again, its claims next to what is
measured."""

import argparse
import json
import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mtdinterp.commands.flags import add_json_flag, at_least, check_writable, not_empty
from mtdinterp.commands.progress import stages
from mtdinterp.reproduce.registry import ALL, FIGURES, chosen

if TYPE_CHECKING:
    from mtdinterp.reproduce.figure import Reproduction


def add_arguments(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, FIGURES))
    listed = "\n".join(f"  {name:<{width}}  {source.summary}" for name, source in FIGURES.items())
    parser.epilog = (
        f"figures:\n{listed}\n  {ALL:<{width}}  all of them, and a page that shows them\n\n"
        "examples:\n  mtdinterp reproduce kl-lengths\n  mtdinterp reproduce all -o out/reproduce\n"
        "  mtdinterp reproduce five-layers --train    # trains the models anew, by the zoo's "
        "recipes"
    )
    parser.add_argument("figures", nargs="+", metavar="FIGURE", help="which figures, see below")
    parser.add_argument(
        "-o",
        "--out",
        type=_directory,
        default=Path("out") / "reproduce",
        metavar="DIR",
        help="where pictures (.png, .pdf) and numbers (.csv) go (out/reproduce)",
    )
    parser.add_argument(
        "--train",
        action="store_true",
        help="train the models now instead of taking the zoo's: half a minute to hours each; runs "
        "are "
        "kept in DIR/runs, and a stopped one goes on",
    )
    parser.add_argument(
        "--seed", type=at_least(0), default=0, metavar="N", help="seed of all sequences (0)"
    )
    add_json_flag(parser)
    parser.set_defaults(run=run)


def _directory(text: str) -> Path:
    path = Path(not_empty(text)).expanduser()
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: expected a directory, got a file")
    return path


def run(options: argparse.Namespace) -> int:
    names = chosen(options.figures)
    check_writable(options.out / "index.html")
    made: list[Reproduction] = []
    with stages(len(names) + 1) as stage:
        stage("importing")
        from tqdm import tqdm

        from mtdinterp.reproduce.figure import Context, make, write
        from mtdinterp.reproduce.models import Models, TrainedModels, ZooModels

        def announce(words: str) -> None:
            tqdm.write(f"  {words}", file=sys.stderr)  # above the bar, if there is one

        models: Models = (
            TrainedModels(options.out / "runs", announce) if options.train else ZooModels()
        )
        for name in names:
            stage(name)
            found = make(name, Context(models, options.seed))
            write(found, options.out)
            made.append(found)
    if ALL in options.figures:
        _write_page(made, options)
    print(
        json.dumps(_plain(made, options.out), indent=1) if options.json else _words(made, options)
    )
    return 0


def _write_page(made: list["Reproduction"], options: argparse.Namespace) -> None:
    from mtdinterp.pages.page import render
    from mtdinterp.reproduce.page import compose, markdown

    origin = (
        "Trained models were trained anew by the zoo's recipes."
        if options.train
        else "Trained models are those of the zoo."
    )
    flags = [
        *(["--train"] if options.train else []),
        *(["--seed", str(options.seed)] if options.seed else []),
    ]
    command = shlex.join(["mtdinterp", "reproduce", ALL, *flags])
    page: Path = options.out / "index.html"
    page.write_text(render(compose(made, options.out, command, origin)))
    page.with_suffix(".md").write_text(markdown(made, origin))
    page.with_suffix(".json").write_text(json.dumps(_plain(made, options.out), indent=1) + "\n")


def _plain(made: list["Reproduction"], out: Path) -> dict[str, Any]:
    from mtdinterp.results import to_plain

    return {
        found.name: {
            "title": found.title,
            "claim": found.claim,
            "measured": list(found.measured),
            "numbers": to_plain(dict(found.numbers)),
            "csv": str(out / f"{found.name}.csv"),
        }
        for found in made
    }


def _words(made: list["Reproduction"], options: argparse.Namespace) -> str:
    parts = []
    for found in made:
        lines = [f"{found.name}: {found.title}", *_wrapped("paper     ", found.claim)]
        for place, sentence in enumerate(found.measured):
            lines += _wrapped("measured  " if place == 0 else " " * 10, sentence)
        parts.append("\n".join([*lines, f"  files     {options.out / found.name}.png, .pdf, .csv"]))
    if ALL in options.figures:
        parts.append(f"page: {options.out / 'index.html'}")
    return "\n\n".join(parts)


def _wrapped(head: str, words: str) -> list[str]:
    return textwrap.wrap(
        words, 110, initial_indent=f"  {head}", subsequent_indent=" " * (len(head) + 2)
    )
