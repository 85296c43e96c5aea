"""Checksums of the contents of a checkpoint."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

CHECKSUMS = "checksums"
"""Metadata key in the weights file: checksums of its tensors, of the model and task entries of
config.json, and of the evaluation below."""
EVALUATION = "evaluation"
"""Metadata key in the weights file: for a run, the line of the history that describes the
weights."""
RUN_PARTS = ("model", "task", "recipe", "seeds")
"""The parts of a configuration that tell a run from others and decide how it continues."""


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of the names and contents of tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def config_digest(config: Mapping[str, Any], parts: Sequence[str] = ("model", "task")) -> str:
    """A checksum of parts of a configuration, the same before and after writing it as JSON."""
    chosen = {part: config.get(part) for part in parts}
    return text_digest(json.dumps(chosen, sort_keys=True))


def text_digest(text: str) -> str:
    """A checksum of a text."""
    return hashlib.sha256(text.encode()).hexdigest()
