"""A model, its task and its history written as a checkpoint."""

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
from mtdinterp.checkpoints.replace import move_into_place, open_to_umask, replacing, staged
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask


def save_checkpoint(
    path: str | os.PathLike,
    model: LensTransformer,
    task: MTDTask,
    *,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a checkpoint; an older checkpoint at `path` is replaced, a run or anything else there
    is refused."""
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
    task: MTDTask,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The contents of config.json."""
    check_pair(model, task)
    return {
        "schema": SCHEMA,
        "model": model.config.to_dict(),
        "task": {
            "transition": task.transition.tolist(),
            "order": task.order,
            "concentration": task.concentration,
        },
        "recipe": dict(recipe) if recipe is not None else None,
        "seeds": dict(seeds or {}),
        "versions": versions(),
    }


def check_pair(model: LensTransformer, task: MTDTask) -> None:
    """Refuse a model and a task with different alphabets."""
    if model.config.vocab_size != task.vocab_size:
        raise CheckpointError(
            f"the model has {model.config.vocab_size} tokens and the task {task.vocab_size}"
        )


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    with replacing(directory / CONFIG) as path:
        path.write_text(json.dumps(config, indent=1) + "\n")


def write_weights(
    directory: Path,
    model: LensTransformer,
    config: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None = None,
) -> None:
    """Tensors with checksums of themselves and of what the configuration says about model and task,
    and the line of a run's history that is about them: the history is another file, which may be
    ahead or behind."""
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()
    }
    with replacing(directory / WEIGHTS) as path:
        try:
            save_file(
                tensors,
                path,
                metadata={
                    CHECKSUMS: json.dumps([tensors_digest(tensors), config_digest(config)]),
                    **({EVALUATION: json.dumps(dict(evaluation))} if evaluation else {}),
                },
            )
        except SafetensorError as error:
            raise CheckpointError(f"{directory / WEIGHTS}: cannot be written ({error})") from error


def write_history(directory: Path, history: Sequence[Mapping[str, Any]]) -> None:
    with replacing(directory / HISTORY) as path:
        path.write_text("".join(json.dumps(dict(line)) + "\n" for line in history))


def versions() -> dict[str, str]:
    """What decides results, by name."""
    return {
        "mtdinterp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformer-lens": version("transformer-lens"),
    }
