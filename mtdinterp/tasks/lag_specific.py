"""The generalised MTD task (Berchtold and Raftery): one transition matrix per lag.

Token y_t is drawn from row y_{t-g} of lag g's matrix, with lag g chosen by the sequence's weights.
There is no single π to recover and no marginal that is stationary under all weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import (
    ArrayLike,
    as_distribution,
    check_count,
    check_option,
    check_order,
    check_vocabulary,
)
from mtdinterp.evidence import Concentration
from mtdinterp.plugins import register_task
from mtdinterp.tasks.base import Variant, check_concentration
from mtdinterp.tasks.lags import LagTask


@register_task
@dataclass(frozen=True, eq=False, init=False)
class LagSpecificMTDTask(LagTask):
    """One transition matrix per lag, and the prior over mixture weights."""

    name = "lag-specific"
    label = "one transition matrix per lag"

    transitions: Float64[Tensor, "lag vocab vocab"]
    """`transitions[g-1, a, b]` is the probability of token b if lag g is chosen and holds a."""
    order: int
    """m: the number of lags."""
    concentration: Concentration

    def __init__(self, transitions: ArrayLike, concentration: ArrayLike | float = 1.0) -> None:
        matrices = as_distribution("transitions", transitions)
        shape = tuple(matrices.shape)
        if len(shape) != 3 or shape[1] != shape[2] or shape[0] < 1 or shape[1] < 2:
            raise ValueError(
                f"transitions: expected shape [lag, vocab, vocab] with vocab ≥ 2, got {shape}"
            )
        object.__setattr__(self, "transitions", matrices)
        object.__setattr__(self, "order", len(matrices))
        prior = check_concentration(concentration, len(matrices))
        object.__setattr__(self, "concentration", prior)

    @classmethod
    def random(
        cls, vocab_size: int, order: int, seed: int, concentration: ArrayLike | float = 1.0
    ) -> "LagSpecificMTDTask":
        """A task whose transition rows are drawn from Dirichlet(1), independently for each lag.

        Args:
            vocab_size: number of distinct tokens.
            order: the number of lags m.
            seed: the same seed gives the same task.
            concentration: α of the Dirichlet prior over weights, one number or one per lag.

        Returns:
            The task.
        """
        order = check_order(order)
        vocab_size = check_vocabulary(vocab_size, n_matrices=order)
        rng = np.random.Generator(np.random.PCG64(check_count("seed", seed, minimum=0)))
        rows = rng.dirichlet(np.ones(vocab_size), size=(order, vocab_size))
        return cls(rows, concentration)

    @classmethod
    def from_transition(
        cls, transition: ArrayLike, order: int, concentration: ArrayLike | float = 1.0
    ) -> "LagSpecificMTDTask":
        """A task with given transition matrices.

        Args:
            transition: row-stochastic matrices [lag, vocab, vocab].
            order: their number.
            concentration: the prior over weights.

        Returns:
            The task.
        """
        shape = tuple(np.shape(transition))
        if len(shape) != 3:
            raise ValueError(
                f"transition: the task {cls.name!r} takes one matrix per lag, [lag, vocab, vocab], "
                f"got shape {shape}; NPY and JSON files can hold several matrices, CSV cannot"
            )
        if order != shape[0]:
            raise ValueError(f"order: expected the number of matrices {shape[0]}, got {order}")
        return cls(transition, concentration)

    @property
    def matrices(self) -> Float64[Tensor, "lag vocab vocab"]:
        """The transition matrix of every lag."""
        return self.transitions

    def shifted(self) -> tuple[Variant, ...]:
        """Extreme weights, nearly uniform weights, and flatter token statistics."""
        flat = self.transitions.sqrt()
        flatter = LagSpecificMTDTask(flat / flat.sum(-1, keepdim=True), self.concentration)
        even = LagSpecificMTDTask(self.transitions, concentration=50.0)
        return self.shifted_by(even, flatter)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.name,
            "transitions": self.transitions.tolist(),
            "concentration": self.concentration,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "LagSpecificMTDTask":
        for name in values:
            check_option("task field", name, ("transitions", "concentration"))
        return cls(**values)
