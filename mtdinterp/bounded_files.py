"""Read files that somebody names: regular ones only, of a bounded size, without waiting.

A file is opened once and read whole, so that what is used is what was checked, even if the file is
replaced meanwhile. Nothing heavy is imported here: the command line reads files before it imports
torch.
"""

import os
import stat
from pathlib import Path


class UnreadableFile(Exception):
    """Why a file is not read, without the file's name."""


class MissingFile(UnreadableFile):
    """There is no such file."""


def expanded(path: str | os.PathLike) -> Path:
    """A path with ~ replaced by the home directory; unchanged if there is no such home.

    `Path.expanduser` raises RuntimeError for an unknown user, which is not about the file.
    """
    return Path(os.path.expanduser(path))


def resolved(path: str | os.PathLike) -> Path:
    """An absolute path without links, with ~ replaced as by `expanded`.

    `Path.resolve` raises RuntimeError for links in a circle; here, opening the path fails later.
    """
    return Path(os.path.realpath(expanded(path)))


def read_bounded(path: Path | str, most_bytes: int, directory: int | None = None) -> bytes:
    """The contents of a regular file; a pipe or a device is refused at once.

    Args:
        path: the file.
        most_bytes: larger files are refused before anything is read.
        directory: descriptor of the directory that a relative path starts from; the current
            directory if None.

    Returns:
        The contents.

    Raises:
        MissingFile: if there is no such file.
        UnreadableFile: with the reason.
    """
    try:
        # A pipe that nobody writes to would otherwise block for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError as error:
        raise MissingFile(f"cannot be read ({_reason(error)})") from error
    except (OSError, ValueError) as error:
        # A path with a null character is a ValueError.
        raise UnreadableFile(f"cannot be read ({_reason(error)})") from error
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise UnreadableFile("expected a regular file, got a directory")
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableFile("expected a regular file")
        content = b""
        if status.st_size <= most_bytes:
            with open(handle, "rb", closefd=False) as file:
                # One byte more than the system says, because the file may be growing.
                content = file.read(status.st_size + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read ({_reason(error)})") from error
    finally:
        os.close(handle)
    if status.st_size > most_bytes or len(content) > most_bytes:
        raise UnreadableFile(f"expected at most {most_bytes:,} bytes, got more")
    return content


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
