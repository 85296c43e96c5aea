"""Checks of the tensors that a kernel reads: the C++ code trusts types and sizes blindly."""

from collections.abc import Sequence

import torch
from torch import Tensor

INDEX_LIMIT = 2**31
"""Entries in a padded matrix of one sequence: the kernels count them in 32 bits."""
PADDING = 128
"""More than the kernels add to a number of rows or columns."""


def can_fuse(*tensors: Tensor) -> bool:
    """Whether the kernels accept these tensors: dense float32 on the CPU, and none empty."""
    return all(map(_can_fuse_one, tensors))


def _can_fuse_one(tensor: Tensor) -> bool:
    # `is_cpu` takes a tenth of the time of `device.type`, and every training step asks often.
    return (
        tensor.dtype == torch.float32
        and tensor.is_cpu
        and tensor.layout == torch.strided
        and tensor.numel() > 0
    )


def check_operand(name: str, tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuse a tensor that a kernel would misread.

    Args:
        name: the argument's name, for error messages.
        tensor: the tensor; the kernels need dense float32 on the CPU, and none empty.
        shape: the shape that the other arguments imply.

    Raises:
        ValueError: if the tensor is different.
    """
    if tensor.shape != shape or not _can_fuse_one(tensor):
        raise ValueError(
            f"{name}: expected {_described(torch.float32, 'cpu', torch.strided, shape)} with no "
            f"empty axis, got "
            f"{_described(tensor.dtype, tensor.device.type, tensor.layout, tensor.shape)}"
        )


def check_at_most(name: str, size: int, limit_name: str, limit: int) -> None:
    """Refuse a size that exceeds another one.

    Args:
        name: what has the size, for error messages.
        size: the size.
        limit_name: what limits it, for error messages.
        limit: the largest size allowed.

    Raises:
        ValueError: if the size is larger.
    """
    if size > limit:
        raise ValueError(f"{name}: expected at most the {limit} {limit_name}, got {size}")


def check_index_range(name: str, rows: int, columns: int) -> None:
    """Refuse a matrix whose entries cannot be counted in 32 bits.

    Args:
        name: what is too large, for error messages.
        rows: the matrix's rows.
        columns: the matrix's columns.

    Raises:
        ValueError: if the matrix is too large for the kernels.
    """
    if (rows + PADDING) * (columns + PADDING) >= INDEX_LIMIT:
        raise ValueError(
            f"{name}: expected less than {INDEX_LIMIT:,} entries, got {rows:,} × {columns:,}; "
            "set MTDINTERP_KERNEL=eager"
        )


def _described(dtype: torch.dtype, device: str, layout: torch.layout, shape: Sequence[int]) -> str:
    kind = str(dtype).removeprefix("torch.")
    dense = "" if layout == torch.strided else f"{str(layout).removeprefix('torch.')} "
    return f"{dense}{kind} of shape {list(shape)} on the {device}"
