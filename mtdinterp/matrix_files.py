"""Read transition probabilities from a file: CSV, NPY or JSON.

The file holds one matrix [vocab, vocab], or one per lag [lag, vocab, vocab] (NPY and JSON only).
Row a is the distribution of the next token if the source token is a. Nothing in a file is ever
executed, and its size is bounded before it is read. Errors count rows and columns from 1.

Nothing heavy is imported here: the command line reads the file before it imports torch.
"""

import io
import json
import math
import os
import re
import tokenize
from collections.abc import Callable
from typing import Any

import numpy as np

from mtdinterp.bounded_files import UnreadableFile, expanded, read_bounded
from mtdinterp.formatting import counted

LARGEST_FILE = 2**25
"""Bytes that a file may have: a matrix of 1,000 tokens, written with all its digits, fits."""
ROW_SUM_TOLERANCE = 1e-6
"""Rows whose sum is this close to 1 are distributions."""
ROUNDING_TOLERANCE = 0.05
"""Rows whose sum is farther from 1 are not rounded probabilities: a digit is wrong, or they are
counts. Twenty entries rounded to two digits are off by at most 0.1, typically by 0.013."""
NUMBER = re.compile(
    r"[+-]?((\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?|nan|inf|infinity)", re.ASCII | re.IGNORECASE
)
"""A number in a text file; NaN and infinity are read, and refused with their place. No two parts
can match the same digits, so that a long cell takes linear time."""
DEEPEST = 8
"""Lists inside lists that are read from a JSON file, to say how many dimensions it has."""
BAD_HEADER = (
    ValueError,
    TypeError,
    LookupError,
    SyntaxError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)
"""What NumPy raises for the header of a damaged file: it is parsed as a Python literal."""


def read_transition(path: str | os.PathLike, normalise: bool = False) -> np.ndarray:
    """The transition probabilities in a file.

    Args:
        path: a file that ends in .csv, .tsv or .txt (numbers separated by commas, semicolons or
            whitespace), .npy or .json.
        normalise: divide rows by their sums, which may be off by up to 5 %. Without it, rows must
            sum to 1 within 1e-6.

    Returns:
        float64 array [vocab, vocab], or [lag, vocab, vocab] if the file has one matrix per lag.

    Raises:
        ValueError: if the file holds no such probabilities, with the reason in one sentence.
    """
    source = expanded(path)
    parse = PARSERS.get(source.suffix.lower())
    if parse is None:
        raise ValueError(f"{source}: expected a file that ends in {', '.join(PARSERS)}")
    try:
        values = parse(read_bounded(source, LARGEST_FILE))
        _check_shape(values)
        _check_entries(values)
        return _with_unit_sums(values, normalise)
    except (MatrixError, UnreadableFile) as error:
        raise ValueError(f"{source}: {error}") from None


class MatrixError(Exception):
    """What is wrong with a file's contents, without the file's name."""


# Formats ------------------------------------------------------------------------------------------


def _parse_csv(content: bytes) -> np.ndarray:
    """One row per line; blank lines, lines that begin with # and a line of names are skipped."""
    stripped = [line.strip() for line in _decode(content).splitlines()]
    lines = [line for line in stripped if line and not line.startswith("#")]
    delimiter = _delimiter(lines)
    rows = [_cells(line, delimiter) for line in lines]
    if rows and all(_is_name(cell) for cell in rows[0]):
        rows = rows[1:]
    if not rows:
        raise MatrixError("expected rows of numbers, got none")
    return _rectangular([_numbers(row, cells) for row, cells in enumerate(rows, start=1)])


def _delimiter(lines: list[str]) -> str | None:
    """What separates cells: semicolons, else commas, else (None) white space."""
    text = "\n".join(lines)
    if ";" in text:
        return ";"
    return "," if "," in text else None


def _cells(line: str, delimiter: str | None) -> list[str]:
    return [cell.strip() for cell in line.split(delimiter)]


