"""Readers of a checkpoint directory: config.json, model.safetensors and history.jsonl.

A case has edits of the JSON values, damages of the resulting bytes, and the way in which the
directory is read. With "foreign", the weights file has no checksums, as one of another program.
"""

import copy
import json
from pathlib import Path
from typing import Any

from fuzzing.damage import damaged, edited, render
from fuzzing.drivers.commands import CommandRefused, run_command
from fuzzing.materials import Materials
from mtdinterp import load_checkpoint
from mtdinterp.app import models as workbench_models
from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.checkpoints.load import read_history
from mtdinterp.commands import zoo
from mtdinterp.training.run import resumed_run

REFUSALS = (CheckpointError, CommandRefused)
FILES = {"config": "config.json", "weights": "model.safetensors", "history": "history.jsonl"}


def prepare(materials: Materials) -> None:
    """Compute what all cases share."""
    _ = materials.held_out, materials.header


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Write the checkpoint with one damaged file."""
    run = directory / "run"
    run.mkdir()
    for name in (*FILES.values(), "training.pt"):
        (run / name).write_bytes(materials.bytes(f"run/{name}"))
    if case.get("foreign"):
        (run / FILES["weights"]).write_bytes(_weights(materials, [["drop", ["__metadata__"]]]))
    content = _content(reader, case, materials)
    (run / FILES[reader]).write_bytes(damaged(content, case.get("bytes", [])))


def _content(reader: str, case: Any, materials: Materials) -> bytes:
    edits = case.get("edits", [])
    if reader == "config":
        return render(edited(json.loads(materials.bytes("run/config.json")), edits))
    if reader == "weights":
        return _weights(materials, edits, case.get("header_length"), case.get("data"))
    lines = edited(copy.deepcopy(materials.outline["history"]), edits)
    if case.get("unchecked") and isinstance(lines, list):
        for entry in lines:
            if isinstance(entry, dict):
                entry.pop("check", None)
    rows = lines if isinstance(lines, list) else [lines]
    return b"".join(render(row) + b"\n" for row in rows)


def _weights(
    materials: Materials, edits: list[Any], length: int | None = None, data: Any = None
) -> bytes:
    """A weights file with an edited header, perhaps of a false length, and with damaged data."""
    header, content = copy.deepcopy(materials.header)
    text = render(edited(header, edits))
    stated = len(text) if length is None else length % 2**64
    return stated.to_bytes(8, "little") + text + damaged(content, data or [])


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """Read the directory in the way that the case names."""
    run = directory / "run"
    through = case.get("through", "load")
    if through == "zoo":
        zoo.ZOO = directory
        zoo.zoo_names = lambda: ["run"]
        return run_command(["zoo"])
    if through == "workbench":
        registry = workbench_models.Registry([run])
        return f"{len(registry.entries)} entry"
    if through == "resume":
        with resumed_run(run, materials.held_out):
            return "resumed"
    if through == "import":
        weights = str(run / "model.safetensors")
        config = str(run / "config.json")
        return run_command(["import", weights, "--config", config, "--out", "out"])
    if through == "history":
        return f"{len(read_history(run))} entries"
    checkpoint = load_checkpoint(run)
    tokens = checkpoint.task.sample(1, min(checkpoint.model.config.length, 64), 0).tokens
    checkpoint.model(tokens)
    return repr(checkpoint).replace(str(directory), "DIR")
