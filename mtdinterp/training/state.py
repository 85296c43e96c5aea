"""The state of a run, training.pt: written as one file, and checked field by field when read.

Everything in the file is untrusted. Tensors must have the shapes and types of the parameters that
they belong to, because the optimizer's compiled step does not check them. The optimizer's settings
are not read at all: they come from the recipe.
"""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mtdinterp import history_lines
from mtdinterp.checkpoint_files import SCHEMA, TRAINING, CheckpointError, read_together
from mtdinterp.checkpoints.digests import RUN_PARTS, config_digest
from mtdinterp.checkpoints.torch_files import DamagedFile, ForeignObjects, is_plain, load_plain
from mtdinterp.history_lines import HistoryError, check_entry, check_order, parse_list
from mtdinterp.storage import write_file
from mtdinterp.training.loop import Trainer

MOMENTS = ("exp_avg", "exp_avg_sq")
"""Adam's running means of the gradient and of its square, with the shape of the parameter."""
DTYPES = (torch.float32, torch.float64)


class StateError(Exception):
    """Why a training state cannot be used, without the file's name."""


@dataclass(frozen=True, eq=False)
class SavedState:
    """Everything that resuming needs, with the types that it must have."""

    step: int
    weights: dict[str, Tensor]
    """Parameters by name, with the model's shapes and dtype."""
    optimizer: dict[int, dict[str, Tensor]]
    """Adam's state by the parameter's place in the optimizer."""
    losses: list[float]
    """Loss of every step since the last evaluation."""
    history: list[dict[str, Any]]
    seconds: float
    circumstances: dict[str, Any]
    """Properties of the machine that affect the last bits of a step."""


def write_state(directory: Path, trainer: Trainer, config: Mapping[str, Any]) -> None:
    """Write training.pt, the only file that resuming depends on besides config.json.

    Args:
        directory: the run's directory.
        trainer: the run.
        config: the contents of the directory's config.json.
    """
    state = {
        **trainer.state(),
        "schema": SCHEMA,
        "config_sha256": config_digest(config, RUN_PARTS),
    }
    content = io.BytesIO()
    torch.save(state, content)
    write_file(directory / TRAINING, content.getvalue())


def read_state(source: Path, n_parameters: int | None = None) -> dict[str, Any]:
    """The contents of training.pt: tensors and plain values, not checked yet.

    Anything else in the file is refused, never executed.

    Args:
        source: the run's directory.
        n_parameters: the size of the model, which bounds the size of the file; if None, the file
            may have as many bytes as any training state.

    Returns:
        What `write_state` wrote.
    """
    path = source / TRAINING
    most_bytes = None
    if n_parameters is not None:
        # Weights and two moments in double precision, and the history.
        most_bytes = 3 * 8 * n_parameters + 2 * history_lines.MOST_BYTES
    content = read_together(source, (TRAINING,), most_bytes).get(TRAINING)
    if content is None:
        raise CheckpointError(f"{path}: missing, so this checkpoint cannot be resumed")
    try:
        state = load_plain(content)
    except ForeignObjects as error:
        reason = "it holds objects other than tensors; they were not loaded"
        raise CheckpointError(f"{path}: damaged, or not written by mtdinterp ({reason})") from error
    except DamagedFile as error:
        raise CheckpointError(f"{path}: damaged, or not written by mtdinterp ({error})") from error
    is_state = isinstance(state, dict) and "config_sha256" in state
    # The type first: comparing a tensor with a number gives a tensor.
    if not is_state or type(state.get("schema")) is not int or state["schema"] != SCHEMA:
        raise CheckpointError(
            f"{path}: expected a training state of checkpoint schema {SCHEMA}, written by mtdinterp"
        )
    return state


def stored_dtype(state: Mapping[str, Any]) -> torch.dtype:
    """The dtype of the weights in a state.

    Raises:
        StateError: if they are not tensors of one dtype that models here can have.
    """
    weights = _field(state, "model", dict)
    dtypes = {tensor.dtype for tensor in weights.values() if is_plain(tensor)}
    if len(dtypes) != 1 or not dtypes <= set(DTYPES):
        raise StateError(f"expected weights in float32 or float64, got {sorted(map(str, dtypes))}")
    return dtypes.pop()


