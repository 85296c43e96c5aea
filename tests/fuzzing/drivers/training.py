"""The reader of training.pt: edits of the state, of the archive, and of its bytes.

A case has edits of the saved values, steps that change the zip archive, and damages of the bytes.
Whatever is accepted must also be able to train to its end.
"""

import copy
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from fuzzing import canaries
from fuzzing.damage import Canary, damaged, edited, python_value
from fuzzing.drivers.commands import CommandRefused, run_command
from fuzzing.materials import Materials
from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.training.loop import DivergedError
from mtdinterp.training.run import resumed_run

REFUSALS = (CheckpointError, CommandRefused, DivergedError)
LARGEST_RECORD = 3 * 10**9
"""The size of the largest record that a case inflates from a few megabytes."""


def prepare(materials: Materials) -> None:
    """Compute what all cases share."""
    _ = materials.held_out, materials.state


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Write a run with a damaged training.pt."""
    run = directory / "run"
    run.mkdir()
    for name in ("config.json", "model.safetensors", "history.jsonl"):
        (run / name).write_bytes(materials.bytes(f"run/{name}"))
    (run / "training.pt").write_bytes(damaged(_archive(case, materials), case.get("bytes", [])))


def _archive(case: Any, materials: Materials) -> bytes:
    mark = canaries.mark(canaries.PICKLE_MARK)
    content = materials.bytes("run/training.pt")
    if case.get("edits"):
        state = edited(
            copy.deepcopy(materials.state), case["edits"], lambda value: python_value(value, mark)
        )
        file = io.BytesIO()
        torch.save(state, file)
        content = file.getvalue()
    if case.get("legacy"):
        file = io.BytesIO()
        torch.save(materials.state, file, _use_new_zipfile_serialization=False)
        content = file.getvalue()
    for change in case.get("archive", []):
        content = _rezipped(content, change, mark)
    return content


def _rezipped(content: bytes, change: list[Any], mark: Path) -> bytes:
    """An archive after one change: kind, index of a member, and an argument."""
    kind, index, *arguments = change
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    if not members:
        return content
    index %= len(members)
    name, data = members[index]
    compression = zipfile.ZIP_DEFLATED if kind in ("compress", "inflate") else zipfile.ZIP_STORED
    if kind == "rename":
        members[index] = (arguments[0] or "x", data)
    elif kind == "drop":
        del members[index]
    elif kind == "duplicate":
        members.insert(index, (name, data))
    elif kind == "extra":
        members.append((arguments[0], b"x" * arguments[1]))
    elif kind == "data":
        members[index] = (name, damaged(data, [arguments[0]]))
    elif kind == "canary":
        members[index] = (name, pickle.dumps(Canary(str(mark)), protocol=arguments[0]))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for position, (member, bytes_) in enumerate(members):
            _write(archive, member, bytes_, inflate=kind == "inflate" and position == index)
    return file.getvalue()


def _write(archive: zipfile.ZipFile, name: str, data: bytes, inflate: bool) -> None:
    """Write a member; an inflated one is followed by gigabytes of zeros."""
    if not inflate:
        archive.writestr(name, data)
        return
    zeros = bytes(2**20)
    with archive.open(name, "w", force_zip64=True) as member:
        member.write(data)
        for _ in range(LARGEST_RECORD // len(zeros)):
            member.write(zeros)


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """Resume the run and train it to its end."""
    run = directory / "run"
    if case.get("through") == "import":
        config = str(run / "config.json")
        weights = str(run / "training.pt")
        return run_command(["import", weights, "--config", config, "--out", "out"])
    with resumed_run(run, materials.held_out) as resumed:
        resumed.train()
        return f"trained to step {resumed.trainer.step}"
