"""The command line. Only the standard library is imported here: help and errors must be instant."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from mtdinterp import __version__

COMMANDS = {
    "train": (
        "mtdinterp.commands.train",
        "train a model and watch how far it is from the construction",
    ),
    "zoo": ("mtdinterp.commands.zoo", "list the trained models that ship with the package"),
    "probe": (
        "mtdinterp.commands.probe",
        "say what a checkpoint learned: π, β, its algorithm and where it is",
    ),
    "patch": (
        "mtdinterp.commands.patch",
        "change a model's run at one place, or at every place in turn",
    ),
    "app": (
        "mtdinterp.commands.app",
        "look at a model's run in a local page, change it and see what follows",
    ),
    "report": (
        "mtdinterp.commands.report",
        "write a page about checkpoints to hand to a colleague",
    ),
    "reproduce": (
        "mtdinterp.commands.reproduce",
        "make the paper's figures again, its claims next to measurements",
    ),
    "construct": (
        "mtdinterp.commands.construct",
        "write an exact construction as a checkpoint and compare it",
    ),
    "bench": ("mtdinterp.commands.bench", "measure speed and memory, as ratios in one run"),
}


class Parser(argparse.ArgumentParser):
    """One clear sentence and exit code 2 for bad input."""

    def error(self, message: str) -> NoReturn:
        sentence = message[:1].upper() + message[1:]
        self.exit(2, f"{self.prog}: {sentence}. See '{self.prog} --help'.\n")


def build_parser() -> Parser:
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
        import_module(module).add_arguments(
            commands.add_parser(
                name,
                help=summary,
                description=summary[:1].upper() + summary[1:] + ".",
                formatter_class=argparse.RawDescriptionHelpFormatter,
            )
        )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = build_parser().parse_args(arguments)
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Whoever was reading has seen enough (`| head`); Python must not complain again when it
        # flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # 128 + SIGPIPE, as a shell would say
    except (ValueError, OSError) as error:
        # What the library refuses is bad input; anything else is a defect and keeps its traceback.
        print(f"mtdinterp {options.command}: {error}", file=sys.stderr)
        return 2
    except (MemoryError, RuntimeError) as error:
        # torch's own class for it is too heavy to import here, and on the CPU it has none.
        no_memory = type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(
            error
        )
        if isinstance(error, RuntimeError) and not no_memory:
            raise
        print(
            f"mtdinterp {options.command}: not enough memory for this; try something smaller",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"mtdinterp {options.command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
