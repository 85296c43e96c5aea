"""Read what `torch.save` wrote without running anything in it, and without surprises in size.

`torch.load(weights_only=True)` runs no foreign code, but it accepts compressed members, ignores the
archive's checksums, and calls some harmless-looking functions that reserve as much memory as a file
asks for. The file is therefore checked first: what it is built from must be tensors and plain
values.
"""

import io
import pickle
import pickletools
import re
import struct
import warnings
import zipfile
import zlib
from typing import Any

import torch
from torch import Tensor, nn

UNREADABLE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    AssertionError,
    NotImplementedError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What torch and zipfile raise for a damaged or foreign file."""
PLAIN_NAMES = re.compile(
    r"collections OrderedDict"
    r"|torch\._utils _rebuild_(tensor_v2|parameter)"
    r"|torch \w+Storage"
)
"""The classes and functions that a file of tensors and plain values refers to."""
OTHER_CALLS = ("STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4")
"""Instructions of a pickle that refer to classes in ways that `torch.save` does not use."""
OTHER_VALUES = ("LONG", "LONG4", "DUP")
"""Instructions that `torch.save` does not use: whole numbers of any size, and copies."""
SHORT_TUPLES = ("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")
DEEPEST = 20
"""The deepest nesting; a training state has about 6 levels."""
PICKLE = "data.pkl"


class DamagedFile(Exception):
    """The file is damaged or not one of `torch.save`, without the file's name."""


class ForeignObjects(Exception):
    """The file contains objects other than tensors and plain values; they were not loaded."""


def load_plain(content: bytes) -> Any:
    """The tensors and plain values in a file of `torch.save`, on the CPU.

    Args:
        content: the bytes of the file.

    Returns:
        What was saved.

    Raises:
        ForeignObjects: if it contains anything else.
        DamagedFile: if it cannot be read.
    """
    try:
        instructions = _checked_pickle(content)
        _check_names(instructions)
        _check_shape(instructions)
        with warnings.catch_warnings():
            # torch warns about foreign pickles, which are refused anyway.
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ForeignObjects("it contains Python objects, which are not loaded") from error
    except UNREADABLE as error:
        raise DamagedFile("damaged, or not written by torch.save") from error


def is_plain(tensor: Any) -> bool:
    """Whether something is an ordinary tensor in memory: no view without data, not sparse."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_quantized
        and not tensor.is_nested
    )


def _checked_pickle(content: bytes) -> bytes:
    """The pickle in an archive whose members are stored as they are and have the right checksums.

    Raises:
        DamagedFile: if the archive is compressed or damaged.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise DamagedFile(
                "expected an uncompressed file, as torch.save writes it; this one is compressed"
            )
        if sum(member.file_size for member in members) > len(content):
            raise DamagedFile("damaged (its contents are larger than the file)")
        names = [member.filename for member in members]
        pickles = [name for name in names if name.rpartition("/")[2] == PICKLE]
        if len(set(names)) != len(names) or len(pickles) != 1:
            raise DamagedFile("damaged, or not written by torch.save")
        if archive.testzip() is not None:
            raise DamagedFile("damaged (a checksum is wrong)")
        return archive.read(pickles[0])


def _check_names(content: bytes) -> None:
    """Refuse a pickle that refers to anything but tensors and ordered dictionaries."""
    for instruction, argument, _ in pickletools.genops(content):
        refers = instruction.name == "GLOBAL"
        if instruction.name in OTHER_CALLS or (refers and not PLAIN_NAMES.fullmatch(str(argument))):
            raise ForeignObjects("it contains Python objects, which are not loaded")


def _check_shape(content: bytes) -> None:
    """Refuse a pickle with deeply nested values, or with tuples that contain the same tuple twice.

    A few kilobytes of such tuples could stand for so many values that the hash of one, as the key
    of a dictionary, is never computed. The instructions of a pickle work on a stack; here the stack
    holds the depth of each value instead of the value.

    Raises:
        DamagedFile: if `torch.save` would not write such a file for tensors and plain values.
    """
    stack: list[int | None] = []  # None for a mark
    unshared: set[str] = set()
    before = ""
    for instruction, argument, _ in pickletools.genops(content):
        name = instruction.name
        if name in OTHER_VALUES:
            raise DamagedFile("damaged, or not written by torch.save")
        if "PUT" in name:
            is_short = before in SHORT_TUPLES and stack[-1] in (0, 1)
            if "TUPLE" in before and not is_short:
                unshared.add(str(argument))
            continue
        if "GET" in name and str(argument) in unshared:
            raise DamagedFile("damaged, or not written by torch.save (it repeats a tuple)")
        taken = _pop(stack, instruction)
        depth = 1 + max(taken) if taken else 0
        if depth > DEEPEST:
            raise DamagedFile("damaged, or not written by torch.save (nested too deeply)")
        for kind in instruction.stack_after:
            stack.append(None if kind is pickletools.markobject else depth)
        before = name


def _pop(stack: list[int | None], instruction: pickletools.OpcodeInfo) -> list[int]:
    """Take the operands of an instruction from the stack; returns their depths."""
    operands = list(instruction.stack_before)
    taken: list[int] = []
    if pickletools.markobject in operands:
        while (depth := stack.pop()) is not None:
            taken.append(depth)
        operands = operands[: operands.index(pickletools.markobject)]
    for _ in operands:
        taken.append(stack.pop() or 0)
    return taken
