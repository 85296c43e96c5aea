"""What the driver asks of an engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable


class EngineError(ValueError):
    """An engine that cannot be used here, with the reason in one sentence."""


@dataclass(frozen=True)
class Resources:
    """What a cell may use, and what it needs besides its files."""

    threads: int = 1
    """CPUs per cell."""
    most_at_once: int | None = None
    """How many cells may run at once; as many as fit if None."""
    most_crashes: int = 5
    """The cell fails after so many attempts in a row that died without progress."""
    plugins: Sequence[Path] = field(default=())
    """Plugin files that every cell loads."""


@runtime_checkable
class Engine(Protocol):
    """Starts cells and notices that they have ended; how they ended is in their files."""

    name: str

    def room(self) -> int:
        """How many more cells can be started now."""
        ...

    def start(self, directory: Path) -> None:
        """Start a cell."""
        ...

    def ended(self) -> list[str]:
        """The names of the cells that have ended since the last call, in whatever way."""
        ...

    def last_words(self, directory: Path) -> str:
        """What a cell's process printed last, if it died before its first attempt."""
        ...

    def stop(self) -> None:
        """Ask all cells to save and end, and wait until they have."""
        ...

    def kill(self) -> None:
        """End all cells at once."""
        ...

    def close(self) -> None:
        """Release what the engine holds; no cell runs any more."""
        ...
