"""Writing a model, its task and its history as a checkpoint."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from mtdinterp import __version__
from mtdinterp.checkpoint_files import (
    CONFIG,
    HISTORY,
    SCHEMA,
    WEIGHTS,
    CheckpointError,
    check_replaceable,
)
from mtdinterp.checkpoints.digests import CHECKSUMS, EVALUATION, config_digest, tensors_digest
from mtdinterp.checkpoints.plugins_used import plugins_of
from mtdinterp.checkpoints.replace import move_into_place, open_to_umask, replacing, staged
from mtdinterp.models import LensTransformer
from mtdinterp.tasks import Task


def save_checkpoint(
    path: str | os.PathLike,
    model: LensTransformer,
    task: Task,
    *,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
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

    Returns:
        The directory.
    """
    target = Path(path).expanduser().resolve()
    config = describe(model, task, recipe, seeds)
    check_replaceable(target)
    with staged(target) as staging:
        write_config(staging, config)
        write_weights(staging, model, config)
        if history:
            write_history(staging, history)
        open_to_umask(staging)
        move_into_place(staging, target)
    return target


def describe(
    model: LensTransformer,
    task: Task,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The contents of config.json.

    Args:
        model: the model.
        task: the model's task.
        recipe: how the model was trained or constructed, as plain values.
        seeds: the seeds that were used, by what they decide.

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
    plugins = plugins_of(config)
    return {**config, "plugins": plugins} if plugins else config


def check_pair(model: LensTransformer, task: Task) -> None:
    """Refuse a model and a task with different vocabularies."""
    if model.config.vocab_size != task.vocab_size:
        raise CheckpointError(
            f"task: expected a vocabulary of {model.config.vocab_size} tokens, like the model, "
            f"got {task.vocab_size}"
        )


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    """Write config.json."""
    with replacing(directory / CONFIG) as path:
        path.write_text(json.dumps(config, indent=1) + "\n")


def write_weights(
    directory: Path,
    model: LensTransformer,
    config: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None = None,
) -> None:
    """Write model.safetensors with checksums of the tensors and of the model and task entries.

    Args:
        directory: where to write.
        model: the model whose parameters are written.
        config: the contents of config.json.
        evaluation: the line of the history that describes these weights. It is stored with them
            because the history is a separate file, which may be older or newer.
    """
    state = model.state_dict()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    checksums = [tensors_digest(tensors), config_digest(config)]
    metadata = {CHECKSUMS: json.dumps(checksums)}
    if evaluation:
        metadata[EVALUATION] = json.dumps(dict(evaluation))
    with replacing(directory / WEIGHTS) as path:
        try:
            save_file(tensors, path, metadata=metadata)
        except SafetensorError as error:
            raise CheckpointError(f"{directory / WEIGHTS}: cannot be written ({error})") from error


def write_history(directory: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Write history.jsonl, one evaluation per line."""
    lines = [json.dumps(dict(entry)) + "\n" for entry in history]
    with replacing(directory / HISTORY) as path:
        path.write_text("".join(lines))


def versions() -> dict[str, str]:
    """Versions of the software that results depend on."""
    return {
        "mtdinterp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformer-lens": version("transformer-lens"),
    }
