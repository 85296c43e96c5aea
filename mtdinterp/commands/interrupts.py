"""Signals that ask a command to stop: they are recorded, so that the command can save first."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a request to terminate, and a lost terminal."""


@contextmanager
def recording_stop_signals(stop: list[int]) -> Iterator[None]:
    """Append a signal that asks to stop to `stop`, instead of ending the process.

    The caller ends its work as soon as `stop` is not empty. A second signal raises
    KeyboardInterrupt at once. Signals that are already ignored, as under nohup, stay ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        # Only the main thread may set handlers, and signals arrive only there.
        yield
        return
    streams = [stream for stream in (sys.__stdout__, sys.__stderr__) if stream is not None]
    terminals = [stream.fileno() for stream in streams if stream.isatty()]

    def handle(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            _detach(terminals)
        elif stop:
            raise KeyboardInterrupt
        # SIGHUP may come twice for one lost terminal, from the shell and from the system.
        stop.append(number)

    handled = [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    before = [signal.signal(number, handle) for number in handled]
    try:
        yield
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def recording(signals: Sequence[signal.Signals], asked: list[int]) -> Iterator[None]:
    """Append signals to a list instead of ending the process, however often they come."""

    def handle(number: int, frame: Any) -> None:
        asked.append(number)

    before = [signal.signal(number, handle) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def _detach(terminals: list[int]) -> None:
    """Redirect a lost terminal to the null device, because writing to it would be an error."""
    with open(os.devnull, "wb") as null:
        for terminal in terminals:
            os.dup2(null.fileno(), terminal)
