"""Checksums of what a checkpoint holds."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

CHECKSUMS = "checksums"
"""Where the weights' file keeps them: of its tensors, and of what its configuration says of model
and task."""
EVALUATION = "evaluation"
"""And of a run, the line of its history that is about them."""


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """A checksum of names and contents."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def config_digest(config: Mapping[str, Any], parts: Sequence[str] = ("model", "task")) -> str:
    """A checksum of some parts of a configuration, the same before and after it was JSON."""
    meant = {part: config.get(part) for part in parts}
    return hashlib.sha256(json.dumps(meant, sort_keys=True).encode()).hexdigest()
