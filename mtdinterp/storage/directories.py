"""Replace a directory so that its path always leads to a complete one, the old or the new one.

A new directory is filled next to its target under a hidden name, and moved there when it is
complete. Where the system can exchange two paths in one step, an older directory is exchanged with
the new one and then removed. Elsewhere it is moved aside first; if the process is killed before the
new one is in place, `recover` moves the old one back.

A directory is locked while a process fills or replaces it. The lock belongs to the directory and
not to its name, so it lasts through every move, and it ends with the process. An unlocked hidden
directory was therefore left behind by a killed process, and the next `staged` removes it.
"""

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from mtdinterp.bounded_files import resolved
from mtdinterp.storage import calls
from mtdinterp.storage.files import (
    MOST_TRIES,
    AlreadyThere,
    UnwritableFile,
    entries_of,
    is_held,
    make_directories,
    named_failures,
    random_name,
)

HIDDEN = ".mtdinterp-"
"""How the names of directories start that are not complete yet or are being replaced."""
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OWN_DIRECTORY = OPEN_DIRECTORY | os.O_NOFOLLOW
PATIENCE = 5.0
"""Seconds for which a reader tries again because the directory is being replaced."""
LONGEST_REPLACEMENT = 60.0
"""Seconds that a replacement in two steps takes at most. Only where locks are missing, time decides
whether the process that began one has died."""
PAUSE = 0.002
"""Seconds between two tries."""

Result = TypeVar("Result")


class InUse(UnwritableFile):
    """Another process is writing to the directory."""


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A new, locked directory next to `target`, to be filled and then moved there by `publish`.

    Whatever is at the staged path at the end is removed: the unfinished directory after an error,
    or the directory that was replaced. The lock lasts as long as the context.

    Args:
        target: the directory to make or replace; missing parents are created.

    Returns:
        A context manager whose value is the path of the new directory.
    """
    with named_failures(target):
        make_directories(target.parent)
        recover(target)
        _remove_abandoned(target)
        staging, handle = _new_directory(target)
    try:
        yield staging
    finally:
        # What cannot be removed now is removed by the next call for this target.
        with contextlib.suppress(OSError):
            remove_tree(staging)
        os.close(handle)


def publish_new(staging: Path, target: Path) -> None:
    """Move a filled directory to a target that is new or empty.

    Args:
        staging: the directory of `staged`, with files that are already synced.
        target: the final path.

    Raises:
        AlreadyThere: if another process has filled the target meanwhile.
        UnwritableFile: if the system refuses.
    """
    with named_failures(target):
        calls.sync_directory(staging)
        try:
            calls.rename(staging, target)  # replaces an empty directory
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise AlreadyThere(f"{target}: expected a new or empty directory") from error
            raise
        calls.sync_directory(target.parent)


def publish(staging: Path, target: Path) -> None:
    """Move a filled directory to the target, replacing any directory at that path.

    Args:
        staging: the directory of `staged`, with files that are already synced.
        target: the final path.

    Raises:
        InUse: if another process is writing to the target.
        UnwritableFile: if the system refuses. A complete directory is then in place, which is the
            old one unless only the last step failed: making the move last.
    """
    with named_failures(target):
        if not target.exists() or not any(target.iterdir()):
            publish_new(staging, target)
            return
        with locked(target):
            calls.sync_directory(staging)
            _replace(staging, target)
        calls.sync_directory(target.parent)


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Exclude other writers from a directory; the lock ends with the process at the latest.

    Raises:
        InUse: if another process holds the lock.
    """
    handle = os.open(directory, OWN_DIRECTORY)
    try:
        if not is_held(handle, directory):
            raise InUse(f"{directory}: another run is writing to this directory")
        yield
    finally:
        os.close(handle)


def recover(target: Path) -> None:
    """Finish or undo a replacement that was interrupted on a system without `exchange`.

    Args:
        target: the directory that was being replaced. Nothing happens if its process still runs.
    """
    aside = _aside(target)
    if not aside.is_dir():
        return
    handle = os.open(aside, OWN_DIRECTORY)
    try:
        if not _is_own(handle) or not is_held(handle, aside, _is_old(handle)):
            return
        if target.exists():
            # The new directory is in place. Rename the old one before its removal begins, because
            # a directory that is moved back must be complete.
            trash = target.parent / random_name(_hidden_prefix(target))
            calls.rename(aside, trash)
            remove_tree(trash)
        else:
            calls.rename(aside, target)
            calls.sync_directory(target.parent)
    finally:
        os.close(handle)


