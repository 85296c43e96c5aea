"""The two hooked transformers, their configurations, and the pure attention they share."""

from mtdinterp.models.attention import relative_attention
from mtdinterp.models.build import new_model
from mtdinterp.models.config import DisentangledConfig, ModelConfig, StandardConfig
from mtdinterp.models.disentangled import DisentangledTransformer
from mtdinterp.models.lens import LensTransformer
from mtdinterp.models.loss import prediction_loss
from mtdinterp.models.standard import StandardTransformer
from mtdinterp.models.stream import Stream

__all__ = [
    "DisentangledConfig",
    "DisentangledTransformer",
    "LensTransformer",
    "ModelConfig",
    "StandardConfig",
    "StandardTransformer",
    "Stream",
    "new_model",
    "prediction_loss",
    "relative_attention",
]
