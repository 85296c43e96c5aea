"""Which files make a checkpoint, and whether a directory is one. No torch: the command line asks before it starts.

    config.json        schema version, model, task, recipe, seeds, versions
    model.safetensors  the parameters
    history.jsonl      one evaluation a line (only where there was training)
    training.pt        optimizer and generators (only while a run can be resumed)
"""

import json
from pathlib import Path
from typing import Any

SCHEMA = 1
CONFIG, WEIGHTS, HISTORY = "config.json", "model.safetensors", "history.jsonl"
FILES = {CONFIG, WEIGHTS, HISTORY, "training.pt"}
"""All that a checkpoint directory may hold; one with anything else in it is never replaced."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or written, with the reason in one sentence."""


def check_replaceable(target: Path) -> None:
    """Refuse a place where writing a checkpoint would destroy something that is not one."""
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    if not target.is_dir():
        raise CheckpointError(f"{target}: expected a directory, got a file")
    foreign = sorted({entry.name for entry in target.iterdir()} - FILES)
    if foreign:
        raise CheckpointError(f"{target}: expected a new or empty directory, or a checkpoint; it holds {foreign[0]}")
    read_config(target)


def read_config(source: Path) -> dict[str, Any]:
    try:
        config = json.loads((source / CONFIG).read_text())
    except FileNotFoundError as error:
        raise CheckpointError(f"{source}: not a checkpoint, {CONFIG} is missing") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{source / CONFIG}: not readable as JSON ({error})") from error
    if not isinstance(config, dict) or config.get("schema") != SCHEMA:
        found = config.get("schema") if isinstance(config, dict) else type(config).__name__
        raise CheckpointError(f"{source / CONFIG}: expected checkpoint schema {SCHEMA}, got {found!r}")
    return config
