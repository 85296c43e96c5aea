"""The Mixture-of-Transition-Distributions task (paper, eq. mtd_definition).

The first `order` tokens are uniform. Every later token picks a lag g with probability
`weights[g-1]` and is drawn from row `transition[token g back]`. Weights differ from sequence to
sequence and are drawn from a Dirichlet prior; inferring them in context is the task.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import (
    ArrayLike,
    as_transition,
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
class MTDTask(LagTask):
    """A fixed transition matrix, the number of lags, and the prior over mixture weights."""

    name = "mtd"
    label = "one transition matrix for all lags"

    transition: Float64[Tensor, "vocab vocab"]
    """π: `transition[a, b]` is the probability of token b if the source token is a."""
    order: int
    """m: the number of lags."""
    concentration: Concentration

    def __init__(
        self, transition: ArrayLike, order: int, concentration: ArrayLike | float = 1.0
    ) -> None:
        order = check_order(order)
        object.__setattr__(self, "transition", as_transition(transition))
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "concentration", check_concentration(concentration, order))

    @classmethod
    def random(
        cls, vocab_size: int, order: int, seed: int, concentration: ArrayLike | float = 1.0
    ) -> "MTDTask":
        """A task whose transition rows are drawn from Dirichlet(1).

        Args:
            vocab_size: number of distinct tokens.
            order: the number of lags m.
            seed: the same seed gives the same task.
            concentration: α of the Dirichlet prior over weights, one number or one per lag.

        Returns:
            The task.
        """
        vocab_size = check_vocabulary(vocab_size)
        rng = np.random.Generator(np.random.PCG64(check_count("seed", seed, minimum=0)))
        rows = rng.dirichlet(np.ones(vocab_size), size=vocab_size)
        return cls(rows, order, concentration)

    @classmethod
    def from_transition(
        cls, transition: ArrayLike, order: int, concentration: ArrayLike | float = 1.0
    ) -> "MTDTask":
        """A task with a given transition matrix.

        Args:
            transition: row-stochastic matrix [vocab, vocab].
            order: number of lags.
            concentration: the prior over weights.

        Returns:
            The task.
        """
        shape = tuple(np.shape(transition))
        if len(shape) != 2:
            raise ValueError(
                f"transition: the task {cls.name!r} takes one matrix [vocab, vocab], got shape "
                f"{shape}; for one matrix per lag use --task lag-specific"
            )
        return cls(transition, order, concentration)

    @property
    def matrices(self) -> Float64[Tensor, "lag vocab vocab"]:
        """The same matrix for every lag."""
        return self.transition.expand(self.order, -1, -1)

    @property
    def sampled_matrices(self) -> Float64[Tensor, "matrix vocab vocab"]:
        return self.transition[None]

    @property
    def stationary(self) -> Float64[Tensor, " vocab"]:
        """The token marginal p with pᵀπ = pᵀ, whatever the weights.

        If there are several (a reducible transition matrix), the one of least norm.
        """
        identity = torch.eye(self.vocab_size)
        balance = torch.cat([self.transition.T - identity, torch.ones(1, self.vocab_size)])
        right = torch.zeros(self.vocab_size + 1, dtype=torch.float64)
        right[-1] = 1
        # "gelsd" works by singular values and so handles the rank-deficient case too.
        solution = torch.linalg.lstsq(balance, right, driver="gelsd").solution
        marginal = solution.clamp_min(0)
        return marginal / marginal.sum()

    def shifted(self) -> tuple[Variant, ...]:
        """Extreme weights, nearly uniform weights, and flatter token statistics."""
        flat = self.transition.sqrt()
        flatter = MTDTask(flat / flat.sum(-1, keepdim=True), self.order, self.concentration)
        even = MTDTask(self.transition, self.order, concentration=50.0)
        return self.shifted_by(even, flatter)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.name,
            "transition": self.transition.tolist(),
            "order": self.order,
            "concentration": self.concentration,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "MTDTask":
        for name in values:
            check_option("task field", name, ("transition", "order", "concentration"))
        return cls(**values)
