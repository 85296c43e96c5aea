"""Edits: each one names a place in a run and the value to put there.

A place is a hook point, optionally narrowed to positions, keys, a head or a named block of the
stream. `places` turns it into an index, `sources` computes the value, `patching` runs the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.interventions.indices import positions_of
from mtdinterp.models import LensTransformer

SMALLEST_SUM = 1e-30
"""Lower bound of a divisor; where the sum is zero, so is the numerator."""


@dataclass(frozen=True, eq=False)
class FromRun:
    """The activation of another run: the same model on other tokens, or another model.

    An attention row taken from another position keeps its offsets, not its keys, so that lags stay
    lags.

    Attributes:
        tokens: the sequences of the other run, as long as the edited ones.
        model: the model of the other run; None means the edited model.
        layer: the layer to take from, counted from 0; None means the edited layer.
        position: the first position to take from; as many positions are taken as are edited. None
            means the edited positions.
    """

    tokens: ArrayLike
    model: LensTransformer | None = None
    layer: int | None = None
    position: int | None = None


@dataclass(frozen=True, eq=False)
class MeanOver:
    """The mean of the activation over sequences, separately for each position."""

    tokens: ArrayLike


@dataclass(frozen=True)
class Noise:
    """The activation plus normal noise of `scale` times its standard deviation in that place."""

    scale: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Share:
    """Attention rows rescaled so that `keys` receive a share `value` of each row's sum.

    Proportions among the chosen keys and among the other keys are kept. If the chosen keys had no
    attention, they share it evenly; if the other keys had none, they still receive none.
    """

    value: float
    keys: int | slice | Sequence[int]

    def __call__(self, rows: Tensor) -> Tensor:
        """Rescale attention rows.

        Args:
            rows: attention, any shape with keys on the last axis.

        Returns:
            The rescaled rows, of the same shape.
        """
        n_keys = rows.shape[-1]
        chosen = torch.zeros(n_keys, dtype=torch.bool)
        chosen[positions_of(self.keys, n_keys)] = True
        total = rows.sum(-1, keepdim=True)

        inside = rows * chosen
        inside_sum = inside.sum(-1, keepdim=True)
        even = chosen / chosen.sum()
        proportions = torch.where(inside_sum > 0, inside / inside_sum.clamp_min(SMALLEST_SUM), even)

        outside = rows * ~chosen
        outside_sum = outside.sum(-1, keepdim=True).clamp_min(SMALLEST_SUM)
        rest = outside * (1 - self.value) * total / outside_sum
        return proportions * self.value * total + rest


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

    Attributes:
        hook: the full name of a hook point, or its short name ("pattern", "resid_pre", "z")
            together with `layer`.
        source: "zero", a number or tensor that fits the place, `FromRun`, `MeanOver`, `Noise`,
            `Share`, or a function from the current value to the new one.
        position: an index, a slice or several indices; query positions at hook points that have
            queries and keys.
        head: one head, counted from 0.
        block: a named block of the stream.
        layer: the layer of a short hook name, counted from 0.
        key: key positions, at hook points that have them.
    """

    hook: str
    source: Source
    position: Place | None = None
    head: int | np.integer | None = None
    block: str | None = None
    layer: int | np.integer | None = None
    key: Place | None = None
