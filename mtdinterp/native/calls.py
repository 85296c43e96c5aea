"""Call a C function of the library, and turn what it returns into a Python error."""

from typing import Any

from mtdinterp.native.build import required_library

OUT_OF_MEMORY = 1
OUT_OF_RANGE = 2
"""`Failure` of failure.h."""


def run_kernel(name: str, *arguments: Any) -> bool:
    """Call a kernel.

    Args:
        name: the C function, which returns a `Failure`.
        *arguments: its arguments, as ctypes takes them.

    Returns:
        Whether all tokens and uniform numbers were in their ranges. If not, results are undefined.

    Raises:
        MemoryError: if the kernel could not allocate its buffers.
    """
    failure = getattr(required_library(), name)(*arguments)
    if failure == OUT_OF_MEMORY:
        raise MemoryError(f"{name}: not enough memory for the kernel; use a smaller batch")
    return failure != OUT_OF_RANGE
