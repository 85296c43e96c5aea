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
    """A directory beside `target` to fill and move there when complete, so that nobody ever sees
    half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write, which takes its place in one step."""
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
    """Nobody else may write to the directory meanwhile; the lock ends with the process, however
    that ends."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(f"{directory}: a run is writing there") from None
        yield
    finally:
        os.close(handle)


def move_into_place(staging: Path, target: Path) -> None:
    """Make a filled directory the target, in place of what is there."""
    if not target.exists() or not any(target.iterdir()):
        staging.rename(target)  # replaces an empty directory in one step
        return
    # A full directory cannot be replaced in one call: step aside, move in, and back if that fails.
    # The old one is removed only when the new one is in its place.
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
    """Give a private staging directory the permissions that ordinary directories get here."""
    directory.chmod(0o777 & ~_umask())


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask
