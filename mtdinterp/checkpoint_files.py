"""Which files make a checkpoint, and whether a directory is one.

config.json        schema version, model, task, recipe, seeds, versions
model.safetensors  the parameters
history.jsonl      one evaluation per line (only for trained models)
training.pt        optimizer and progress (only while a run can be resumed)
snapshots/         the parameters at earlier steps, such as 100.safetensors (only if asked for)

Nothing heavy is imported here: the command line checks paths before it imports torch.
"""

import difflib
import json
import os
import re
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from mtdinterp import history_lines
from mtdinterp.bounded_files import MissingFile, UnreadableFile, expanded, read_bounded
from mtdinterp.formatting import printable
from mtdinterp.storage import read_version, settled
from mtdinterp.storage.files import UNFINISHED

SCHEMA = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
HISTORY = "history.jsonl"
TRAINING = "training.pt"
SNAPSHOTS = "snapshots"
"""The directory of snapshots."""
FILES = {CONFIG, WEIGHTS, HISTORY, TRAINING, SNAPSHOTS}
"""Everything that a checkpoint directory may contain; a directory with other files is never
replaced.
"""
SNAPSHOT_NAME = re.compile(r"(0|[1-9][0-9]{0,14})\.safetensors")
"""The file name of a snapshot: the step, and the suffix."""
MOST_BYTES = {
    CONFIG: 16 * 10**6,
    WEIGHTS: 210 * 10**6,
    HISTORY: history_lines.MOST_BYTES,
    TRAINING: 750 * 10**6,
}
"""Larger files are refused before they are read. The largest model has 25 million parameters, which
are 0.2 GB in double precision, and three times as much with the optimizer's state."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written, with the reason in one sentence.

    The sentence may quote the file, so whatever could control a terminal is escaped.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class MissingKind(CheckpointError):
    """A checkpoint whose task or architecture comes from a plugin that is not installed."""


def check_new(target: Path, advice: str = "") -> None:
    """Refuse a directory for a new run unless it is new or empty."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    message = f"{target}: expected a new or empty directory{advice}"
    if (target / TRAINING).exists():
        message += f"; to resume the run in this directory, use --resume {target}"
    raise CheckpointError(message)


def check_replaceable(target: Path) -> None:
    """Refuse a directory in which writing a checkpoint would destroy a run or foreign files."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise CheckpointError(f"{target}: expected a directory, got a file")
    names = {entry.name for entry in target.iterdir() if not entry.name.startswith(UNFINISHED)}
    foreign = sorted(names - FILES) + _foreign_snapshots(target)
    if foreign:
        raise CheckpointError(
            f"{target}: expected a new or empty directory, or a checkpoint, but it contains "
            f"{foreign[0]}"
        )
    if TRAINING in names:
        raise CheckpointError(
            f"{target}: this directory contains a run that can be resumed ({TRAINING}); choose "
            "another directory"
        )
    read_config(target)


def _foreign_snapshots(target: Path) -> list[str]:
    """Names of files in a checkpoint's snapshots that are not snapshots."""
    directory = target / SNAPSHOTS
    if not directory.exists():
        return []
    if not directory.is_dir():
        return [SNAPSHOTS]
    names = sorted(entry.name for entry in directory.iterdir())
    foreign = []
    for name in names:
        if not SNAPSHOT_NAME.fullmatch(name) and not name.startswith(UNFINISHED):
            foreign.append(f"{SNAPSHOTS}/{name}")
    return foreign


def snapshot_file(step: int) -> str:
    """The path of a snapshot in its checkpoint's directory."""
    return f"{SNAPSHOTS}/{step}.safetensors"


def snapshot_steps(source: Path) -> list[int]:
    """The steps of which a checkpoint has a snapshot, in order; other files are not counted.

    Args:
        source: the checkpoint's directory.

    Returns:
        The steps; empty if there are no snapshots.
    """
    try:
        names = os.listdir(source / SNAPSHOTS)
    except OSError:
        return []
    found = [SNAPSHOT_NAME.fullmatch(name) for name in names]
    return sorted(int(match[1]) for match in found if match)


def read_config(source: Path) -> dict[str, Any]:
    """The contents of config.json, of the schema that this version writes."""
    return parse_config(source, read_together(source, (CONFIG,)).get(CONFIG))


