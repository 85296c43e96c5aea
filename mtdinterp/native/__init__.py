"""Compiled kernels, and the choice between them and the Python implementations.

The environment variable MTDINTERP_KERNEL decides: "eager" never uses the kernels, "fused" makes it
an error if they cannot be compiled, and "auto" (the default) uses them where they apply.
"""

import os

from mtdinterp.checks import check_option
from mtdinterp.native import kernels
from mtdinterp.native.build import load_library
from mtdinterp.native.failures import BuildError

__all__ = ["BuildError", "kernels", "load_library", "use_kernels"]

CHOICES = ("auto", "eager", "fused")


def use_kernels() -> bool:
    """Whether to use the compiled kernels; an error if they are required but not available."""
    wanted = os.environ.get("MTDINTERP_KERNEL") or "auto"
    choice = check_option("MTDINTERP_KERNEL", wanted, CHOICES)
    if choice == "eager":
        return False
    available = load_library() is not None
    if choice == "fused" and not available:
        raise BuildError("MTDINTERP_KERNEL=fused, but the compiled kernels are not available")
    return available
