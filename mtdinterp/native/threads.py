"""How many threads the kernels use, and how many torch uses around them.

Torch spreads even small operations over its threads, and waking those takes longer than the work. A
training step has dozens of small operations around one kernel call that is worth spreading.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_kernels: int | None = None


def kernel_threads() -> int:
    """The number of threads for a kernel: torch's, or what it was before `torch_on_one_thread`."""
    return _kernels or torch.get_num_threads()


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """A context in which torch computes on one thread and the kernels on as many as before."""
    global _kernels
    threads = torch.get_num_threads()
    outer = _kernels
    _kernels = outer or threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _kernels = outer
