"""Every file-system call that changes something, one function each.

The rest of `storage` calls these functions through this module, so that a test can count them, make
any one of them fail, or kill the process there.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import sys
from pathlib import Path

NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
SWAP = 2
"""RENAME_EXCHANGE of Linux and RENAME_SWAP of macOS have the same value."""
AT_CURRENT_DIRECTORY = -100
"""Linux: relative paths start at the current directory."""
WITHOUT_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a system or a file system answers if it cannot exchange two paths."""


class CannotExchange(OSError):
    """This system or file system cannot exchange two paths."""


def create_file(path: Path) -> int:
    """Create a file that does not exist yet; returns its descriptor."""
    return os.open(path, NEW_FILE, 0o666)


def write(handle: int, content: bytes | memoryview) -> int:
    """Write the beginning of some bytes; returns how many were written."""
    return os.write(handle, content)


def set_mode(handle: int, mode: int) -> None:
    """Set the permissions of an open file."""
    os.fchmod(handle, mode)


def sync_file(handle: int) -> None:
    """Wait until the contents of a file are on the disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):
        # On macOS, fsync leaves the data in the disk's own cache.
        with contextlib.suppress(OSError):
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
        # A network file system may not know the stronger call.
    os.fsync(handle)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync directories.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def rename(source: Path, target: Path) -> None:
    """Give a file or directory another name; replaces a file or an empty directory."""
    os.rename(source, target)


def link(source: Path, target: Path) -> None:
    """Give a file a second name; an error if something has that name already."""
    os.link(source, target)


def exchange(first: Path, second: Path) -> None:
    """Exchange two paths in one indivisible step.

    Raises:
        CannotExchange: if the system or the file system has no such step.
    """
    library = ctypes.CDLL(None, use_errno=True)
    names = (os.fsencode(first), os.fsencode(second))
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(*names, ctypes.c_uint(SWAP))
    elif hasattr(library, "renameat2"):
        here = ctypes.c_int(AT_CURRENT_DIRECTORY)
        failed = library.renameat2(here, names[0], here, names[1], ctypes.c_uint(SWAP))
    else:
        raise CannotExchange(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if failed:
        code = ctypes.get_errno()
        kind = CannotExchange if code in WITHOUT_EXCHANGE else OSError
        raise kind(code, os.strerror(code), str(first), None, str(second))


def unlink(path: Path) -> None:
    """Remove a file."""
    os.unlink(path)


def make_directory(path: Path) -> None:
    """Create a directory in an existing one."""
    os.mkdir(path)


def remove_directory(path: Path) -> None:
    """Remove an empty directory."""
    os.rmdir(path)