def read_version(path: Path, read: Callable[[int], Result]) -> Result:
    """Read several files of one version of a directory that another process may replace meanwhile.

    Args:
        path: the directory, or a link to it.
        read: reads the files, given a descriptor of the directory. If the directory is replaced
            meanwhile, the result or the error of `read` is dropped and it is called again.

    Returns:
        The result of `read`.

    Raises:
        FileNotFoundError: if there is no such directory.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        handle = _open_settled(path, deadline)
        try:
            result = read(handle)
            if not _was_replaced(handle, path) or time.monotonic() > deadline:
                return result
        except Exception:
            if not _was_replaced(handle, path) or time.monotonic() > deadline:
                raise
        finally:
            os.close(handle)


def settled(path: Path) -> bool:
    """Whether a directory exists, after any replacement in two steps is over."""
    try:
        handle = _open_settled(path, time.monotonic() + PATIENCE)
    except (OSError, ValueError):
        # A path with a null character is a ValueError.
        return False
    os.close(handle)
    return True


def _open_settled(path: Path, deadline: float) -> int:
    """Open a directory; wait if it is just being replaced, and undo an interrupted replacement."""
    target = resolved(path)  # the hidden directories are next to it, not next to a link
    while True:
        try:
            return os.open(path, OPEN_DIRECTORY)
        except FileNotFoundError:
            if not _aside(target).is_dir() and not target.is_dir():
                raise
        with contextlib.suppress(OSError):
            recover(target)
        if time.monotonic() > deadline:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        time.sleep(PAUSE)


def _was_replaced(handle: int, path: Path) -> bool:
    """Whether the path no longer leads to the open directory."""
    try:
        return not os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return True


def _replace(staging: Path, target: Path) -> None:
    """Put `staging` in the place of `target`, and the old directory at the path of `staging`."""
    try:
        calls.exchange(staging, target)
        return
    except calls.CannotExchange:
        pass
    aside = _aside(target)
    calls.rename(target, aside)
    try:
        calls.rename(staging, target)
    except BaseException:
        calls.rename(aside, target)
        raise
    calls.rename(aside, staging)


def _aside(target: Path) -> Path:
    """Where the old directory waits while it is replaced in two steps."""
    return target.parent / f"{_hidden_prefix(target)}replaced"


def _hidden_prefix(target: Path) -> str:
    """The start of the hidden names that belong to a target.

    It contains a digest of the target's name: the name itself may be too long, and a directory that
    somebody else has named must never be taken for one of ours, because ours are removed.
    """
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    return f"{HIDDEN}{digest}-"


def _new_directory(target: Path) -> tuple[Path, int]:
    """A new locked directory next to the target, and its descriptor."""
    for _ in range(MOST_TRIES):
        path = target.parent / random_name(_hidden_prefix(target))
        calls.make_directory(path)
        try:
            handle = os.open(path, OWN_DIRECTORY)
        except FileNotFoundError:
            continue  # another process has taken it for an abandoned one
        if is_held(handle, path):
            return path, handle
        os.close(handle)
    raise UnwritableFile(f"{target}: other processes remove every new directory next to it")


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes have left next to the target."""
    pattern = re.compile(re.escape(_hidden_prefix(target)) + "[0-9a-f]{16}")
    for entry in entries_of(target.parent):
        if pattern.fullmatch(entry.name):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(path: Path) -> None:
    handle = os.open(path, OWN_DIRECTORY)
    try:
        if _is_own(handle) and is_held(handle, path, without_locks=False):
            remove_tree(path)
    finally:
        os.close(handle)


def _is_old(handle: int) -> bool:
    """Whether an open directory was moved aside so long ago that its process must have died."""
    return time.time() - os.fstat(handle).st_ctime > LONGEST_REPLACEMENT


def _is_own(handle: int) -> bool:
    """Whether an open directory belongs to the user of this process."""
    return os.fstat(handle).st_uid == os.geteuid()


def remove_tree(path: Path) -> None:
    """Remove a directory of this package and everything in it; links are not followed.

    Args:
        path: the directory; nothing happens if there is none.
    """
    if not path.is_dir():
        return
    for entry in entries_of(path):
        if entry.is_dir(follow_symlinks=False):
            remove_tree(Path(entry.path))
        else:
            calls.unlink(Path(entry.path))
    calls.remove_directory(path)
