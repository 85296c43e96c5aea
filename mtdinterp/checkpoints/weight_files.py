"""Weights that another program saved: the tensors of a safetensors or `torch.save` file by name.

A file is opened once and read whole, so that its contents cannot change between two checks. Only
regular files of a bounded size are read, and nothing in them is executed.
"""

import io
import os
import pickle
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from mtdinterp.checkpoint_files import CheckpointError

ZIP_START = b"PK"
"""First bytes of what `torch.save` has written since torch 1.6."""
OLD_PICKLE_START = b"\x80"
"""First byte of what it wrote before that."""
UNREADABLE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What torch and zipfile raise for a damaged or foreign file."""


def read_weights(path: Path, most_bytes: int) -> Mapping[str, Any]:
    """The contents of a weights file; the values are not checked.

    Args:
        path: a safetensors file, or what `torch.save(model.state_dict(), path)` writes.
        most_bytes: larger files are refused.

    Returns:
        Values by name; those of a safetensors file are tensors.

    Raises:
        CheckpointError: if the file is not of either kind, or holds anything but plain values.
    """
    content = read_file(path, most_bytes)
    if content.startswith(ZIP_START):
        return _read_torch(path, content)
    if content.startswith(OLD_PICKLE_START):
        raise CheckpointError(
            f"{path}: this is a pickle, not a file of torch.save since torch 1.6; save the state "
            "dict again with torch.save or safetensors"
        )
    try:
        return safetensors.torch.load(content)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path}: expected a safetensors file or a file of torch.save ({error})"
        ) from error


def read_file(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file of a bounded size.

    Args:
        path: the file.
        most_bytes: larger files are refused.

    Returns:
        The contents.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for somebody to write to it.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise CheckpointError(f"{path}: expected a file, got a directory or a device")
    with open(handle, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise CheckpointError(
            f"{path}: expected at most {most_bytes / 1e6:.0f} MB for a model of this "
            f"configuration, got {max(status.st_size, len(content)) / 1e6:.0f} MB; save the "
            "weights alone"
        )
    return content


def _read_torch(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        _check_archive(path, content)
        with warnings.catch_warnings():
            # torch warns about foreign pickles, which are refused anyway.
            warnings.simplefilter("ignore")
            values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path}: it holds more than tensors and plain values, which is not executed; save "
            "model.state_dict() instead of the model"
        ) from error
    except UNREADABLE as error:
        raise CheckpointError(f"{path}: damaged, or not written by torch.save") from error
    if not isinstance(values, Mapping):
        raise CheckpointError(
            f"{path}: expected a state dict (tensors by name), got {type(values).__name__}"
        )
    return values


def _check_archive(path: Path, content: bytes) -> None:
    """Refuse an archive that would unpack to more than its own size, or whose checksums fail."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        compressed = [member for member in members if member.compress_type != zipfile.ZIP_STORED]
        if compressed or sum(member.file_size for member in members) > len(content):
            raise CheckpointError(
                f"{path}: expected a file of torch.save, which does not compress; this one would "
                "unpack to more than its size"
            )
        if archive.testzip() is not None:
            raise zipfile.BadZipFile
