"""Weights that another program saved: the tensors of a safetensors or `torch.save` file by name.

A file is opened once and read whole, so that its contents cannot change between two checks. Only
regular files of a bounded size are read, and nothing in them is executed.
"""

import io
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from mtdinterp.checkpoint_files import CheckpointError, read_file
from mtdinterp.checkpoints.stored_weights import LONGEST_REASON
from mtdinterp.checkpoints.torch_files import UNREADABLE, DamagedFile, ForeignObjects, load_plain
from mtdinterp.checks import ArrayLike
from mtdinterp.matrix_files import MatrixError, npy_array

ZIP_START = b"PK"
"""First bytes of what `torch.save` has written since torch 1.6."""
OLD_PICKLE_START = b"\x80"
"""First byte of what it wrote before that."""
MOST_REFERENCE = 256 * 10**6
"""Bytes that a file of reference sequences may have."""


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
            f"{path}: expected the format of torch.save since torch 1.6, got a plain pickle; save "
            "the state dict again with torch.save or safetensors"
        )
    return _read_safetensors(path, content, "a file written by torch.save")


def read_reference(path: Path) -> tuple[ArrayLike, ArrayLike]:
    """Reference sequences and outputs from a file with the arrays "tokens" and "outputs".

    Args:
        path: a safetensors file, or an archive that `numpy.savez` wrote.

    Returns:
        The tokens and the outputs; `import_checkpoint` checks them.
    """
    content = read_file(path, MOST_REFERENCE)
    if content.startswith(ZIP_START):
        return _read_npz(path, content)
    tensors = _read_safetensors(path, content, "an archive written by numpy.savez")
    _check_arrays(path, tensors)
    return tensors["tokens"], tensors["outputs"]


def _check_arrays(path: Path, names: Iterable[str]) -> None:
    if not {"tokens", "outputs"} <= set(names):
        found = ", ".join(sorted(names)) or "none"
        raise CheckpointError(f'{path}: expected the arrays "tokens" and "outputs", got {found}')


def _read_npz(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > MOST_REFERENCE:
                raise CheckpointError(
                    f"{path}: expected at most {MOST_REFERENCE / 1e6:.3g} MB when unpacked, "
                    f"got {unpacked / 1e6:.3g} MB; a few sequences are enough"
                )
            _check_arrays(path, [name.removesuffix(".npy") for name in archive.namelist()])
            # Not by numpy.load, which reserves whatever memory a header asks for.
            tokens = npy_array(archive.read("tokens.npy"))
            return tokens, npy_array(archive.read("outputs.npy"))
    except CheckpointError:
        raise
    except (*UNREADABLE, MatrixError) as error:
        raise CheckpointError(f"{path}: damaged, or not written by numpy.savez") from error


def _read_safetensors(path: Path, content: bytes, otherwise: str) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, *UNREADABLE) as error:
        reason = str(error)[:LONGEST_REASON]
        raise CheckpointError(
            f"{path}: expected a safetensors file or {otherwise} ({reason})"
        ) from error


def _read_torch(path: Path, content: bytes) -> Mapping[str, Any]:
    try:
        values = load_plain(content)
    except ForeignObjects as error:
        raise CheckpointError(
            f"{path}: it contains Python objects, which are not loaded because that could run "
            "code; save model.state_dict() instead of the model"
        ) from error
    except DamagedFile as error:
        raise CheckpointError(f"{path}: {error}") from error
    if not isinstance(values, Mapping):
        raise CheckpointError(
            f"{path}: expected a state dict (tensors by name), got {type(values).__name__}"
        )
    return values
