"""What several groups share: the task, and a switch to run without compiled kernels."""

import os
from collections.abc import Callable
from typing import TypeVar

from mtdinterp.tasks import MTDTask

VOCAB_SIZE = 5
Result = TypeVar("Result")


def bench_task(order: int = 4) -> MTDTask:
    """The random task that benchmarks sample from."""
    return MTDTask.random(VOCAB_SIZE, order, seed=0)


def eagerly(action: Callable[[], Result]) -> Callable[[], Result]:
    """The action without compiled kernels."""

    def run() -> Result:
        before = os.environ.get("MTDINTERP_KERNEL")
        os.environ["MTDINTERP_KERNEL"] = "eager"
        try:
            return action()
        finally:
            if before is None:
                del os.environ["MTDINTERP_KERNEL"]
            else:
                os.environ["MTDINTERP_KERNEL"] = before

    return run
