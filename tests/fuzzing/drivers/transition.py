"""The reader of transition files: CSV, NPY and JSON, damaged or made up."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.damage import damaged, edited, python_value, render
from fuzzing.materials import Materials
from mtdinterp.matrix_files import read_transition
from mtdinterp.registry import TASKS

REFUSALS = (ValueError,)


def prepare(materials: Materials) -> None:
    """Load the tasks that a file can be used for."""
    len(TASKS)


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Write the file."""
    suffix = case["suffix"]
    content = damaged(_content(case, materials), case.get("bytes", []))
    (directory / f"pi{suffix}").write_bytes(content)


def _content(case: Any, materials: Materials) -> bytes:
    if "rows" in case:
        return case["rows"].encode("utf-8", "surrogatepass")
    if "header" in case:
        text = case["header"].encode("latin-1", "replace")
        length = len(text).to_bytes(2, "little") if len(text) < 2**16 else b"\xff\xff"
        return b"\x93NUMPY\x01\x00" + length + text + bytes(case.get("data", 0))
    if case["suffix"] == ".json":
        return render(edited(json.loads(materials.bytes("pi.json")), case.get("edits", [])))
    if case["suffix"] == ".npy":
        return _npy(case, materials)
    return materials.bytes("pi.csv")


def _npy(case: Any, materials: Materials) -> bytes:
    array = np.load(io.BytesIO(materials.bytes("pi.npy")))
    shape = case.get("shape")
    if shape is not None:
        array = np.resize(array, shape)
    if "fill" in case:
        array[...] = python_value(case["fill"], Path())
    file = io.BytesIO()
    np.save(file, array.astype(case.get("dtype", "float64")))
    return file.getvalue()


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """Read the file and make a task of it."""
    matrices = read_transition(directory / f"pi{case['suffix']}", case.get("normalise", False))
    kind = "mtd" if matrices.ndim == 2 else "lag-specific"
    order = 2 if matrices.ndim == 2 else len(matrices)
    task = TASKS[kind].from_transition(matrices, order, 1.0)
    return f"{task.vocab_size} tokens"
