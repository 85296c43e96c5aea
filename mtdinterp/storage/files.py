"""Replace a file so that its path always shows a complete file, the old or the new one.

The new contents go to an unfinished file in the same directory, are synced to the disk, and take
the place of the old file by a rename. Syncing the directory then makes the rename itself last. A
process that is killed in between leaves its unfinished file, which the next write in that directory
removes: an unfinished file is locked while its writer lives, and the lock ends with the process.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mtdinterp.bounded_files import resolved
from mtdinterp.storage import calls

UNFINISHED = ".writing-"
"""Prefix of a file that is not complete yet."""
UNFINISHED_NAME = re.compile(re.escape(UNFINISHED) + "[0-9a-f]{16}")
WITHOUT_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a file system answers if it cannot lock. NFS locks only what is open for writing, which a
directory never is."""
MOST_TRIES = 100
"""How often a new name is tried; another process may take a new file for one left behind."""


class UnwritableFile(OSError):
    """A file or directory that cannot be written, with the reason in one sentence."""


class AlreadyThere(UnwritableFile):
    """Another process has written the file, or filled the directory, first."""


def write_file(path: Path, content: bytes) -> None:
    """Write a file, replacing an older one in one step; both survive a loss of power.

    Args:
        path: the file; its directory is created if necessary. A link stays a link, and the file
            that it points to is replaced.
        content: what the file shall contain.

    Raises:
        UnwritableFile: with the reason. The path still shows a complete file, which is the older
            one unless only the last step failed: making the rename last.
    """
    target = resolved(path)
    with named_failures(path):
        if target.exists() and not target.is_file():
            raise UnwritableFile(f"{path}: expected a regular file or a new name")
        make_directories(target.parent)
        remove_unfinished(target.parent)
        unfinished, handle = _new_file(target.parent)
        try:
            _write_all(handle, content)
            if target.exists():
                calls.set_mode(handle, stat.S_IMODE(target.stat().st_mode))
            calls.sync_file(handle)
            calls.rename(unfinished, target)
        except BaseException:
            with contextlib.suppress(OSError):
                calls.unlink(unfinished)
            raise
        finally:
            os.close(handle)
        calls.sync_directory(target.parent)


def write_new_file(path: Path, content: bytes) -> None:
    """Write a file that does not exist yet; of several writers, only the first succeeds.

    Args:
        path: the file; its directory exists.
        content: what the file shall contain.

    Raises:
        AlreadyThere: if the file exists.
        UnwritableFile: with the reason.
    """
    with named_failures(path):
        remove_unfinished(path.parent)
        unfinished, handle = _new_file(path.parent)
        try:
            _write_all(handle, content)
            calls.sync_file(handle)
            # A rename would replace a file that another process has written meanwhile.
            calls.link(unfinished, path)
        except FileExistsError as error:
            raise AlreadyThere(f"{path}: another process has written this file first") from error
        finally:
            with contextlib.suppress(OSError):
                calls.unlink(unfinished)
            os.close(handle)
        calls.sync_directory(path.parent)


@contextmanager
def named_failures(path: Path) -> Iterator[None]:
    """Convert errors of the system to an UnwritableFile that names what was to be written."""
    try:
        yield
    except UnwritableFile:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        advice = ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            advice = "; free some space and try again"
        failure = UnwritableFile(f"{path}: cannot be written ({reason}){advice}")
        failure.errno = error.errno
        raise failure from error


def make_directories(path: Path) -> None:
    """Create a directory and its missing parents, so that they survive a loss of power."""
    missing = [entry for entry in (path, *path.parents) if not entry.exists()]
    for entry in reversed(missing):
        with contextlib.suppress(FileExistsError):
            calls.make_directory(entry)
        calls.sync_directory(entry.parent)


def remove_unfinished(directory: Path) -> None:
    """Remove the unfinished files of processes that were killed."""
    for entry in entries_of(directory):
        if UNFINISHED_NAME.fullmatch(entry.name):
            with contextlib.suppress(OSError):
                _remove_if_abandoned(Path(entry.path))


def is_held(handle: int, path: Path, without_locks: bool = True) -> bool:
    """Lock an open file or directory, and find out whether it is still the one at its path.

    Args:
        handle: the open file or directory.
        path: where it was opened.
        without_locks: the answer for a file system that cannot lock it. A process may use what it
            has just made itself; it must not remove what another one may still use.

    Returns:
        False if another process holds the lock, or has moved or removed the file.
    """
    try:
        locked = can_lock(handle)
        found = os.stat(path, follow_symlinks=False)
    except (BlockingIOError, FileNotFoundError):
        return False
    return os.path.samestat(os.fstat(handle), found) and (locked or without_locks)


def can_lock(handle: int) -> bool:
    """Lock an open file or directory; False if its file system cannot.

    Raises:
        BlockingIOError: if another process holds the lock.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno in WITHOUT_LOCKS:
            return False
        raise
    return True


def entries_of(directory: Path) -> list[os.DirEntry[str]]:
    """What a directory contains."""
    with os.scandir(directory) as found:
        return list(found)


def random_name(prefix: str) -> str:
    """A name that no other process uses."""
    return prefix + secrets.token_hex(8)


def _remove_if_abandoned(path: Path) -> None:
    """Remove an unfinished file of this user if no process holds its lock."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        is_own_file = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if is_own_file and is_held(handle, path, without_locks=False):
            calls.unlink(path)
    finally:
        os.close(handle)


def _new_file(directory: Path) -> tuple[Path, int]:
    """A new file that is locked, and its descriptor."""
    for _ in range(MOST_TRIES):
        path = directory / random_name(UNFINISHED)
        handle = calls.create_file(path)
        # Between these two calls, another process may have taken the file for an abandoned one.
        if is_held(handle, path):
            return path, handle
        os.close(handle)
    raise UnwritableFile(f"{directory}: other processes remove every new file in this directory")


def _write_all(handle: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[calls.write(handle, rest) :]
