from dataclasses import dataclass
from typing import ClassVar

from mtdinterp.architectures import Architecture
from mtdinterp.architectures.starts import default, small
from mtdinterp.models import StandardConfig, StandardTransformer
from mtdinterp.plugins import register_architecture


@dataclass(frozen=True, kw_only=True)
class NarrowConfig(StandardConfig):
    """A standard transformer whose stream has 8 dimensions."""

    d_model: int = 8

    architecture: ClassVar[str] = "narrow"


@register_architecture
class Narrow(Architecture):
    name, label = "narrow", "standard transformer with 8 dimensions"
    config = NarrowConfig
    model = StandardTransformer
    starts: ClassVar = {"default": default, "small": small}
