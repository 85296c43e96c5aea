"""Flags that several commands share, spelt once, and their checks that need no heavy import."""

import argparse
from collections.abc import Callable


def at_least(minimum: int) -> Callable[[str], int]:
    """An argparse type: an integer with a lower bound."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected an integer, got {text!r}") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"expected an integer ≥ {minimum}, got {value}")
        return value

    return parse


def add_task_flags(parser: argparse.ArgumentParser, length: int = 64) -> None:
    parser.add_argument("--vocab-size", type=at_least(2), default=5, metavar="Q", help="alphabet size (5)")
    parser.add_argument("--order", type=at_least(1), default=4, metavar="M", help="number of lags (4)")
    parser.add_argument("--length", type=at_least(2), default=length, metavar="T", help=f"context length ({length})")
    parser.add_argument("--task-seed", type=at_least(0), default=0, metavar="N",
                        help="seed of the transition matrix (0)")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of everything else (0)")


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--architecture", choices=("disentangled", "standard"), default="disentangled")
    parser.add_argument("--layers", type=at_least(1), default=3, metavar="L", help="number of layers (3)")


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON alone")


def check_order_below_length(options: argparse.Namespace) -> None:
    if options.order >= options.length:
        raise ValueError(f"--order must be less than --length {options.length}, got {options.order}")
