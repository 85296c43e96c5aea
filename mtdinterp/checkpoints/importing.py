"""Weights of another program as a checkpoint: names, orientation, shapes, and a reference run."""

import difflib
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mtdinterp.bounded_files import expanded
from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.checkpoints.load import Checkpoint, build_model, named_errors
from mtdinterp.checkpoints.reference import check_reference, square_parameters
from mtdinterp.checkpoints.save import describe
from mtdinterp.checkpoints.weight_files import read_weights
from mtdinterp.checks import ArrayLike
from mtdinterp.models import LensTransformer
from mtdinterp.models.config import ModelConfig
from mtdinterp.tasks import Task

TRANSPOSE = "transpose"
IN_MEMORY = Path("imported")
"""The path, and so the name, of a checkpoint whose weights did not come from a file."""
DTYPES = (torch.float32, torch.float64)
NUMPY_DTYPES = ("<f4", "<f8", ">f4", ">f8")
OTHER_CONTENT = 64 * 2**20
"""Bytes that a weights file may have beyond eight times the size of the model."""

Names = Mapping[str, Any]
"""Our name of a parameter, and the foreign tensor's name or the pair (name, "transpose").

The values are checked when they are used, because they may come from a JSON file."""


class UncheckedOrientation(UserWarning):
    """Weights were imported without a reference, so a wrong transpose would go unnoticed."""


def import_checkpoint(
    source: Mapping[str, Any] | str | os.PathLike,
    config: ModelConfig | Mapping[str, Any],
    task: Task,
    mapping: Names | None = None,
    reference: tuple[ArrayLike, ArrayLike] | None = None,
    *,
    ignore: Iterable[str] = (),
) -> Checkpoint:
    """Load weights that another program trained into one of the models here.

    The forward formula, and every parameter with its name and shape, are in docs/models.md. The
    caller's tensors are copied and never changed.

    Without `reference`, a wrong transpose of a square matrix cannot be detected: the shapes fit
    either way, and the model merely predicts badly. An `UncheckedOrientation` warning says so.
    Pass a few sequences and the outputs of your own program on them.

    Args:
        source: a state dict (tensors or NumPy arrays by name), or the path of a safetensors file
            or of a file that `torch.save(model.state_dict(), path)` wrote.
        config: the configuration of the model, such as `DisentangledConfig(...)`, or a dictionary
            as its `to_dict` writes it.
        task: the task that the model was trained on.
        mapping: for each parameter that is called differently, our name and theirs, or our name
            and the pair (their name, "transpose"). "transpose" exchanges the last two axes.
            Parameters that are not listed must have the same name on both sides. If a parameter
            has a head axis of size 1, their tensor may lack that axis.
        reference: the pair (tokens, outputs): sequences [batch, pos], and what the original
            program computes for them at all positions [batch, pos, vocab] or at the last one
            [batch, vocab]. If the imported model disagrees by more than rounding, the error names
            the parameter whose transpose explains it. A reference that would agree with a wrong
            transpose too, such as a single token, is refused.
        ignore: foreign tensors that this model does not need, such as a stored attention mask.

    Returns:
        The checkpoint, in the dtype of the weights (float32 or float64). `save_checkpoint(path,
        checkpoint.model, checkpoint.task)` writes it.

    Raises:
        CheckpointError: with a sentence that says what does not match and what to do about it.
    """
    with named_errors("config"):
        model = build_model(config)
    description = describe(model, task, recipe={"name": "imported"})
    path = IN_MEMORY
    if isinstance(source, Mapping):
        foreign: Mapping[str, Any] = source
    else:
        path = expanded(source)
        n_numbers = sum(tensor.numel() for tensor in model.state_dict().values())
        foreign = read_weights(path, OTHER_CONTENT + 8 * 8 * n_numbers)
    fill(model, foreign, mapping or {}, ignore)
    if reference is not None:
        tokens, outputs = reference
        check_reference(model, tokens, outputs)
    else:
        _warn_unchecked(model)
    return Checkpoint(model.eval(), task, description, [], path)


