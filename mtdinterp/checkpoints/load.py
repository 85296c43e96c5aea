"""Reading a checkpoint: JSON and tensors only; nothing in the directory is ever executed."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mtdinterp import registry
from mtdinterp.checkpoint_files import (
    CONFIG,
    HISTORY,
    WEIGHTS,
    CheckpointError,
    MissingKind,
    find_checkpoint,
    parse_config,
    read_together,
)
from mtdinterp.checkpoints.plugins_used import warn_of_other_plugins, written_with
from mtdinterp.checkpoints.save import check_pair
from mtdinterp.checkpoints.snapshots import Snapshot, find_snapshots
from mtdinterp.checkpoints.stored_weights import fill
from mtdinterp.formatting import counted
from mtdinterp.history_lines import HistoryError, parse_history
from mtdinterp.models import LensTransformer
from mtdinterp.models.config import ModelConfig
from mtdinterp.tasks import MTDTask, Task, task_from_dict


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded checkpoint."""

    model: LensTransformer
    task: Task
    config: dict[str, Any]
    """The contents of config.json; the model's own frozen configuration is `model.config`."""
    history: list[dict[str, Any]]
    """One entry per evaluation; empty for a model that was not trained here."""
    path: Path

    @property
    def snapshots(self) -> dict[int, Snapshot]:
        """The snapshots of the training run by step; each is read when its `load` is called."""
        return find_snapshots(self.path, self.model.config, self.config)

    def __repr__(self) -> str:
        """Name, shape and last score in one line; config and history in full would fill pages."""
        return f"Checkpoint({self.path.name}: {self._shape()}{self._last_score()})"

    def _shape(self) -> str:
        model = self.model.config
        parts = [
            f"{model.architecture}, {counted(model.n_layers, 'layer')}",
            f"m = {self.task.n_components}, T = {model.length}",
        ]
        if not isinstance(self.task, MTDTask):
            parts.append(self.task.label)
        return ", ".join(parts)

    def _last_score(self) -> str:
        if not self.history:
            return ""
        last = self.history[-1]
        text = f"; step {last['step']}"
        if isinstance(last.get("kl"), int | float):
            text += f": KL {last['kl']:.5f}"
        if last.get("branch"):
            text += f", {last['branch']}"
        return text


def load_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Read a checkpoint directory, or a model that ships with the package by its name.

    The model is returned in evaluation mode.
    """
    source = find_checkpoint(path)
    # All files are read before any is used, because a run may replace them at any moment.
    contents = read_together(source, (CONFIG, WEIGHTS, HISTORY))
    config = parse_config(source, contents.get(CONFIG))
    model, task = build(source, config)
    warn_of_other_plugins(source, config)
    evaluation = fill(model, source / WEIGHTS, contents.get(WEIGHTS), config)
    history = _parse_history(source, contents.get(HISTORY))
    if evaluation is not None:
        # While a run is writing, or if it was killed between two files, the history may be older
        # or newer than the weights. The entry stored with the weights is the one that fits them.
        earlier = [entry for entry in history if entry["step"] < evaluation["step"]]
        history = [*earlier, evaluation]
    return Checkpoint(model.eval(), task, config, history, source)


def build(source: Path, config: Mapping[str, Any]) -> tuple[LensTransformer, Task]:
    """The untrained model and the task that a configuration describes.

    Args:
        source: the checkpoint's directory, for error messages.
        config: the contents of config.json.

    Returns:
        The model and the task.
    """
    return build_from(source / CONFIG, config)


def build_from(path: Path, config: Mapping[str, Any]) -> tuple[LensTransformer, Task]:
    """`build`, for a configuration in a file of any name.

    Args:
        path: the file, for error messages.
        config: its contents.

    Returns:
        The model and the task.
    """
    task = _read_task(path, config)
    with named_errors(path, written_with(config, "architecture")):
        model = build_model(config["model"])
        check_pair(model, task)
    return model, task


def read_task(source: Path, config: Mapping[str, Any]) -> Task:
    """The task that a configuration describes, without its model.

    Args:
        source: the checkpoint's directory, for error messages.
        config: the contents of config.json.

    Returns:
        The task.
    """
    return _read_task(source / CONFIG, config)


def _read_task(path: Path, config: Mapping[str, Any]) -> Task:
    with named_errors(path, written_with(config, "task")):
        return _build_task(config["task"])


@contextmanager
def named_errors(path: Path | str, written_with: str = "") -> Iterator[None]:
    """Convert errors in a configuration to a CheckpointError that names its file.

    Args:
        path: the file.
        written_with: what to say about the plugin that provides an unknown kind.
    """
    try:
        yield
    except registry.UnknownName as error:
        sentence = str(error)
        if written_with and not sentence.endswith("?"):
            sentence += "."
        raise MissingKind(f"{path}: {sentence}{written_with}") from error
    except KeyError as error:
        raise CheckpointError(f"{path}: entry {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from error


def build_model(values: ModelConfig | Mapping[str, Any]) -> LensTransformer:
    """The untrained model of a configuration, or of what its `to_dict` writes."""
    if isinstance(values, ModelConfig):
        return registry.ARCHITECTURES[values.architecture].build(values)
    if not isinstance(values, dict):
        raise ValueError(f"expected model to be an object, got {values!r:.60}")
    name = values["architecture"]
    if not isinstance(name, str):
        raise ValueError(f"expected architecture to be a name, got {name!r:.60}")
    return registry.ARCHITECTURES[name].from_dict(values)


def _build_task(values: Mapping[str, Any]) -> Task:
    if not isinstance(values, dict):
        raise ValueError(f"expected task to be an object, got {values!r:.60}")
    return task_from_dict(values)


def read_history(source: Path) -> list[dict[str, Any]]:
    """The evaluations in a checkpoint's history file; empty if it has none."""
    return _parse_history(source, read_together(source, (HISTORY,)).get(HISTORY))


def _parse_history(source: Path, content: bytes | None) -> list[dict[str, Any]]:
    if content is None:
        return []
    try:
        return parse_history(content.decode())
    except (HistoryError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{source / HISTORY}: {error}") from error
