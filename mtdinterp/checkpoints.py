"""Checkpoints: a directory that holds a model, the task it belongs to, and how it came to be.

`checkpoint_files` says which files those are. Loading reads JSON and tensors and never executes anything from
the directory.
"""

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mtdinterp import __version__
from mtdinterp.checkpoint_files import (
    CONFIG,
    HISTORY,
    SCHEMA,
    UNFINISHED,
    WEIGHTS,
    CheckpointError,
    check_replaceable,
    find_checkpoint,
    read_config,
)
from mtdinterp.checks import check_option
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    LensTransformer,
    StandardConfig,
    StandardTransformer,
)
from mtdinterp.task import MTDTask

CHECKSUMS = "checksums"
"""Where the weights' file keeps them: of its tensors, and of what its configuration says of model and task."""


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
        """Where it is, what it is and how good: the configuration and history in full fill pages."""
        model = self.model.config
        what = f"{model.architecture}, {model.n_layers} layers, m = {self.task.order}, T = {model.length}"
        last = self.history[-1] if self.history else None
        found = f"; step {last['step']}: KL {last['kl']:.5f}, {last['branch']}" if last else ""
        return f"Checkpoint({self.path.name}: {what}{found})"


def save_checkpoint(
    path: str | os.PathLike,
    model: LensTransformer,
    task: MTDTask,
    *,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    history: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write a checkpoint; an older checkpoint at `path` is replaced, anything else there is refused."""
    target = Path(path).expanduser().resolve()
    config = describe(model, task, recipe, seeds)
    check_replaceable(target)
    with staged(target) as staging:
        write_config(staging, config)
        write_weights(staging, model, config)
        if history:
            write_history(staging, history)
        open_to_umask(staging)
        _move_into_place(staging, target)
    return target


def describe(
    model: LensTransformer,
    task: MTDTask,
    recipe: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """The contents of config.json."""
    _check_pair(model, task)
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
        "versions": _versions(),
    }


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A directory beside `target` to fill and move there when complete, so that nobody ever sees half of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write, which takes its place in one step."""
    handle, name = tempfile.mkstemp(prefix=UNFINISHED, dir=path.parent)
    os.close(handle)
    unfinished = Path(name)
    try:
        yield unfinished
        unfinished.chmod(0o666 & ~_umask())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    with replacing(directory / CONFIG) as path:
        path.write_text(json.dumps(config, indent=1) + "\n")


def write_weights(directory: Path, model: LensTransformer, config: Mapping[str, Any]) -> None:
    """Tensors with checksums of themselves and of what the configuration says about model and task."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with replacing(directory / WEIGHTS) as path:
        try:
            save_file(tensors, path, metadata={CHECKSUMS: json.dumps([tensors_digest(tensors), config_digest(config)])})
        except SafetensorError as error:
            raise CheckpointError(f"{directory / WEIGHTS}: cannot be written ({error})") from error


def write_history(directory: Path, history: Sequence[Mapping[str, Any]]) -> None:
    with replacing(directory / HISTORY) as path:
        path.write_text("".join(json.dumps(dict(line)) + "\n" for line in history))


def load_checkpoint(path: str | os.PathLike) -> Checkpoint:
    """Read a checkpoint directory, or one of the models that ship with the package by its name.

    The model comes back in evaluation mode.
    """
    source = find_checkpoint(path)
    config = read_config(source)
    model, task = build(source, config)
    _load_weights(model, source / WEIGHTS, config)
    return Checkpoint(model.eval(), task, config, read_history(source), source)


def build(source: Path, config: Mapping[str, Any]) -> tuple[LensTransformer, MTDTask]:
    """The untrained model and the task that a configuration describes."""
    try:
        model = _build_model(config["model"])
        task = _build_task(config["task"])
        _check_pair(model, task)
    except KeyError as error:
        raise CheckpointError(f"{source / CONFIG}: entry {error} is missing") from error
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source / CONFIG}: {error}") from error
    return model, task


def _check_pair(model: LensTransformer, task: MTDTask) -> None:
    if model.config.vocab_size != task.vocab_size:
        raise CheckpointError(f"the model has {model.config.vocab_size} tokens and the task {task.vocab_size}")


def _build_model(values: Mapping[str, Any]) -> LensTransformer:
    if not isinstance(values, dict):
        raise ValueError(f"expected model to be an object, got {values!r}")
    architecture = values["architecture"]
    if architecture == DisentangledConfig.architecture:
        return DisentangledTransformer(DisentangledConfig.from_dict(values))
    if architecture == StandardConfig.architecture:
        return StandardTransformer(StandardConfig.from_dict(values))
    raise ValueError(f"expected architecture disentangled or standard, got {architecture!r}")


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
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("expected an object a line")
        return lines
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not readable as JSON lines ({error})") from error


def _load_weights(model: LensTransformer, path: Path, config: Mapping[str, Any]) -> None:
    """Fill the model, in the stored dtype, with exactly the tensors it has."""
    try:
        tensors = load_file(path)
        with safe_open(path, framework="pt") as file:
            stored = file.metadata() or {}
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing") from error
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error
    # Other writers leave no checksums, and that is fine.
    actual = [tensors_digest(tensors), config_digest(config)]
    wanted = json.loads(stored[CHECKSUMS]) if CHECKSUMS in stored else actual
    if wanted[0] != actual[0]:
        raise CheckpointError(f"{path}: damaged (its tensors do not have their checksum)")
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected != found:
        name = sorted(set(expected.items()) ^ set(found.items()))[0][0]
        raise CheckpointError(f"{path}: does not fit its {CONFIG}: tensor {name} should have shape "
                              f"{expected.get(name, 'none')}, has {found.get(name, 'none')}")
    if wanted[1] != actual[1]:
        raise CheckpointError(f"{path}: belongs to another {CONFIG}, or that one is damaged (checksums differ)")
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise CheckpointError(f"{path}: expected tensors of one floating-point type, got {sorted(map(str, dtypes))}")
    model.to(dtypes.pop())
    model.load_state_dict(tensors)


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of names and contents."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def config_digest(config: Mapping[str, Any], parts: Sequence[str] = ("model", "task")) -> str:
    """A checksum of some parts of a configuration, the same before and after it was JSON."""
    meant = {part: config.get(part) for part in parts}
    return hashlib.sha256(json.dumps(meant, sort_keys=True).encode()).hexdigest()


def _move_into_place(staging: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        staging.rename(target)  # replaces an empty directory in one step
        return
    # A full directory cannot be replaced in one call: step aside, move in, and back if that fails. The old one is
    # removed only when the new one is in its place.
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    target.rename(aside / "old")
    try:
        staging.rename(target)
    except BaseException:
        (aside / "old").rename(target)
        aside.rmdir()
        raise
    shutil.rmtree(aside)


def open_to_umask(directory: Path) -> None:
    """Give a private staging directory the permissions that ordinary directories get here."""
    directory.chmod(0o777 & ~_umask())


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _versions() -> dict[str, str]:
    return {
        "mtdinterp": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformer-lens": version("transformer-lens"),
    }
