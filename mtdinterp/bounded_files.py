"""Read files that somebody names: regular ones only, of a bounded size, without waiting.

Nothing heavy is imported here: the command line reads files before it imports torch.
"""

import os
import stat
from pathlib import Path


class UnreadableFile(Exception):
    """Why a file is not read, without the file's name."""


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """The contents of a regular file; a pipe or a device is refused at once.

    Args:
        path: the file.
        most_bytes: larger files are refused.

    Returns:
        The contents.

    Raises:
        UnreadableFile: with the reason.
    """
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UnreadableFile("expected a regular file")
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise UnreadableFile(f"cannot be read ({error.strerror})") from error
    if len(content) > most_bytes:
        raise UnreadableFile(f"expected at most {most_bytes:,} bytes, got more")
    return content


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to would otherwise block for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
