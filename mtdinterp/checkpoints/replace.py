"""Files and directories that appear complete or not at all."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtdinterp.checkpoint_files import UNFINISHED, CheckpointError


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A temporary directory next to `target`, to be filled and moved there when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file next to `path`, which replaces it atomically at the end."""
    handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    os.close(handle)
    unfinished = Path(name)
    try:
        yield unfinished
        unfinished.chmod(0o666 & ~_umask())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Exclude other writers from the directory; the lock ends with the process at the latest."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"{directory}: another run is writing to this directory"
            ) from None
        yield
    finally:
        os.close(handle)


def move_into_place(staging: Path, target: Path) -> None:
    """Move a filled directory to the target, replacing any directory at that path."""
    if not target.exists() or not any(target.iterdir()):
        staging.rename(target)  # replaces an empty directory atomically
        return
    # A full directory cannot be replaced in one call: move it aside, move the new one in, and move
    # it back if that fails. The old one is removed only when the new one is in place.
    with locked(target):
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        target.rename(aside / "old")
        try:
            staging.rename(target)
        except BaseException:
            (aside / "old").rename(target)
            aside.rmdir()
            raise
        shutil.rmtree(aside)


def open_to_umask(directory: Path) -> None:
    """Give a private staging directory the permissions of an ordinary new directory."""
    directory.chmod(0o777 & ~_umask())


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