def checked_state(state: Mapping[str, Any], trainer: Trainer) -> SavedState:
    """A state whose every field fits the trainer.

    Args:
        state: the contents of training.pt.
        trainer: the run as it begins, with a model of the stored dtype.

    Returns:
        The state.

    Raises:
        StateError: with the field and the reason.
    """
    step = _field(state, "step", int)
    if not 0 <= step <= trainer.recipe.steps:
        raise StateError(f"expected a step in 0..{trainer.recipe.steps}, got {step}")
    seconds = _field(state, "seconds", float)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise StateError(f"expected a time in seconds, got {seconds}")
    weights = trainer.model.state_dict()
    circumstances = trainer.circumstances()
    for name, value in circumstances.items():
        circumstances[name] = _field(state, name, type(value))
    return SavedState(
        step=step,
        weights=_weights(_field(state, "model", dict), weights),
        optimizer=_optimizer(_field(state, "optimizer", dict), trainer.optimizer, step),
        losses=_losses(state, trainer.recipe.evaluate_every),
        history=_history(_field(state, "history", str), step),
        seconds=seconds,
        circumstances=circumstances,
    )


def _field(state: Mapping[str, Any], name: str, kind: type) -> Any:
    """A field of exactly the given type."""
    if name not in state:
        raise StateError(f"{name} is missing")
    value = state[name]
    if type(value) is not kind:
        # Only the type: what a hostile value looks like may take for ever to say.
        found = type(value).__name__
        raise StateError(f"expected {name} to be of type {kind.__name__}, got {found}")
    return value


def _weights(given: Mapping[Any, Any], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters, with exactly the model's names."""
    if set(given) != set(expected):
        name = sorted(map(str, set(given) ^ set(expected)))[0]
        raise StateError(f"expected the weights of the model, got others (first: {name!r:.60})")
    return {name: _like(name, given[name], tensor) for name, tensor in expected.items()}


def _optimizer(
    given: Mapping[str, Any], optimizer: torch.optim.Optimizer, step: int
) -> dict[int, dict[str, Tensor]]:
    """Adam's state of every parameter; a parameter that never had a gradient has none."""
    entries = _field(given, "state", dict)
    parameters: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    checked = {}
    for place, entry in entries.items():
        if type(place) is not int or not 0 <= place < len(parameters):
            raise StateError(
                f"expected an optimizer state for parameters 0..{len(parameters) - 1}, got "
                f"{place!r:.60}"
            )
        checked[place] = _adam_entry(f"optimizer state {place}", entry, parameters[place], step)
    return checked


def _adam_entry(name: str, entry: Any, parameter: Tensor, step: int) -> dict[str, Tensor]:
    """Adam's state of one parameter."""
    if not isinstance(entry, dict) or set(entry) != {"step", *MOMENTS}:
        raise StateError(f"expected {name} to have step, exp_avg and exp_avg_sq")
    steps = _like(f"{name}, step", entry["step"], torch.zeros(()))
    taken = steps.item()
    if taken != int(taken) or not 0 <= taken <= step:
        raise StateError(f"expected {name}, step to be at most {step}, got {taken:g}")
    moments = {key: _like(f"{name}, {key}", entry[key], parameter) for key in MOMENTS}
    if bool((moments["exp_avg_sq"] < 0).any()):
        raise StateError(f"expected {name}, exp_avg_sq to be non-negative")
    return {"step": steps, **moments}


def _like(name: str, tensor: Any, expected: Tensor) -> Tensor:
    """A finite tensor of the expected shape and dtype, as a copy with a memory of its own."""
    wanted = f"{tuple(expected.shape)} in {expected.dtype}"
    if not is_plain(tensor):
        raise StateError(f"expected {name} to be a tensor {wanted}, got {type(tensor).__name__}")
    if tensor.shape != expected.shape or tensor.dtype != expected.dtype:
        found = f"{tuple(tensor.shape)} in {tensor.dtype}"
        raise StateError(f"expected {name} to be a tensor {wanted}, got {found}")
    if not bool(torch.isfinite(tensor).all()):
        raise StateError(f"expected {name} to be finite")
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _losses(state: Mapping[str, Any], most: int) -> list[float]:
    losses = _field(state, "losses", Tensor)
    if losses.ndim != 1 or len(losses) > most:
        raise StateError(
            f"expected the losses of at most {most} steps, got shape {tuple(losses.shape)}"
        )
    return _like("losses", losses, torch.zeros(len(losses), dtype=torch.float64)).tolist()


def _history(text: str, step: int) -> list[dict[str, Any]]:
    """The evaluations up to a step, each with all its fields."""
    try:
        entries = parse_list(text)
        for entry in entries:
            check_entry(entry, complete=True)
        check_order(entries)
    except HistoryError as error:
        raise StateError(f"history: {error}") from error
    if entries and entries[-1]["step"] > step:
        raise StateError(f"history: expected evaluations up to step {step}, got a later one")
    return entries
