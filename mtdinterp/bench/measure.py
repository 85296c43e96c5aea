"""How times and memory are measured: interleaved medians, and the peak of resident memory."""

import ctypes
import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median


@dataclass(frozen=True)
class Measurement:
    """One line of the table; `aim` is the project's target, where it has one."""

    name: str
    value: float | None
    unit: str
    aim: float | None = None
    at_most: bool = False
    """Whether the aim is an upper bound."""


def interleaved_seconds(
    actions: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """Time several actions in turn, so that a slow moment of the machine affects all of them.

    Args:
        actions: the actions by name; each runs once more beforehand to warm up.
        repeats: how often each action is timed.

    Returns:
        The median time of each action, in seconds.
    """
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(repeats):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def peak_megabytes(action: Callable[[], object]) -> float | None:
    """The rise of resident memory while `action` runs; None if the system does not report it."""
    status = Path("/proc/self/status")
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        return None
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)  # otherwise memory kept from earlier runs hides what this one needs
    try:
        reset.write_text("5")  # resets the high-water mark to the memory that is resident now
    except OSError:
        return None
    before = _status_kilobytes(status, "VmRSS")
    action()
    return (_status_kilobytes(status, "VmHWM") - before) / 1024


def _status_kilobytes(status: Path, key: str) -> int:
    lines = status.read_text().splitlines()
    line = next(line for line in lines if line.startswith(key + ":"))
    return int(line.split()[1])
