"""The command line. Nothing heavy is imported here: help and errors must be instant."""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

from mtdinterp import __version__
from mtdinterp.commands.flags import add_plugin_flag, load_plugins
from mtdinterp.formatting import printable
from mtdinterp.providers import PluginWarning

COMMANDS = {
    "train": (
        "mtdinterp.commands.train",
        "train a model and compare it with the construction during training",
    ),
    "sweep": (
        "mtdinterp.commands.sweep",
        "run a grid of training runs on this machine or a cluster, and collect the results",
    ),
    "zoo": ("mtdinterp.commands.zoo", "list the trained models that ship with the package"),
    "probe": (
        "mtdinterp.commands.probe",
        "find out which π, β and algorithm a model learned, and where they are represented",
    ),
    "decompile": (
        "mtdinterp.commands.decompile",
        "write a model as a short program, and measure what each of its terms adds",
    ),
    "patch": (
        "mtdinterp.commands.patch",
        "patch one activation of a model, or every activation in turn",
    ),
    "app": (
        "mtdinterp.commands.app",
        "open the workbench, a local web page to inspect and patch models",
    ),
    "report": (
        "mtdinterp.commands.report",
        "write an interpretability report about checkpoints",
    ),
    "reproduce": (
        "mtdinterp.commands.reproduce",
        "reproduce the paper's figures and compare its claims with measurements",
    ),
    "construct": (
        "mtdinterp.commands.construct",
        "build an exact construction, compare it with estimators and save it as a checkpoint",
    ),
    "import": (
        "mtdinterp.commands.import_weights",
        "import weights from another program as a checkpoint, and check its outputs",
    ),
    "bench": (
        "mtdinterp.commands.bench",
        "measure speed and memory relative to reference code in the same run",
    ),
}


LONGEST_MESSAGE = 500
"""Characters of an error that are shown; it may quote a whole command line."""


class Parser(argparse.ArgumentParser):
    """A parser that reports bad input in one sentence, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print the message as a sentence and exit."""
        sentence = printable(message[:1].upper() + message[1:LONGEST_MESSAGE])
        self.exit(2, f"{self.prog}: {sentence}. See '{self.prog} --help'.\n")


def build_parser(words: Sequence[str] | None = None) -> Parser:
    """The parser of the command line.

    Args:
        words: the command line; only the command that it names gets its flags, because help must
            not wait for the flags of others. If None, all commands get their flags.

    Returns:
        The parser.
    """
    parser = Parser(
        prog="mtdinterp",
        description="Which algorithm did a transformer learn? Exact answers on the MTD task.",
        epilog="example: mtdinterp train --order 4 --length 64 --out out/m4",
    )
    parser.add_argument("--version", action="version", version=f"mtdinterp {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=Parser
    )
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[:1].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if words is None or name in words:
            import_module(module).add_arguments(command)
            add_plugin_flag(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Bad input, which the library reports as ValueError or OSError, is one sentence and exit code 2.
    Any other exception is a defect and keeps its traceback.

    Args:
        arguments: command-line arguments; those of the process if None.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    with _plain_plugin_warnings():
        # The parser lists installed plugins, and may warn about them.
        options = build_parser(words).parse_args(words)
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Run the command that was parsed; returns the exit code."""
    try:
        load_plugins(options)
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). Python flushes again at exit, which must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # 128 + SIGPIPE, as a shell reports it
    except (ValueError, OSError) as error:
        return _refuse(options, str(error))
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        return _refuse(options, "not enough memory; try a smaller model, length or batch")
    except KeyboardInterrupt:
        print(f"mtdinterp {options.command}: interrupted", file=sys.stderr)
        return 130


@contextmanager
def _plain_plugin_warnings() -> Iterator[None]:
    """Show warnings about plugins as sentences, without the source location."""
    usual = warnings.showwarning

    def show(message: Any, category: type[Warning], *place: Any, **options: Any) -> None:
        if issubclass(category, PluginWarning):
            print(f"mtdinterp: {printable(str(message))}", file=sys.stderr)
        else:
            usual(message, category, *place, **options)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = usual


def _refuse(options: argparse.Namespace, sentence: str) -> int:
    shown = sentence if len(sentence) <= LONGEST_MESSAGE else sentence[:LONGEST_MESSAGE] + "…"
    print(f"mtdinterp {options.command}: {printable(shown)}", file=sys.stderr)
    return 2


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory ran out. torch's own class is too heavy to import; on the CPU it has none."""
    if isinstance(error, MemoryError):
        return True
    return type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)


if __name__ == "__main__":
    sys.exit(main())