def _warn_unchecked(model: LensTransformer) -> None:
    square = square_parameters(model)
    if square:
        warnings.warn(
            f"without a reference, a wrong transpose of {_listed(square)} cannot be noticed; pass "
            "reference=(tokens, outputs) of the original program",
            UncheckedOrientation,
            stacklevel=3,
        )


class Origin(NamedTuple):
    """The foreign tensor that a parameter is filled from."""

    name: str
    transpose: bool


def fill(
    model: LensTransformer,
    foreign: Mapping[str, Any],
    mapping: Names,
    ignore: Iterable[str] = (),
) -> None:
    """Copy foreign tensors into a model, which takes their dtype.

    Args:
        model: the model to fill.
        foreign: tensors by name.
        mapping: as for `import_checkpoint`.
        ignore: foreign tensors that are left out.
    """
    expected = model.state_dict()
    _check_flat(foreign)
    origins = _origins(expected, foreign, mapping)
    _check_all_used(foreign, origins, ignore)
    found = {}
    for name, origin in origins.items():
        found[name] = _fitted(name, expected[name].shape, foreign[origin.name], origin)
    dtypes = {name: tensor.dtype for name, tensor in found.items()}
    first = next(iter(dtypes))
    for name, dtype in dtypes.items():
        if dtype != dtypes[first]:
            raise CheckpointError(
                f"{name}: expected all parameters in one dtype, got {dtype} here and "
                f"{dtypes[first]} in {first}; convert all tensors with .float() or .double()"
            )
    model.to(dtypes[first])
    model.load_state_dict(found)


def _check_flat(foreign: Mapping[str, Any]) -> None:
    """Refuse a dictionary that contains the state dict instead of being one."""
    for name, value in foreign.items():
        if isinstance(value, Mapping):
            raise CheckpointError(
                f"source: expected tensors by name, but {name!r} is a dictionary; if it is the "
                f"state dict, pass it alone, for example torch.load(path, "
                f"weights_only=True)[{name!r}]"
            )


def _origins(
    expected: Mapping[str, Tensor], foreign: Mapping[str, Any], mapping: Names
) -> dict[str, Origin]:
    """Where every parameter comes from."""
    for name in mapping:
        if name not in expected:
            raise CheckpointError(
                f"mapping: this model has no parameter {name!r}{_nearest(name, expected)}"
            )
    origins = {name: _origin(name, mapping.get(name, name)) for name in expected}
    missing = [name for name, origin in origins.items() if origin.name not in foreign]
    if missing:
        name = missing[0]
        theirs = origins[name].name
        others = f" ({len(missing) - 1} other parameters are missing too)" * (len(missing) > 1)
        if name in mapping:
            raise CheckpointError(
                f"{name}: mapping says {theirs!r}, which is not among the weights"
                f"{_nearest(theirs, foreign)}{others}"
            )
        free = {key: value for key, value in foreign.items() if key not in expected}
        raise CheckpointError(
            f"{name}: the weights have no tensor of this name; add it to mapping"
            f"{_of_shape(expected[name].shape, free) or _nearest(name, free)}{others}"
        )
    return origins


def _origin(name: str, given: Any) -> Origin:
    if isinstance(given, str):
        return Origin(given, transpose=False)
    pair = list(given) if isinstance(given, Sequence) else []
    if len(pair) == 2 and isinstance(pair[0], str) and pair[1] == TRANSPOSE:
        return Origin(pair[0], transpose=True)
    raise CheckpointError(
        f'mapping: expected a name or (name, "{TRANSPOSE}") for {name}, got {given!r}'
    )


