"""Which implementation of attention runs: the name of the path and the reason for it.

There are three implementations of a layer. From the fastest to the most general:

- the whole-model kernel (`native.step`): "whole step" in training, "whole pass" for predictions;
- the attention operator (`native.attention`), with the rest of the layer in PyTorch: "operator";
- plain PyTorch (`models.attention.eager_relative_attention`), the one that hooks see: "eager".

`LensTransformer.attention_path` makes the choice, and the forward pass and the loss follow it.
"""

from dataclasses import dataclass
from typing import Literal

Implementation = Literal["whole model", "operator", "eager"]
PathName = Literal["whole step", "whole pass", "operator", "eager"]


@dataclass(frozen=True)
class AttentionPath:
    """The path that attention takes, and why it is this one."""

    name: PathName
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"
