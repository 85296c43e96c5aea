"""Progress on standard error: a bar on a terminal, one line per stage elsewhere."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stages(total: int) -> Iterator[Callable[[str], None]]:
    """Show progress through a number of stages.

    Args:
        total: number of stages.

    Returns:
        A context manager whose value is a function to call with each stage's name as it begins.
    """
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    bar = tqdm(
        total=total,
        file=sys.stderr,
        leave=False,
        disable=not terminal,
        bar_format="{desc:<24} |{bar:30}| {n_fmt}/{total_fmt} {elapsed}",
    )
    started = False

    def begin(name: str) -> None:
        nonlocal started
        if started:
            bar.update()
        started = True
        bar.set_description(name)
        if not terminal:
            print(f"{name} …", file=sys.stderr, flush=True)

    try:
        yield begin
    finally:
        bar.close()


class LiveLine:
    """Training progress: one line that updates on a terminal, one line per evaluation elsewhere."""

    INTERVAL = 0.2
    """Seconds between updates."""

    def __init__(self, total: int, stream: Any = None) -> None:
        """
        Args:
            total: steps of the whole run.
            stream: where to write; standard error if None.
        """
        self.total = total
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.lost = False
        self.latest = ""
        self.step = 0
        self.first = 0
        self.started_at = time.monotonic()
        self.shown_at = 0.0

    def started(self, step: int, latest: str = "") -> None:
        """Training starts or resumes at this step, with the latest evaluation if there is one."""
        self.step = step
        self.first = step
        self.latest = latest
        self.started_at = time.monotonic()

    def stepped(self, step: int) -> None:
        """A training step is done."""
        self.step = step
        now = time.monotonic()
        if self.terminal and now - self.shown_at >= self.INTERVAL:
            self.shown_at = now
            width = shutil.get_terminal_size().columns - 1
            self.write("\r\x1b[2K" + f"{self.latest} {self.pace()}"[:width])

    def evaluated(self, step: int, text: str) -> None:
        """An evaluation is done."""
        self.step = step
        self.latest = text
        if not self.terminal:
            self.write(f"{text} {self.pace()}\n")

    def pace(self) -> str:
        """Step, steps per second and time left; a narrow terminal cuts off this end of the line."""
        taken = self.step - self.first
        if not taken:
            return f"{self.step}/{self.total}"
        seconds = time.monotonic() - self.started_at
        rate = taken / seconds
        speed = f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
        left = int((self.total - self.step) * seconds / taken)
        return f"{self.step}/{self.total} {speed} steps/s {_clock(left)}"

    def write(self, text: str) -> None:
        """Write, unless the terminal is gone; losing it must not stop the training."""
        if self.lost:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:
            self.lost = True

    def close(self) -> None:
        """Clear the line on a terminal."""
        if self.terminal:
            self.write("\r\x1b[2K")


def _clock(seconds: int) -> str:
    """Seconds as hours, minutes and seconds."""
    minutes, left = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