def _numbers(row: int, cells: list[str]) -> list[float]:
    """The numbers of one row, counted from 1 in error messages."""
    for column, cell in enumerate(cells, start=1):
        if not _is_number(cell):
            raise MatrixError(
                f"row {row}, column {column}: expected a number such as 0.25, got "
                f"{cell[:20]!r}; leave out row labels and write decimals with a point"
            )
    return [float(cell) for cell in cells]


def _is_name(cell: str) -> bool:
    """Whether a cell is a column name: neither a number nor a mistyped number such as 0,5."""
    return bool(cell) and not _is_number(cell) and cell[0] not in "+-.0123456789"


def _is_number(cell: str) -> bool:
    return NUMBER.fullmatch(cell) is not None


def _parse_npy(content: bytes) -> np.ndarray:
    """The array of an NPY file in float64."""
    return np.ascontiguousarray(npy_array(content), dtype=np.float64)


def npy_array(content: bytes) -> np.ndarray:
    """An array of real numbers as `numpy.save` writes it; pickled objects are refused by type.

    Args:
        content: the bytes of the file.

    Returns:
        The array in the dtype of the file.

    Raises:
        MatrixError: if the bytes hold no such array.
    """
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        # Version 3 differs only for arrays with named fields, which hold no matrix.
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran_order, dtype = read_header(file)
    except BAD_HEADER as error:
        raise MatrixError("expected an array written by numpy.save") from error
    if dtype.hasobject:
        raise MatrixError("expected an array of numbers, got pickled objects, which are not read")
    if dtype.kind not in "fiu":
        raise MatrixError(f"expected real numbers, got {dtype}")
    data = content[file.tell() :]
    # Compared first, so that a header cannot ask for more memory than the file has.
    is_shape = all(type(size) is int and size >= 0 for size in shape)
    if not is_shape or math.prod(shape) * dtype.itemsize != len(data):
        raise MatrixError(f"expected the numbers of an array of shape {shape}; the file is damaged")
    # A copy, because what refers to the bytes cannot be written to.
    flat = np.frombuffer(data, dtype).copy()
    if fortran_order:
        return flat.reshape(shape, order="F")
    return flat.reshape(shape)


def _parse_json(content: bytes) -> np.ndarray:
    """A list of rows, or a list of matrices."""
    try:
        values = json.loads(_decode(content))
    except (ValueError, RecursionError) as error:
        raise MatrixError(f"not valid JSON ({error})") from error
    if not isinstance(values, list):
        raise MatrixError(
            f"expected a list of rows such as [[0.5, 0.5], [0.1, 0.9]], got {_kind(values)}"
        )
    return _rectangular(values)


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MatrixError("expected text in UTF-8") from error


def _rectangular(values: list[Any], where: str = "", depth: int = 1) -> np.ndarray:
    """Nested lists of numbers as an array; lists of unequal length are refused.

    Args:
        values: the lists.
        where: the place of `values` in the file, for error messages.
        depth: how many lists contain these entries.

    Returns:
        The array, of any shape.
    """
    if depth > DEEPEST:
        raise MatrixError(
            "expected a matrix [vocab, vocab], or one per lag [lag, vocab, vocab]; got more than "
            f"{DEEPEST} dimensions"
        )
    nested = [entry for entry in values if isinstance(entry, list)]
    if not nested:
        return np.array([_number(entry, where) for entry in values], dtype=np.float64)
    if len(nested) < len(values):
        stray = next(entry for entry in values if not isinstance(entry, list))
        raise MatrixError(f"{where}expected lists only, got {_kind(stray)}")
    parts = []
    for index, entry in enumerate(nested, start=1):
        level = "matrix" if any(isinstance(inner, list) for inner in entry) else "row"
        parts.append(_rectangular(entry, f"{where}{level} {index}: ", depth + 1))
        if parts[-1].shape != parts[0].shape:
            raise MatrixError(
                f"{where}{level} {index} has {_size(parts[-1])}, but {level} 1 has "
                f"{_size(parts[0])}"
            )
    return np.stack(parts)


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MatrixError(f"{where}expected a number, got {_kind(value)}")
    try:
        return float(value)
    except OverflowError:
        raise MatrixError(f"{where}expected a probability, got a huge number") from None


