"""Count the changing file-system calls of an action, and make any one of them fail or kill.

An action is a function without arguments that writes through `mtdinterp.storage`. Typical use:

    n_calls = len(recorded(save))
    for place in range(n_calls):
        prepare()
        fail_at(place, save)
        check()
        prepare()
        kill_at(place, save)
        check()
"""

import errno
import inspect
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp.storage import calls

Action = Callable[[], Any]
Fault = Callable[[], None]
"""Raises an error, or ends the process."""


@dataclass(frozen=True)
class Call:
    """One changing file-system call."""

    name: str
    """The function of `storage.calls`."""
    path: Path
    """The file or directory; of a rename, the old path."""
    target: Path | None = None
    """The new path of a rename, or the second path of an exchange."""
    content: bytes = b""
    """What was written."""


def recorded(action: Action) -> list[Call]:
    """The changing calls of an action, in order."""
    with _intercepted() as record:
        action()
    return record


def fail_at(place: int, action: Action, code: int = errno.ENOSPC) -> OSError | ValueError | None:
    """Run an action in which one call fails; a failing write writes half of its bytes.

    Args:
        place: the number of the call, from 0.
        action: the action.
        code: the system's error.

    Returns:
        The error that the action raised, if any.
    """

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    try:
        with _intercepted(place, fail):
            action()
    except (OSError, ValueError) as error:
        return error
    return None


def kill_at(place: int, action: Action) -> bool:
    """Run an action in a process of its own that is killed just before one call.

    A process that is killed at a write has written half of its bytes.

    Args:
        place: the number of the call, from 0.
        action: the action.

    Returns:
        Whether the process was killed; False if it ended before that call.
    """
    child = os.fork()
    if child == 0:
        try:
            with _intercepted(place, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                action()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or status == 0, "the action failed by itself"
    return killed


@contextmanager
def without_exchange() -> Iterator[None]:
    """A system that cannot exchange two paths in one step."""
    original = calls.exchange

    def refuse(first: Path, second: Path) -> None:
        raise calls.CannotExchange(errno.ENOSYS, os.strerror(errno.ENOSYS))

    calls.exchange = refuse
    try:
        yield
    finally:
        calls.exchange = original


@contextmanager
def _intercepted(place: int | None = None, fault: Fault | None = None) -> Iterator[list[Call]]:
    """Record every changing call, and run a fault instead of the call at one place."""
    record: list[Call] = []
    handles: dict[int, Path] = {}
    originals = _changing_calls()

    def wrapped(name: str) -> Callable[..., Any]:
        original = originals[name]

        def call(first: Any, *others: Any) -> Any:
            is_handle = isinstance(first, int)
            path = handles[first] if is_handle else Path(first)
            target = Path(others[0]) if others and not is_handle else None
            content = bytes(others[0]) if name == "write" else b""
            record.append(Call(name, path, target, content))
            if fault is not None and len(record) - 1 == place:
                if name == "write":
                    original(first, content[: len(content) // 2])
                fault()
            result = original(first, *others)
            if name == "create_file":
                handles[result] = path
            return result

        return call

    try:
        for name in originals:
            setattr(calls, name, wrapped(name))
        yield record
    finally:
        for name, original in originals.items():
            setattr(calls, name, original)


def _changing_calls() -> dict[str, Callable[..., Any]]:
    """All functions of `storage.calls`, by name."""
    functions = inspect.getmembers(calls, inspect.isfunction)
    return {name: function for name, function in functions if function.__module__ == calls.__name__}
