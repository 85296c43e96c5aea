"""Flags that several commands share, and their checks. Nothing heavy is imported."""

import argparse
import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mtdinterp import catalogue
from mtdinterp.bounded_files import expanded
from mtdinterp.checkpoint_files import CONFIG, WEIGHTS, CheckpointError, check_replaceable
from mtdinterp.commands.progress import stages
from mtdinterp.providers import PluginError, load_plugin, read_plugin
from mtdinterp.registry import BY_KIND, PROBES, REGISTRIES

DEFAULT_TASK = "mtd"


class Given(argparse.Action):
    """Stores a value and records in `given` that the flag was used, even with its default value.

    To record all flags of a parser: `parser.register("action", None, Given)` and
    `parser.set_defaults(given=())`.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.given = (*namespace.given, self.dest)


def at_least(minimum: int) -> Callable[[str], int]:
    """An argparse type: an integer that is at least `minimum` and fits in 64 bits."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"expected an integer ≥ {minimum}, got {value}")
        if value >= 2**63:
            raise argparse.ArgumentTypeError(f"expected an integer below 2^63, got {value}")
        return value

    return parse


def number(minimum: float | None = None, exclusive: bool = False) -> Callable[[str], float]:
    """An argparse type: a finite number, optionally with a lower bound."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise argparse.ArgumentTypeError(f"expected a finite number, got {text!r}")
        if minimum is not None and (value < minimum or (exclusive and value == minimum)):
            relation = ">" if exclusive else "≥"
            raise argparse.ArgumentTypeError(
                f"expected a number {relation} {minimum:g}, got {text}"
            )
        return value

    return parse


def not_empty(text: str) -> str:
    """An argparse type: a path that is not the empty string."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return text


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before any long computation.

    Its directory is created. A directory that is a checkpoint is refused.
    """
    if path.is_dir():
        raise ValueError(f"{path}: expected a file, got a directory")
    if (path.parent / CONFIG).exists() and (path.parent / WEIGHTS).exists():
        raise ValueError(f"{path}: this directory is a checkpoint; choose another path")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(f"{path}: cannot write here ({error.strerror})") from None


def checkpoint_directory(text: str) -> Path:
    """An argparse type: a directory for a checkpoint, refused if it contains anything else."""
    path = expanded(not_empty(text))
    try:
        check_replaceable(path)
    except CheckpointError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: cannot be used ({error.strerror})") from None
    return path


NAMED_KINDS = {"task": "task", "architecture": "architecture", "probes": "probe"}
"""Options that name extensions, with the kind of each."""


def plugin_file(text: str) -> Path:
    """An argparse type: a Python file that can be read; it is run only later."""
    path = expanded(not_empty(text))
    try:
        read_plugin(path)
    except PluginError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return path


def add_plugin_flag(parser: argparse.ArgumentParser, default: str = "") -> None:
    """Add --plugin, which every command has.

    Args:
        parser: the parser of a command, or of one of its actions.
        default: `argparse.SUPPRESS` for an action, whose command has the flag too.
    """
    parser.add_argument(
        "--plugin",
        action="append",
        type=plugin_file,
        default=default or [],
        dest="plugins",
        metavar="FILE.py",
        help="run a Python file that registers your own tasks, estimators, architectures, "
        "algorithms or probes; may be given several times",
    )


def load_plugins(options: argparse.Namespace) -> None:
    """Run the files of --plugin, then refuse names of extensions that do not exist.

    Without --plugin, names are checked against the catalogue, which needs no imports.

    Raises:
        ValueError: if a plugin fails, or a flag names an unknown extension.
    """
    if options.plugins:
        # The first plugin imports torch, which takes seconds.
        with stages(len(options.plugins)) as stage:
            for path in options.plugins:
                stage(f"loading {path.name}")
                provider = load_plugin(path)
                if not any(found.registered_by(provider) for found in REGISTRIES):
                    print(f"mtdinterp: {path} registers nothing", file=sys.stderr)
    for option, kind in NAMED_KINDS.items():
        given = getattr(options, option, None) or ()
        for name in (given,) if isinstance(given, str) else given:
            listed = list(BY_KIND[kind]) if options.plugins else list(catalogue.known(kind))
            catalogue.check_known(name, listed, f"--{kind}")


def add_task_kind_flag(parser: argparse.ArgumentParser) -> None:
    """Add --task."""
    kinds = [f"{name}: {label}" for name, label in catalogue.known("task").items()]
    parser.add_argument(
        "--task",
        metavar="NAME",
        default=DEFAULT_TASK,
        help=f"task (default: {DEFAULT_TASK}); {'; '.join(kinds)}",
    )


def add_model_flags(
    parser: argparse.ArgumentParser, layers: str = "number of layers (default: 3)"
) -> None:
    """Add the flags for the architecture and its depth.

    Args:
        parser: the parser to add them to.
        layers: the help text of --layers.
    """
    parser.add_argument(
        "--architecture",
        metavar="NAME",
        default="disentangled",
        help=f"one of {', '.join(catalogue.known('architecture'))} (default: disentangled)",
    )
    parser.add_argument("--layers", type=at_least(1), default=3, metavar="L", help=layers)


def plugin_words(options: argparse.Namespace) -> list[str]:
    """The --plugin flags of a command line, to repeat them in another one."""
    words: list[str] = []
    for path in options.plugins:
        words += ["--plugin", str(path)]
    return words


def probe_names(options: argparse.Namespace) -> list[str]:
    """Names of all probes: built-in, installed, and those of --plugin."""
    return list(PROBES) if options.plugins else list(catalogue.known("probe"))


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """Add --json."""
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON and nothing else"
    )
