"""Progress on standard error: a bar on a terminal, a line a stage elsewhere."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def stages(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with each stage's name as it begins."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    bar = tqdm(
        total=total,
        file=sys.stderr,
        leave=False,
        disable=not terminal,
        bar_format="{desc:<24} |{bar:30}| {n_fmt}/{total_fmt} {elapsed}",
    )
    begun = False

    def begin(name: str) -> None:
        nonlocal begun
        if begun:
            bar.update()
        begun = True
        bar.set_description(name)
        if not terminal:
            print(f"{name} …", file=sys.stderr, flush=True)

    try:
        yield begin
    finally:
        bar.close()


class LiveLine:
    """Training as one line that renews itself on a terminal, and as a line an evaluation
    elsewhere."""

    INTERVAL = 0.2
    """Seconds between renewals."""

    def __init__(self, total: int, stream: Any = None) -> None:
        self.total, self.stream = total, stream or sys.stderr
        self.terminal, self.lost = self.stream.isatty(), False
        self.latest, self.step, self.first, self.begun, self.shown = "", 0, 0, time.monotonic(), 0.0

    def started(self, step: int, latest: str = "") -> None:
        """Training begins, or goes on, at this step, perhaps with an evaluation already."""
        self.step, self.first, self.latest = step, step, latest
        self.begun = time.monotonic()

    def stepped(self, step: int) -> None:
        self.step = step
        now = time.monotonic()
        if self.terminal and now - self.shown >= self.INTERVAL:
            self.shown = now
            width = shutil.get_terminal_size().columns - 1
            self.write("\r\x1b[2K" + f"{self.latest} {self.pace()}"[:width])

    def evaluated(self, step: int, text: str) -> None:
        self.step, self.latest = step, text
        if not self.terminal:
            self.write(f"{text} {self.pace()}\n")

    def pace(self) -> str:
        """Step, steps a second and time left; at the end of the line, where a narrow terminal
        cuts."""
        taken, seconds = self.step - self.first, time.monotonic() - self.begun
        if not taken:
            return f"{self.step}/{self.total}"
        minutes, left = divmod(int((self.total - self.step) * seconds / taken), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"
        rate = taken / seconds
        speed = f"{rate:.0f}" if rate >= 10 else f"{rate:.2g}"
        return f"{self.step}/{self.total} {speed} steps/s {clock}"

    def write(self, text: str) -> None:
        if self.lost:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except OSError:  # whoever watched is gone; what is trained must not go with them
            self.lost = True

    def close(self) -> None:
        if self.terminal:
            self.write("\r\x1b[2K")
