"""Compiled kernels, and the choice between them and the Python implementations.

`MTDINTERP_KERNEL=eager` never uses them, `fused` insists on them; unset, they are used where they
apply.
"""

import os

from mtdinterp.checks import check_option
from mtdinterp.native import kernels
from mtdinterp.native.build import BuildError, load_library

__all__ = ["BuildError", "kernels", "load_library", "use_kernels"]

CHOICES = ("auto", "eager", "fused")


def use_kernels() -> bool:
    """Whether the compiled kernels may be used; an error if they are insisted on and cannot be
    had."""
    choice = check_option("MTDINTERP_KERNEL", os.environ.get("MTDINTERP_KERNEL") or "auto", CHOICES)
    if choice == "eager":
        return False
    available = load_library() is not None
    if choice == "fused" and not available:
        raise BuildError("MTDINTERP_KERNEL=fused, but the compiled kernels are not available")
    return available
