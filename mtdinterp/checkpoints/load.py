"""A checkpoint read back. Loading reads JSON and tensors and never executes anything from the
directory."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mtdinterp import registry
from mtdinterp.checkpoint_files import (
    CONFIG,
    HISTORY,
    WEIGHTS,
    CheckpointError,
    find_checkpoint,
    read_config,
)
from mtdinterp.checkpoints.digests import CHECKSUMS, EVALUATION, config_digest, tensors_digest
from mtdinterp.checkpoints.save import check_pair
from mtdinterp.checks import check_option
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A loaded checkpoint."""

    model: LensTransformer
    task: MTDTask
    config: dict[str, Any]
    """All of config.json; the model's own frozen configuration is `model.config`."""
    history: list[dict[str, Any]]
    path: Path

    def __repr__(self) -> str:
        """Where it is, what it is and how good: the configuration and history in full fill
        pages."""
        model = self.model.config
        what = (
            f"{model.architecture}, {model.n_layers} layers, m = {self.task.order}, T = "
            f"{model.length}"
        )
        last = self.history[-1] if self.history else None
        found = f"; step {last['step']}" if last else ""
        found += (
            f": KL {last['kl']:.5f}" if last and isinstance(last.get("kl"), int | float) else ""
        )
        found += f", {last['branch']}" if last and last.get("branch") else ""
        return f"Checkpoint({self.path.name}: {what}{found})"


def load_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Read a checkpoint directory, or one of the models that ship with the package by its name.

    The model comes back in evaluation mode.
    """
    source = find_checkpoint(path)
    config = read_config(source)
    model, task = build(source, config)
    evaluation = _load_weights(model, source / WEIGHTS, config)
    history = read_history(source)
    if (
        evaluation is not None
    ):  # of a run that goes on, or was killed between two files, the history may be another's
        history = [*(entry for entry in history if entry["step"] < evaluation["step"]), evaluation]
    return Checkpoint(model.eval(), task, config, history, source)


def build(source: Path, config: Mapping[str, Any]) -> tuple[LensTransformer, MTDTask]:
    """The untrained model and the task that a configuration describes."""
    try:
        model = _build_model(config["model"])
        task = _build_task(config["task"])
        check_pair(model, task)
    except registry.UnknownName as error:
        raise CheckpointError(f"{source / CONFIG}: {error}") from error
    except KeyError as error:
        raise CheckpointError(f"{source / CONFIG}: entry {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source / CONFIG}: {error}") from error
    return model, task


def _build_model(values: Mapping[str, Any]) -> LensTransformer:
    if not isinstance(values, dict):
        raise ValueError(f"expected model to be an object, got {values!r}")
    name = values["architecture"]
    if not isinstance(name, str):
        raise ValueError(f"expected architecture to be a name, got {name!r}")
    return registry.ARCHITECTURES[name].from_dict(values)


def _build_task(values: Mapping[str, Any]) -> MTDTask:
    if not isinstance(values, dict):
        raise ValueError(f"expected task to be an object, got {values!r}")
    for name in values:
        check_option("task field", name, ("transition", "order", "concentration"))
    return MTDTask(**values)


def read_history(source: Path) -> list[dict[str, Any]]:
    path = source / HISTORY
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        for line in lines:
            _check_entry(line)
        return lines
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON lines ({error})") from error


def _check_entry(line: Any) -> None:
    """Readings are numbers, words or nothing, and every evaluation has its step."""
    if not isinstance(line, dict):
        raise ValueError("expected an object a line")
    step = line.get("step")
    if isinstance(step, bool) or not isinstance(step, int):
        raise ValueError(f"expected a step in every line, got {step!r}")
    for name, value in line.items():
        if not (value is None or isinstance(value, str | int | float)):
            raise ValueError(f"expected a number for {name}, got {value!r:.60}")


def _load_weights(
    model: LensTransformer, path: Path, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Fill the model, in the stored dtype, with exactly the tensors it has; what was found of them,
    if that is said."""
    try:
        with safe_open(path, framework="pt") as file:  # opened once: a run may replace it meanwhile
            stored = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing") from error
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error
    actual = [tensors_digest(tensors), config_digest(config)]
    try:  # other writers leave no checksums, and that is fine
        wanted = json.loads(stored[CHECKSUMS]) if CHECKSUMS in stored else actual
        if not isinstance(wanted, list) or len(wanted) != len(actual):
            raise ValueError(f"expected {len(actual)} checksums, got {wanted!r:.60}")
        evaluation = json.loads(stored[EVALUATION]) if EVALUATION in stored else None
        if evaluation is not None:
            _check_entry(evaluation)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error
    if wanted[0] != actual[0]:
        raise CheckpointError(f"{path}: damaged (its tensors do not have their checksum)")
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        name = sorted(set(expected.items()) ^ set(found.items()))[0][0]
        raise CheckpointError(
            f"{path}: does not fit its {CONFIG}: tensor {name} should have shape "
            f"{expected.get(name, 'none')}, has {found.get(name, 'none')}"
        )
    if wanted[1] != actual[1]:
        raise CheckpointError(
            f"{path}: belongs to another {CONFIG}, or that one is damaged (checksums differ)"
        )
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise CheckpointError(
            f"{path}: expected tensors of one floating-point type, got {sorted(map(str, dtypes))}"
        )
    model.to(dtypes.pop())
    model.load_state_dict(tensors)
    return evaluation