def _check_all_used(
    foreign: Mapping[str, Any],
    origins: Mapping[str, Origin],
    ignore: Iterable[str],
) -> None:
    """Refuse tensors that would be dropped silently."""
    dropped = {ignore} if isinstance(ignore, str) else set(ignore)
    for name in sorted(dropped):
        if name not in foreign:
            raise CheckpointError(
                f"ignore: {name!r} is not among the weights{_nearest(name, foreign)}"
            )
    used = {origin.name for origin in origins.values()}
    unused = [str(name) for name in foreign if name not in used | dropped]
    if not unused:
        return
    raise CheckpointError(
        f"source: this model has no parameter for {_listed(unused)}; map a parameter to each of "
        "them, or list them in ignore"
    )


def _fitted(name: str, shape: torch.Size, given: Any, origin: Origin) -> Tensor:
    """A foreign tensor in the orientation and shape of a parameter."""
    tensor = _as_tensor(name, given, origin.name)
    if origin.transpose and tensor.ndim < 2:
        raise CheckpointError(
            f"{name}: {origin.name!r} has {tensor.ndim} axes, so it cannot be transposed; map it "
            "to the name alone"
        )
    oriented = tensor.mT if origin.transpose else tensor
    for candidate in (oriented, oriented[None]):
        if candidate.shape == shape:
            _check_finite(name, candidate, origin.name)
            return candidate
    turned = ""
    if tensor.ndim >= 2 and shape in (oriented.mT.shape, oriented.mT[None].shape):
        fits = repr(origin.name) if origin.transpose else f'({origin.name!r}, "{TRANSPOSE}")'
        turned = f"; the other orientation fits, so map it to {fits}"
    way = ", transposed" if origin.transpose else ""
    raise CheckpointError(
        f"{name}: expected shape {list(shape)}, got {list(oriented.shape)} from "
        f"{origin.name!r}{way}{turned}"
    )


def _as_tensor(name: str, given: Any, theirs: str) -> Tensor:
    """A foreign value as a dense tensor of an accepted dtype, on the CPU."""
    if isinstance(given, np.ndarray) and given.dtype in NUMPY_DTYPES:
        # A copy in native byte order, because torch accepts no other.
        given = torch.from_numpy(given.astype(given.dtype.newbyteorder("=")))
    if not isinstance(given, Tensor | np.ndarray):
        raise CheckpointError(
            f"{name}: expected {theirs!r} to be a tensor, got {type(given).__name__}"
        )
    if isinstance(given, np.ndarray) or given.dtype not in DTYPES:
        raise CheckpointError(
            f"{name}: expected {theirs!r} in float32 or float64, got {given.dtype}; convert it "
            "with .float()"
        )
    if given.layout != torch.strided or given.device.type == "meta":
        raise CheckpointError(f"{name}: expected {theirs!r} to be a dense tensor with values")
    return given.detach().cpu()


def _check_finite(name: str, tensor: Tensor, theirs: str) -> None:
    if not tensor.isfinite().all():
        raise CheckpointError(
            f"{name}: expected finite numbers, but {theirs!r} contains NaN or infinity; the run "
            "that wrote it has probably diverged"
        )


def _of_shape(shape: torch.Size, foreign: Mapping[str, Any]) -> str:
    """The foreign tensors that fit a shape in some orientation, as the end of a sentence."""
    fitting = []
    for name, value in foreign.items():
        given = list(getattr(value, "shape", ()))
        turned = [*given[:-2], *given[:-3:-1]]
        forms = (given, turned, [1, *given], [1, *turned])
        if list(shape) in forms:
            fitting.append(str(name))
    if not fitting:
        return ""
    return f"; tensors that fit its shape {list(shape)}: {_listed(fitting)}"


def _nearest(name: str, known: Iterable[Any]) -> str:
    """The known names nearest to `name`, as the end of a sentence."""
    names = [str(entry) for entry in known]
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.3) or names[:3]
    return f"; the nearest names are {', '.join(close)}" if close else ""


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
