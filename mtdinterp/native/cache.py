"""Where compiled kernels are kept: a directory that only this user can write to.

Code loaded from it runs with the user's rights, so a directory that other users can write to is not
used. Without a usable one, kernels are compiled into a temporary directory, for one process.
"""

import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ABANDONED_SECONDS = 3600.0
"""A directory of a compilation this old, under whatever lock, was left behind by a kill."""

log = logging.getLogger("mtdinterp")


def cache_directory() -> Path:
    """A directory that only this user can write to: the cache, or a temporary one without it."""
    chosen = os.environ.get("MTDINTERP_CACHE")
    caches = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        directory = Path(chosen)
    elif caches:
        directory = Path(caches) / "mtdinterp"
    else:
        home = os.path.expanduser("~")
        if home == "~":  # $HOME is not set and the system does not know the user
            return private_directory("there is no home directory; set MTDINTERP_CACHE")
        directory = Path(home) / ".cache" / "mtdinterp"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        return private_directory(f"{directory} cannot be created: {error.strerror}")
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        return private_directory(f"{directory} can be written by others")
    return directory


@lru_cache(maxsize=1)
def private_directory(reason: str) -> Path:
    """A temporary directory for this process only, if the cache cannot be used."""
    log.warning("mtdinterp: kernels are compiled for this process only (%s)", reason)
    directory = tempfile.TemporaryDirectory(prefix="mtdinterp-")
    _kept.append(directory)
    return Path(directory.name)


_kept: list[tempfile.TemporaryDirectory] = []
"""Temporary directories, which are removed when the process ends."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process compile a library while others wait; the lock ends when its holder does.

    Args:
        path: the library's place in the cache.

    Yields:
        Nothing, while this process holds the lock.
    """
    import fcntl

    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def scratch_directory(path: Path) -> Iterator[Path]:
    """A directory to compile a library in, next to its place; call it under the library's lock.

    Args:
        path: the library's place in the cache.

    Yields:
        The directory, which is removed in the end.
    """
    prefix = f"build-{path.stem}-"
    _remove_abandoned(path.parent, prefix)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=prefix) as scratch:
        yield Path(scratch)


def _remove_abandoned(directory: Path, prefix: str) -> None:
    """Remove what killed compilations left behind.

    With `prefix` they are of the library whose lock this process holds, so nobody uses them. Those
    of other libraries may be in use, unless they are old.
    """
    for found in directory.glob("build-*"):
        with contextlib.suppress(FileNotFoundError):  # another process may be removing it too
            age = time.time() - found.lstat().st_mtime
            if found.name.startswith(prefix) or age > ABANDONED_SECONDS:
                # What cannot be removed does no harm; links are not followed.
                shutil.rmtree(found, ignore_errors=True)
