"""Kernel libraries on disk: published with a record, verified against it, and loaded.

The record next to a library holds its size and SHA-256. Loading a library runs its code, and a
truncated library kills the process, so nothing is loaded that does not match its record. What does
not match is compiled again by `build.load_library`.
"""

import ctypes
import errno
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from mtdinterp.native.failures import LoadFailed, UnusableLibrary

DESCRIPTORS = Path("/proc/self/fd")
"""Where a system shows the open files of a process as files."""
MOST_BYTES = 2**28
"""Larger files are no kernel library; with debugging information one has a few megabytes."""
RECORD_BYTES = 200
RECORD = re.compile(rb"sha256 ([0-9a-f]{64}) size ([0-9]{1,12})( rebuilt)?\n")


class Record(NamedTuple):
    """What is known about a library since it was compiled."""

    size: int
    sha256: str
    rebuilt: bool
    """Whether it was compiled again because the one before did not load."""


def record_path(path: Path) -> Path:
    """Where the record of a library is."""
    return path.with_name(f"{path.name}.sha256")


def publish(built: Path, path: Path, rebuilt: bool) -> None:
    """Move a finished library to its place, and write its record.

    Both files are complete on disk before either gets its name. A kill between the two renames
    leaves a library that does not match its record, which is then compiled again.

    Args:
        built: the library, in a directory of the same file system.
        path: its place in the cache.
        rebuilt: whether the one before did not load.
    """
    content = built.read_bytes()
    suffix = " rebuilt" if rebuilt else ""
    line = f"sha256 {hashlib.sha256(content).hexdigest()} size {len(content)}{suffix}\n"
    written = built.with_name("record")
    written.write_text(line)
    # The compiler leaves the umask's mode, which may let a group write.
    built.chmod(0o700)
    written.chmod(0o600)
    _sync(built)
    _sync(written)
    os.replace(built, path)
    os.replace(written, record_path(path))
    _sync(path.parent)


class VerifiedLibrary:
    """An open library whose bytes match its record."""

    def __init__(self, path: Path, descriptor: int, record: Record) -> None:
        self.path = path
        self.record = record
        self._descriptor = descriptor

    def close(self) -> None:
        """Close the file of a library that is not going to be loaded."""
        os.close(self._descriptor)

    def load(self) -> ctypes.CDLL:
        """Load the library, which can be done once.

        Returns:
            The library.

        Raises:
            LoadFailed: if the system refuses it.
        """
        verified = os.fstat(self._descriptor)
        # By this name the system opens the very file that was verified, whatever has been moved to
        # its path since then.
        by_descriptor = str(DESCRIPTORS / str(self._descriptor))
        if _is_file(by_descriptor, verified):
            # The descriptor stays open from here on: the loader knows libraries by their names, so
            # the number must not come to mean another file.
            return self._load_as(by_descriptor)
        library = self._load_as(str(self.path))
        # Without /proc the path could have been replaced in between, by this user alone. That is
        # found out before anything in the library is called.
        replaced = not _is_file(str(self.path), verified)
        self.close()
        if replaced:
            raise LoadFailed(f"{self.path} was replaced while it was loaded; try again")
        return library

    def _load_as(self, name: str) -> ctypes.CDLL:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            self.close()
            reason = str(error).removeprefix(f"{name}: ")
            raise LoadFailed(f"{self.path} does not load: {reason}") from error


def verified_library(path: Path) -> VerifiedLibrary:
    """Open a library and compare it with its record.

    Args:
        path: the library's place in the cache.

    Returns:
        The open library.

    Raises:
        UnusableLibrary: if there is none, or it must not be loaded; with the reason.
    """
    record = _read_record(record_path(path))
    descriptor = _open_private(path)
    try:
        _check_content(path, descriptor, record)
    except UnusableLibrary:
        os.close(descriptor)
        raise
    return VerifiedLibrary(path, descriptor, record)


def _check_content(path: Path, descriptor: int, record: Record) -> None:
    size = os.fstat(descriptor).st_size
    if size != record.size:
        raise UnusableLibrary(f"{path.name} has {size:,} bytes instead of {record.size:,}")
    if hashlib.sha256(_read(path, descriptor, record.size)).hexdigest() != record.sha256:
        raise UnusableLibrary(f"{path.name} does not match its SHA-256")


def _read_record(path: Path) -> Record:
    descriptor = _open_private(path)
    try:
        content = _read(path, descriptor, RECORD_BYTES)
    finally:
        os.close(descriptor)
    match = RECORD.fullmatch(content)
    if match is None or int(match[2]) > MOST_BYTES:
        raise UnusableLibrary(f"{path.name} is not the record of a library")
    return Record(size=int(match[2]), sha256=match[1].decode(), rebuilt=match[3] is not None)


def _open_private(path: Path) -> int:
    """Open a regular file that only this user can change; links and pipes are refused."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        reason = "is a link" if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}"
        raise UnusableLibrary(f"{path.name} {reason}") from error
    objection = _objection(os.fstat(descriptor))
    if objection:
        os.close(descriptor)
        raise UnusableLibrary(f"{path.name} {objection}")
    return descriptor


def _objection(status: os.stat_result) -> str:
    """Why a file must not be trusted; empty if it may be."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_uid != os.getuid():
        return "belongs to another user"
    if status.st_mode & 0o022:
        return "can be written by others"
    return ""


def _read(path: Path, descriptor: int, most_bytes: int) -> bytes:
    """The first `most_bytes` of an open file."""
    try:
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most_bytes)
    except OSError as error:
        raise UnusableLibrary(f"{path.name} cannot be read: {error.strerror}") from error


def _is_file(name: str, status: os.stat_result) -> bool:
    """Whether a name leads to the file with this status."""
    try:
        found = os.stat(name)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (status.st_dev, status.st_ino)


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
