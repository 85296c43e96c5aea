"""Progress on standard error: a bar on a terminal, a line a stage elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stages(total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with each stage's name as it begins."""
    from tqdm import tqdm

    terminal = sys.stderr.isatty()
    bar = tqdm(total=total, file=sys.stderr, leave=False, disable=not terminal,
               bar_format="{desc:<24} |{bar:30}| {n_fmt}/{total_fmt} {elapsed}")
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