def _size(array: np.ndarray) -> str:
    if array.ndim == 1:
        return f"{len(array)} entries"
    return f"shape {array.shape}"


def _kind(value: Any) -> str:
    """A JSON value's kind, in JSON's own words."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    kinds = {dict: "an object", list: "a list", str: "a string", int: "a number", float: "a number"}
    return kinds[type(value)]


PARSERS: dict[str, Callable[[bytes], np.ndarray]] = {
    ".csv": _parse_csv,
    ".tsv": _parse_csv,
    ".txt": _parse_csv,
    ".npy": _parse_npy,
    ".json": _parse_json,
}
"""The reader of each kind of file, by the end of its name."""

# Probabilities ------------------------------------------------------------------------------------


def _check_shape(values: np.ndarray) -> None:
    shape = values.shape
    if values.ndim not in (2, 3):
        raise MatrixError(
            "expected a matrix [vocab, vocab], or one per lag [lag, vocab, vocab]; got "
            f"{values.ndim} dimensions, shape {shape}"
        )
    if values.size == 0:
        raise MatrixError(f"expected rows of numbers, got none (shape {shape})")
    n_rows, n_columns = shape[-2:]
    if n_rows != n_columns:
        hint = ""
        if n_rows == n_columns + 1:
            hint = "; if the first line holds column numbers, delete it"
        elif n_columns == n_rows + 1:
            hint = "; if the first column holds row numbers, delete it"
        found = f"{counted(n_rows, 'row')} of {counted(n_columns, 'number')}"
        raise MatrixError(f"expected a square matrix, got {found}{hint}")
    if n_rows < 2:
        raise MatrixError("expected at least 2 tokens, got a single number")


def _check_entries(values: np.ndarray) -> None:
    for unwanted, wish in ((~np.isfinite(values), "finite"), (values < 0, "non-negative")):
        if unwanted.any():
            *rows, column = np.argwhere(unwanted)[0]
            place = _place(tuple(rows), values.shape)
            bad = values[(*rows, column)]
            raise MatrixError(
                f"{place}, column {column + 1}: expected a {wish} number, got {bad:g}"
            )


def _with_unit_sums(values: np.ndarray, normalise: bool) -> np.ndarray:
    """The rows, divided by their sums if `normalise`; otherwise exactly as they are in the file."""
    sums = values.sum(-1)
    off = np.abs(sums - 1)
    worst = np.unravel_index(off.argmax(), off.shape)
    found = f"{_place(worst, values.shape)} sums to {sums[worst]:.6g}"
    empty = np.argwhere(sums == 0)
    if len(empty):
        raise MatrixError(
            f"{_place(tuple(empty[0]), values.shape)} has only zeros; every token needs a "
            f"next-token distribution, such as 1/{values.shape[-1]} everywhere"
        )
    if off[worst] > ROUNDING_TOLERANCE:
        advice = "check the row, or divide counts by their sums"
        if np.abs(values.sum(-2) - 1).max() <= ROUNDING_TOLERANCE:
            advice = "the columns sum to 1, so transpose the matrix"
        raise MatrixError(f"{found}, which is too far from 1 for a rounding error; {advice}")
    if not normalise:
        if off[worst] > ROW_SUM_TOLERANCE:
            raise MatrixError(
                f"{found} instead of 1; if its entries were rounded, divide rows by their sums "
                "with --normalise (in Python: normalise=True)"
            )
        return values
    # Rows that already sum to 1 in float64 keep their bits, so normalising twice is the same as
    # once.
    exact = off <= 4 * values.shape[-1] * np.finfo(np.float64).eps
    return np.where(exact[..., None], values, values / sums[..., None])


def _place(index: tuple[Any, ...], shape: tuple[int, ...]) -> str:
    """A row in words, such as "row 2 of 6", with its matrix if there is one per lag."""
    *matrix, row = index
    of_matrix = f"matrix {matrix[0] + 1}, " if matrix else ""
    return f"{of_matrix}row {row + 1} of {shape[-2]}"
