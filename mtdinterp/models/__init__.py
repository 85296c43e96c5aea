"""Hooked transformers: what all architectures share, and the two built-in ones by their names.

The built-in architectures live in `mtdinterp.architectures`, which imports this package. Their
classes are looked up there on first use, so that neither package has to be imported first.
"""

import importlib
from typing import TYPE_CHECKING, Any

from mtdinterp.models.attention import relative_attention
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.lens import LensTransformer
from mtdinterp.models.loss import prediction_loss
from mtdinterp.models.stream import Stream

if TYPE_CHECKING:
    from mtdinterp.architectures.disentangled import DisentangledConfig, DisentangledTransformer
    from mtdinterp.architectures.standard import StandardConfig, StandardTransformer

__all__ = [
    "DisentangledConfig",
    "DisentangledTransformer",
    "LensTransformer",
    "ModelConfig",
    "StandardConfig",
    "StandardTransformer",
    "Stream",
    "prediction_loss",
    "relative_attention",
]

HOMES = {
    "DisentangledConfig": "mtdinterp.architectures.disentangled",
    "DisentangledTransformer": "mtdinterp.architectures.disentangled",
    "StandardConfig": "mtdinterp.architectures.standard",
    "StandardTransformer": "mtdinterp.architectures.standard",
}
"""The modules of the names that are imported on first use."""


def __getattr__(name: str) -> Any:
    """Import a class of a built-in architecture when it is asked for."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(HOMES[name]), name)
