"""What the driver asks of an engine."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from mtdinterp.sweep.attempts import MOST_CRASHES

LAST_BYTES = 2000


class EngineError(ValueError):
    """An engine that cannot be used here, with the reason in one sentence."""


@dataclass(frozen=True)
class Resources:
    """What all cells together may use, and what a cell needs besides its files."""

    most_at_once: int | None = None
    """How many cells may run at once; as many as fit if None."""
    most_crashes: int = MOST_CRASHES
    """A cell fails after this many consecutive attempts that died without saving a new step."""
    plugins: Sequence[Path] = field(default=())
    """Plugin files that every cell loads."""


def tail(path: Path) -> str:
    """The end of a text file; nothing if it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LAST_BYTES))
        return file.read().decode(errors="replace").strip()
    return ""


@runtime_checkable
class Engine(Protocol):
    """Starts cells and notices that they have ended; how they ended is in their files."""

    name: str

    def has_room(self, threads: int) -> bool:
        """Whether one more cell with so many threads can be started now."""
        ...

    def start(self, directory: Path, threads: int) -> None:
        """Start a cell."""
        ...

    def ended(self) -> list[str]:
        """The names of the cells that have ended since the last call, in whatever way."""
        ...

    def last_words(self, directory: Path) -> str:
        """What a cell's process printed last, if it died before its first attempt."""
        ...

    def stop(self) -> int:
        """Ask all cells to save and end, and wait until they have.

        Returns:
            How many cells did not end in time and were killed.
        """
        ...

    def kill(self) -> None:
        """End all cells at once."""
        ...

    def close(self) -> None:
        """Release what the engine holds; no cell runs any more."""
        ...
