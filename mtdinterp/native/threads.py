"""How many threads the kernels use, and torch next to them.

Torch spreads even the smallest operation over its threads, and waking them takes longer than the
work: a training step has dozens of those around one kernel call that is worth spreading.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_kernels: int | None = None


def kernel_threads() -> int:
    """As many as torch uses, or used before `torch_on_one_thread`."""
    return _kernels or torch.get_num_threads()


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Inside, torch computes on one thread and the kernels on as many as before."""
    global _kernels
    threads, outer = torch.get_num_threads(), _kernels
    _kernels = outer or threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _kernels = outer
