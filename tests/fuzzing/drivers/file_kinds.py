"""Things in place of a file: pipes, devices, directories, links, huge and forbidden files."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing.drivers.commands import CommandRefused, run_command
from fuzzing.materials import Materials
from mtdinterp import load_checkpoint
from mtdinterp.app import models as workbench_models
from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.commands import zoo
from mtdinterp.matrix_files import read_transition
from mtdinterp.providers import PluginError, load_plugin
from mtdinterp.training.run import resumed_run

REFUSALS = (CheckpointError, CommandRefused, PluginError, ValueError)
SPARSE = {"sparse": 2**36, "large": 740 * 10**6}
"""Bytes of files without contents: one would fill the memory if it were read, the other is nearly
as large as any file may be."""
RUN = ("config.json", "model.safetensors", "history.jsonl", "training.pt")
OTHERS = ("weights.pt", "mapping.json", "reference.npz", "pi.csv", "pi.npy", "pi.json", "plugin.py")


def prepare(materials: Materials) -> None:
    """Compute what all cases share."""
    _ = materials.held_out


def build(reader: str, case: Any, directory: Path, materials: Materials) -> None:
    """Write all files, with one replaced by something else."""
    run = directory / "run"
    run.mkdir()
    for name in RUN:
        (run / name).write_bytes(materials.bytes(f"run/{name}"))
    for name in OTHERS:
        (directory / name).write_bytes(materials.bytes(name))
    path = run / case["file"] if case["file"] in RUN else directory / case["file"]
    if case["file"] == ".":
        path = run
        if case["kind"] != "forbidden":
            run.rename(directory / "moved")
    elif case["kind"] != "forbidden":
        path.unlink()
    _place(path, case["kind"])


def _place(path: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "socket":
        # The address of a socket is short, so it is bound by its name in the current directory.
        os.chdir(path.parent)
        socket.socket(socket.AF_UNIX).bind(path.name)
    elif kind == "empty":
        path.touch()
    elif kind in SPARSE:
        with path.open("wb") as file:
            file.truncate(SPARSE[kind])
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "forbidden":
        path.chmod(0)
    elif kind != "missing":
        path.symlink_to(kind)


def read(reader: str, case: Any, directory: Path, materials: Materials) -> str:
    """Read the files in the way that the case names."""
    os.chdir(directory)
    return READERS[case["through"]](directory, case["file"], materials)


def _load(directory: Path, name: str, materials: Materials) -> str:
    load_checkpoint(directory / "run")
    return "loaded"


def _resume(directory: Path, name: str, materials: Materials) -> str:
    with resumed_run(directory / "run", materials.held_out):
        return "resumed"


def _list(directory: Path, name: str, materials: Materials) -> str:
    zoo.ZOO = directory
    zoo.zoo_names = lambda: ["run"]
    return run_command(["zoo"])


def _workbench(directory: Path, name: str, materials: Materials) -> str:
    workbench_models.Registry([directory / "run"])
    return "listed"


def _import(directory: Path, name: str, materials: Materials) -> str:
    words = ["import", "weights.pt", "--config", "run/config.json", "--mapping", "mapping.json"]
    return run_command([*words, "--reference", "reference.npz", "--out", "out"])


def _import_safetensors(directory: Path, name: str, materials: Materials) -> str:
    words = ["import", "run/model.safetensors", "--config", "run/config.json", "--out", "out"]
    return run_command(words)


def _replace(directory: Path, name: str, materials: Materials) -> str:
    words = ["import", "weights.pt", "--config", "run/config.json", "--out"]
    return run_command([*words, name if name == "run" else f"run/{name}"])


def _transition(directory: Path, name: str, materials: Materials) -> str:
    for entry in ("pi.csv", "pi.npy", "pi.json"):
        read_transition(directory / entry)
    return "read"


def _plugin(directory: Path, name: str, materials: Materials) -> str:
    load_plugin(directory / "plugin.py")
    return "loaded"


def _plugin_flag(directory: Path, name: str, materials: Materials) -> str:
    return run_command(["zoo", "--plugin", "plugin.py"])


READERS: dict[str, Callable[[Path, str, Materials], str]] = {
    "load": _load,
    "resume": _resume,
    "zoo": _list,
    "workbench": _workbench,
    "import": _import,
    "import safetensors": _import_safetensors,
    "replace": _replace,
    "transition": _transition,
    "plugin": _plugin,
    "plugin flag": _plugin_flag,
}