def parse_config(source: Path, content: bytes | None) -> dict[str, Any]:
    """The contents of config.json, from its bytes.

    Args:
        source: the checkpoint's directory, for error messages.
        content: the bytes of the file; None if it is missing.

    Returns:
        The configuration, of the schema that this version writes.
    """
    if content is None:
        raise CheckpointError(f"{source}: not a checkpoint ({CONFIG} is missing)")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{source / CONFIG}: not valid JSON ({error})") from error
    if not isinstance(config, dict) or config.get("schema") != SCHEMA:
        found = config.get("schema") if isinstance(config, dict) else type(config).__name__
        raise CheckpointError(
            f"{source / CONFIG}: expected checkpoint schema {SCHEMA}, got {found!r:.60}"
        )
    return config


def read_together(
    source: Path, names: Iterable[str], most_bytes: int | None = None
) -> dict[str, bytes]:
    """Files of a checkpoint, all of the same version if the checkpoint is replaced meanwhile.

    Args:
        source: the checkpoint's directory.
        names: the files, each one of `FILES` or a snapshot's.
        most_bytes: larger files are refused; by default those over `MOST_BYTES`.

    Returns:
        The contents by name, without the files that are missing.
    """
    chosen = tuple(names)

    def read(directory: int) -> dict[str, bytes]:
        contents = {}
        for name in chosen:
            most = most_bytes_of(name) if most_bytes is None else most_bytes
            try:
                contents[name] = read_bounded(name, most, directory)
            except MissingFile:
                continue
            except UnreadableFile as error:
                raise CheckpointError(f"{source / name}: {error}") from error
        return contents

    try:
        return read_version(source, read)
    except OSError as error:
        raise CheckpointError(f"{source}: cannot be read ({error.strerror})") from error


def most_bytes_of(name: str) -> int:
    """How large a file of a checkpoint may be; a snapshot may be as large as the weights."""
    return MOST_BYTES.get(name, MOST_BYTES[WEIGHTS])


def read_file(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file of a bounded size.

    Args:
        path: the file.
        most_bytes: larger files are refused.

    Returns:
        The contents.
    """
    try:
        return read_bounded(path, most_bytes)
    except UnreadableFile as error:
        raise CheckpointError(f"{path}: {error}") from error


ZOO = Path(__file__).parent / "zoo"
"""The checkpoints that ship with the package, one directory each."""


def zoo_names() -> list[str]:
    """Names of the checkpoints that ship with the package."""
    if not ZOO.is_dir():
        return []
    visible = [entry for entry in ZOO.iterdir() if not entry.name.startswith(".")]
    return sorted(entry.name for entry in visible if (entry / CONFIG).is_file())


def model_name(architecture: str, order: int, length: int, layers: int = 3, seed: int = 0) -> str:
    """A model's name in the zoo: {architecture}-m{m}-T{T}[-L{layers}][-s{seed}].

    Args:
        architecture: the architecture's name.
        order: the number of lags m.
        length: tokens per sequence T.
        layers: number of layers; shown unless it is 3.
        seed: the model's seed; shown unless it is 0.

    Returns:
        The name.
    """
    depth = "" if layers == 3 else f"-L{layers}"
    numbered = f"-s{seed}" if seed else ""
    return f"{architecture}-m{order}-T{length}{depth}{numbered}"


def short_name(path: Path, among: Iterable[Path]) -> str:
    """The shortest suffix of a path that distinguishes it from the other paths."""
    own = _parts(path)
    others = [_parts(entry) for entry in among]
    different = [other for other in others if other != own]
    for depth in count(1):
        end = own[-depth:]
        if all(other[-depth:] != end for other in different):
            return "/".join(end)
    raise AssertionError("different paths have different ends")


def _parts(path: Path) -> list[str]:
    """The parts of a path without its root."""
    return [part for part in path.parts if part != path.anchor]


def find_checkpoint(path: str | os.PathLike) -> Path:
    """The directory that a path or the name of a zoo model refers to.

    A path that exists takes precedence over a name.
    """
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise CheckpointError(
            f"expected a checkpoint directory or the name of a zoo model, got {path!r}"
        )
    source = expanded(path)
    name = os.fspath(path)
    if source.is_dir() or settled(source):
        return source
    if name in zoo_names():
        return ZOO / name
    if source.exists():
        raise CheckpointError(f"{source}: expected a checkpoint directory, got a file")
    close = difflib.get_close_matches(name, zoo_names(), n=1)
    hint = f"; did you mean the zoo's {close[0]}?" if close else ""
    raise CheckpointError(
        f"{source}: no such checkpoint directory, and no model of that name in the zoo{hint} "
        "(mtdinterp zoo lists its models)"
    )
