"""What to change in a run: an edit names a place and what to put there.

A place is a hook point, and there a position, a key, a head, a named block of the stream, or all of
it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.interventions.indices import positions_of
from mtdinterp.models import LensTransformer


@dataclass(frozen=True, eq=False)
class FromRun:
    """The activation of another run: of the same model on other tokens, or of another model.

    It is taken where it is put, unless `layer` or `position` (the first one, as many as are edited)
    say otherwise. An attention row that comes from another position keeps its offsets, not its
    keys: lags stay lags.
    """

    tokens: ArrayLike
    model: LensTransformer | None = None
    layer: int | None = None
    position: int | None = None


@dataclass(frozen=True, eq=False)
class MeanOver:
    """The mean of the activation over sequences, position by position."""

    tokens: ArrayLike


@dataclass(frozen=True)
class Noise:
    """The activation plus normal noise of `scale` times its own standard deviation in the edited
    place."""

    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Share:
    """Attention rows with `value` of their sum on the given keys; on both sides of that,
    proportions stay as they were.

    Keys that had nothing share evenly; where there is nothing else to take from or give to, the
    rest stays nothing.
    """

    value: float
    keys: int | slice | Sequence[int]

    def __call__(self, rows: Tensor) -> Tensor:
        chosen = torch.zeros(rows.shape[-1], dtype=torch.bool)
        chosen[positions_of(self.keys, rows.shape[-1])] = True
        total = rows.sum(-1, keepdim=True)
        inside, outside = rows * chosen, rows * ~chosen
        had, left = inside.sum(-1, keepdim=True), outside.sum(-1, keepdim=True)
        inside = torch.where(had > 0, inside / had.clamp_min(1e-30), chosen / chosen.sum())
        return inside * self.value * total + outside * (1 - self.value) * total / left.clamp_min(
            1e-30
        )


Place = int | slice | Sequence[int] | np.integer | np.ndarray | Tensor
Source = (
    str
    | Tensor
    | np.ndarray
    | np.number
    | float
    | FromRun
    | MeanOver
    | Noise
    | Callable[[Tensor], Tensor]
)


@dataclass(frozen=True, eq=False)
class Edit:
    """Put `source` at a place of a run.

    `hook` is a hook point's full name, or its short name ("pattern", "resid_pre", "z") with a
    `layer`, counted from 0. `position` is an index, a slice or several indices of positions (of
    queries where there are queries), `head` one head, `block` a named block of the stream, `key`
    keys of attention. The source is "zero", a number or tensor that fits the place, `FromRun`,
    `MeanOver`, `Noise`, `Share`, or a function from what is there to what should be.
    """

    hook: str
    source: Source
    position: Place | None = None
    head: int | np.integer | None = None
    block: str | None = None
    layer: int | np.integer | None = None
    key: Place | None = None
