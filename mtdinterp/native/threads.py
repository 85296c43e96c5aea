"""How many threads the kernels use, and how many torch uses around them.

Torch spreads even small operations over its threads, and waking those takes longer than the work. A
training step has dozens of small operations around one kernel call that is worth spreading.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_lock = threading.Lock()
_users = 0
"""How many contexts are open, in all Python threads: torch's number belongs to the process."""
_kernels: int | None = None


def kernel_threads() -> int:
    """The number of threads for a kernel: torch's, or what it was before `torch_on_one_thread`."""
    return _kernels or torch.get_num_threads()


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """A context in which torch computes on one thread and the kernels on as many as before.

    Contexts may be nested, and may overlap in several Python threads: the last to end restores
    what the first one found.
    """
    global _kernels, _users
    with _lock:
        if _users == 0:
            _kernels = torch.get_num_threads()
        _users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _kernels is not None:
                torch.set_num_threads(_kernels)
                _kernels = None
