"""A file of weights: tensors, their checksums, and the evaluation that fits them.

The weights of a checkpoint and each of its snapshots are such files.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from mtdinterp.checkpoint_files import CONFIG, CheckpointError
from mtdinterp.checkpoints.digests import (
    CHECKSUMS,
    EVALUATION,
    config_digest,
    tensors_digest,
    text_digest,
)
from mtdinterp.history_lines import HistoryError, check_entry, parse_object
from mtdinterp.models import LensTransformer

LENGTH_BYTES = 8
"""A safetensors file starts with the length of its header, as a 64-bit number."""
MOST_HEADER = 10 * 10**6
LONGEST_REASON = 200
"""Characters of the reason that safetensors gives; it may quote whole names."""
UNREADABLE = (SafetensorError, KeyError, TypeError, ValueError, RuntimeError, OverflowError)
"""What safetensors and torch raise for a damaged or foreign file."""


class DamagedWeights(Exception):
    """Why a weights file cannot be used, without the file's name."""


class StoredWeights(NamedTuple):
    """The contents of a weights file."""

    tensors: dict[str, Tensor]
    checksums: list[Any] | None
    """SHA-256 of the tensors, and of the model and task entries; None in foreign files."""
    evaluation: dict[str, Any] | None
    """The line of the history that describes these weights."""


def format_weights(
    model: LensTransformer,
    config: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None = None,
) -> bytes:
    """The bytes of a weights file.

    Args:
        model: the model whose parameters are written.
        config: the contents of config.json.
        evaluation: the line of the history that describes these weights. It is stored with them
            because the history is a separate file, which may be older or newer.

    Returns:
        The bytes of the file.
    """
    state = model.state_dict()
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    text = json.dumps(dict(evaluation)) if evaluation else "null"
    checksums = [tensors_digest(tensors), config_digest(config), text_digest(text)]
    metadata = {CHECKSUMS: json.dumps(checksums), EVALUATION: text}
    return safetensors.torch.save(tensors, metadata=metadata)


def parse_weights(content: bytes) -> StoredWeights:
    """The contents of a weights file; the checksums of tensors and model are not compared yet.

    Args:
        content: the bytes of the file.

    Returns:
        The tensors, and what is stored with them.

    Raises:
        DamagedWeights: with the reason.
    """
    metadata = _metadata(content)
    try:
        tensors = safetensors.torch.load(content)
    except UNREADABLE as error:
        raise DamagedWeights(f"damaged ({str(error)[:LONGEST_REASON]})") from error
    checksums = _checksums(metadata)
    text = metadata.get(EVALUATION, "null")
    if not isinstance(text, str):
        raise DamagedWeights(f"damaged (expected a text for the evaluation, got {text!r:.60})")
    # Files of older versions have no checksum of the evaluation.
    if checksums is not None and checksums[2:] not in ([], [text_digest(text)]):
        raise DamagedWeights("damaged (the checksum of its evaluation is wrong)")
    return StoredWeights(tensors, checksums, _evaluation(text))


def _metadata(content: bytes) -> dict[str, Any]:
    """What the header says besides the tensors."""
    length = int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < LENGTH_BYTES or length > len(content) - LENGTH_BYTES:
        raise DamagedWeights("damaged (it ends before its header does)")
    if length > MOST_HEADER:
        raise DamagedWeights(f"expected a header of at most {MOST_HEADER:,} bytes, got {length:,}")
    try:
        header = json.loads(content[LENGTH_BYTES : LENGTH_BYTES + length])
    except (ValueError, RecursionError) as error:
        raise DamagedWeights(f"damaged (its header is not valid JSON: {error})") from error
    metadata = header.get("__metadata__", {}) if isinstance(header, dict) else {}
    return metadata if isinstance(metadata, dict) else {}


def _checksums(metadata: Mapping[str, Any]) -> list[Any] | None:
    """The stored checksums; files written by other programs have none."""
    if CHECKSUMS not in metadata:
        return None
    try:
        found = json.loads(metadata[CHECKSUMS])
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedWeights(f"damaged ({error})") from error
    if not isinstance(found, list) or len(found) not in (2, 3):
        raise DamagedWeights(f"damaged (expected 2 or 3 checksums, got {found!r:.60})")
    return found


def _evaluation(text: str) -> dict[str, Any] | None:
    """The line of the history that describes the weights; None if there is none."""
    if text == "null":
        return None
    try:
        entry = parse_object(text)
        check_entry(entry)
    except HistoryError as error:
        raise DamagedWeights(f"damaged ({error})") from error
    return entry


def fill(
    model: LensTransformer, path: Path, content: bytes | None, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Fill the model, in the stored dtype, with exactly the tensors it has.

    Args:
        model: the model to fill.
        path: the weights file, for error messages.
        content: the bytes of the file; None if it is missing.
        config: the contents of config.json.

    Returns:
        The evaluation that is stored with the weights, or None if there is none.
    """
    if content is None:
        raise CheckpointError(f"{path}: missing")
    try:
        tensors, checksums, evaluation = parse_weights(content)
    except DamagedWeights as error:
        raise CheckpointError(f"{path}: {error}") from error
    if checksums is not None and checksums[0] != tensors_digest(tensors):
        raise CheckpointError(f"{path}: damaged (the checksum of its tensors is wrong)")
    _check_shapes(model, tensors, path)
    if checksums is not None and checksums[1] != config_digest(config):
        raise CheckpointError(
            f"{path}: belongs to another {CONFIG}, or {CONFIG} is damaged (checksums differ)"
        )
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or not next(iter(dtypes)).is_floating_point:
        raise CheckpointError(
            f"{path}: expected tensors of one floating-point type, got {sorted(map(str, dtypes))}"
        )
    model.to(dtypes.pop())
    model.load_state_dict(tensors)
    return evaluation


def _check_shapes(model: LensTransformer, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors whose names or shapes are not those of the model."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if expected == found:
        return
    different = sorted(set(expected.items()) ^ set(found.items()))
    name = different[0][0]
    raise CheckpointError(
        f"{path}: does not match its {CONFIG}: expected tensor {name} with shape "
        f"{expected.get(name, 'none')}, got {found.get(name, 'none')}"
    )
