"""Load the compiled kernels, compiling them first if the cache has none that can be trusted.

The name of the library depends on sources, compiler, flags and processor, so that a change of any
of them compiles it again. `cache` chooses the directory, `compiling` runs the compiler, and
`library_files` publishes, verifies and loads. Without a compiler, or if compilation fails,
`load_library` logs one warning and returns None, and the package uses its Python implementations.
"""

import ctypes
import logging
import os
import sys
from functools import lru_cache
from pathlib import Path

from mtdinterp.native.cache import cache_directory, locked, private_directory, scratch_directory
from mtdinterp.native.compiling import (
    FULL,
    Compiler,
    compile_library,
    disk_full,
    find_compiler,
    library_key,
)
from mtdinterp.native.failures import BuildError, LoadFailed, UnusableLibrary
from mtdinterp.native.library_files import Record, VerifiedLibrary, publish, verified_library

log = logging.getLogger("mtdinterp")


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL | None:
    """The compiled kernels, compiled first if necessary; None, with a warning, if impossible."""
    # Torch comes first, so that the kernels use its OpenMP runtime instead of loading a second one.
    import torch  # noqa: F401

    try:
        return _load()
    except OSError as error:
        log.warning(
            "mtdinterp: compiled kernels are not available, using the slower ones (%s)", error
        )
        return None


def required_library() -> ctypes.CDLL:
    """The kernels, for code that runs only if `use_kernels` is true."""
    library = load_library()
    if library is None:
        raise BuildError("the compiled kernels are not available")
    return library


def _load() -> ctypes.CDLL:
    """Load the library of this machine; one that is damaged or does not load is compiled again."""
    compiler = find_compiler()
    path = cache_directory() / f"kernels-{library_key(compiler)}.so"
    try:
        library = verified_library(path)
    except UnusableLibrary as error:
        return _compiled(compiler, path, str(error)).load()
    try:
        return library.load()
    except LoadFailed as error:
        # Once only: where no library can be loaded, every command would compile otherwise.
        if library.record.rebuilt:
            raise
        return _compiled(compiler, path, str(error), library.record).load()


def _compiled(
    compiler: Compiler, path: Path, reason: str, failed: Record | None = None
) -> VerifiedLibrary:
    """Compile the library, unless another process does it first.

    Args:
        compiler: the compiler.
        path: the library's place in the cache.
        reason: why the one that is there is not used.
        failed: the record of a library that does not load.

    Returns:
        The library, verified.
    """
    if not os.access(path.parent, os.W_OK):
        path = private_directory(f"{path.parent} is read-only") / path.name
    try:
        with locked(path):
            library = _made_meanwhile(path, failed)
            if library is not None:
                return library
            again = f"again: {reason}" if os.path.lexists(path) else "once"
            print(f"mtdinterp: compiling kernels for this machine ({again}) …", file=sys.stderr)
            with scratch_directory(path) as scratch:
                built = compile_library(compiler, scratch)
                publish(built, path, rebuilt=failed is not None)
            return verified_library(path)
    except BuildError:
        raise
    except OSError as error:
        if error.errno in FULL:
            raise disk_full(path.parent) from error
        raise BuildError(f"{path} cannot be written: {error.strerror}") from error


def _made_meanwhile(path: Path, failed: Record | None) -> VerifiedLibrary | None:
    """The library that another process compiled while this one waited for the lock, if any."""
    try:
        library = verified_library(path)
    except UnusableLibrary:
        return None
    if library.record == failed:
        library.close()
        return None
    return library
