"""Writing a model, its task and its history as a checkpoint."""

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from mtdinterp import __version__
from mtdinterp.bounded_files import resolved
from mtdinterp.checkpoint_files import (
    CONFIG,
    HISTORY,
    MOST_BYTES,
    SCHEMA,
    WEIGHTS,
    CheckpointError,
    check_replaceable,
)
from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.checkpoints.plugins_used import plugins_of
from mtdinterp.checkpoints.snapshots import Snapshot, write_snapshot
from mtdinterp.checkpoints.stored_weights import format_weights
from mtdinterp.history_lines import HistoryError, check_entry, check_order, format_history
from mtdinterp.models import LensTransformer
from mtdinterp.storage import InUse, publish, staged, write_file
from mtdinterp.tasks import Task


def save_checkpoint(
    path: str | os.PathLike,
    model: LensTransformer,
    task: Task,
    *,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    parent: Mapping[str, Any] | None = None,
    snapshots: Mapping[int, Snapshot] | None = None,
) -> Path:
    """Write a checkpoint.

    An older checkpoint at `path` is replaced. A run that can be resumed, or a directory with any
    other contents, is refused.

    Args:
        path: the directory to write.
        model: the model.
        task: the model's task.
        recipe: how the model was trained or constructed, as plain values.
        seeds: the seeds that were used, by what they decide.
        history: one entry per evaluation, each with its "step".
        parent: where the weights came from before training, if from another model.
        snapshots: the snapshots to keep of the run that trained the model, such as
            `checkpoint.snapshots`.

    Returns:
        The directory.

    Raises:
        CheckpointError: if the directory must not be replaced, or an argument does not fit.
        UnwritableFile: if the system refuses to write, for example because the disk is full. An
            older checkpoint is then intact.
    """
    target = resolved(path)
    config = describe(model, task, recipe, seeds, parent)
    _check_history(history)
    check_replaceable(target)
    with refusing_second_writer(), staged(target) as staging:
        write_config(staging, config)
        write_weights(staging, model, config)
        if history:
            write_history(staging, history)
        for step, snapshot in (snapshots or {}).items():
            _check_snapshot(snapshot, model)
            write_snapshot(staging, step, snapshot.load(), config)
        publish(staging, target)
    return target


def describe(
    model: LensTransformer,
    task: Task,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    parent: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The contents of config.json.

    Args:
        model: the model.
        task: the model's task.
        recipe: how the model was trained or constructed, as plain values.
        seeds: the seeds that were used, by what they decide.
        parent: where the weights came from before training, if from another model.

    Returns:
        Plain values for JSON.
    """
    check_pair(model, task)
    config = {
        "schema": SCHEMA,
        "model": model.config.to_dict(),
        "task": task.to_dict(),
        "recipe": dict(recipe) if recipe is not None else None,
        "seeds": dict(seeds or {}),
        "versions": versions(),
    }
    if parent is not None:
        config["parent"] = dict(parent)
    plugins = plugins_of(config)
    return {**config, "plugins": plugins} if plugins else config


def _check_snapshot(snapshot: Snapshot, model: LensTransformer) -> None:
    """Refuse a snapshot of another kind of model."""
    if snapshot.model_config != model.config:
        raise CheckpointError(
            f"{snapshot.path}: expected a snapshot of a model with the same configuration"
        )


def parent_of(name: str, model: LensTransformer) -> dict[str, Any]:
    """What a checkpoint of a grown model records about the model that it started from.

    Args:
        name: the name of the parent's checkpoint.
        model: the parent.

    Returns:
        Plain values for config.json.
    """
    return {
        "name": name,
        "length": model.config.length,
        "weights_sha256": tensors_digest(model.state_dict()),
    }


def _check_history(history: Sequence[Mapping[str, Any]]) -> None:
    """Refuse evaluations that could not be read back."""
    try:
        for entry in history:
            check_entry(dict(entry))
        check_order(history)
    except HistoryError as error:
        raise CheckpointError(f"history: {error}") from error


def check_pair(model: LensTransformer, task: Task) -> None:
    """Refuse a model and a task with different vocabularies."""
    if model.config.vocab_size != task.vocab_size:
        raise CheckpointError(
            f"task: expected a vocabulary of {model.config.vocab_size} tokens, like the model, "
            f"got {task.vocab_size}"
        )


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write config.json."""
    content = (json.dumps(config, indent=1) + "\n").encode()
    if len(content) > MOST_BYTES[CONFIG]:
        raise CheckpointError(
            f"{directory / CONFIG}: expected at most {MOST_BYTES[CONFIG]:,} bytes, got "
            f"{len(content):,}; the task or the recipe is too large for a checkpoint"
        )
    write_file(directory / CONFIG, content)


def write_weights(
    directory: Path,
    model: LensTransformer,
    config: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None = None,
) -> None:
    """Write model.safetensors; `format_weights` describes the arguments.

    Args:
        directory: where to write.
        model: the model whose parameters are written.
        config: the contents of config.json.
        evaluation: the line of the history that describes these weights.
    """
    write_file(directory / WEIGHTS, format_weights(model, config, evaluation))


def write_history(directory: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Write history.jsonl, one evaluation per line."""
    write_file(directory / HISTORY, format_history(history).encode())


@contextmanager
def refusing_second_writer() -> Iterator[None]:
    """Report a directory that another process writes to as an error of the checkpoint."""
    try:
        yield
    except InUse as error:
        raise CheckpointError(str(error)) from error


def versions() -> dict[str, str]:
    """Versions of the software that results depend on."""
    return {
        "mtdinterp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformer-lens": version("transformer-lens"),
    }
