"""Which files make a checkpoint, and whether a directory is one. No torch: the command line asks
before it starts.

config.json        schema version, model, task, recipe, seeds, versions
model.safetensors  the parameters
history.jsonl      one evaluation a line (only where there was training)
training.pt        optimizer and generators (only while a run can be resumed)
"""

import difflib
import json
import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

SCHEMA = 1
CONFIG, WEIGHTS, HISTORY, TRAINING = (
    "config.json",
    "model.safetensors",
    "history.jsonl",
    "training.pt",
)
FILES = {CONFIG, WEIGHTS, HISTORY, TRAINING}
"""All that a checkpoint directory may hold; one with anything else in it is never replaced."""
UNFINISHED = ".writing-"
"""Begins the name of a file that is not complete yet; a run that was killed may leave one behind.
"""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written, with the reason in one sentence."""


def check_new(target: Path, advice: str = "") -> None:
    """Refuse a place where a new run would not be alone."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        resume = f"; to go on with the run that is there, resume it (--resume {target})"
        raise CheckpointError(
            f"{target}: expected a new or empty directory{advice}"
            + (resume if (target / TRAINING).exists() else "")
        )


def check_replaceable(target: Path) -> None:
    """Refuse a place where writing a checkpoint would destroy a run, or something that is no
    checkpoint."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise CheckpointError(f"{target}: expected a directory, got a file")
    names = {entry.name for entry in target.iterdir() if not entry.name.startswith(UNFINISHED)}
    foreign = sorted(names - FILES)
    if foreign:
        raise CheckpointError(
            f"{target}: expected a new or empty directory, or a checkpoint; it holds {foreign[0]}"
        )
    if TRAINING in names:
        raise CheckpointError(
            f"{target}: it holds a run that can be resumed ({TRAINING}); choose another directory"
        )
    read_config(target)


def read_config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / CONFIG).read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{source}: not a checkpoint, {CONFIG} is missing") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{source / CONFIG}: not readable as JSON ({error})") from error
    if not isinstance(config, dict) or config.get("schema") != SCHEMA:
        found = config.get("schema") if isinstance(config, dict) else type(config).__name__
        raise CheckpointError(
            f"{source / CONFIG}: expected checkpoint schema {SCHEMA}, got {found!r}"
        )
    return config


ZOO = Path(__file__).parent / "zoo"
"""The checkpoints that ship with the package, one directory each."""


def zoo_names() -> list[str]:
    """Names of the checkpoints that ship with the package."""
    if not ZOO.is_dir():
        return []
    return sorted(
        entry.name
        for entry in ZOO.iterdir()
        if (entry / CONFIG).is_file() and not entry.name.startswith(".")
    )


def model_name(architecture: str, order: int, length: int, layers: int = 3, seed: int = 0) -> str:
    """What the zoo calls a model: {architecture}-m{m}-T{T}[-L5][-s{seed}]."""
    depth = "" if layers == 3 else f"-L{layers}"
    return f"{architecture}-m{order}-T{length}{depth}" + (f"-s{seed}" if seed else "")


def short_name(path: Path, among: Iterable[Path]) -> str:
    """The end of a path, as long as it takes to tell it from the others."""
    own, *others = (
        [part for part in entry.parts if part != entry.anchor] for entry in (path, *among)
    )
    apart = (
        depth
        for depth in count(1)
        if all(other[-depth:] != own[-depth:] for other in others if other != own)
    )
    return "/".join(own[-next(apart) :])


def find_checkpoint(path: str | os.PathLike) -> Path:
    """The directory that a path or the name of a zoo model means; a path that exists comes
    first."""
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise CheckpointError(
            f"expected a checkpoint directory or the name of a zoo model, got {path!r}"
        )
    source, name = Path(path).expanduser(), os.fspath(path)
    if source.is_dir():
        return source
    if name in zoo_names():
        return ZOO / name
    if source.exists():
        raise CheckpointError(f"{source}: expected a checkpoint directory, got a file")
    close = difflib.get_close_matches(name, zoo_names(), n=1)
    hint = f"; did you mean the zoo's {close[0]}?" if close else ""
    raise CheckpointError(
        f"{source}: no such checkpoint directory, and no model of that name in the zoo{hint}"
    )
