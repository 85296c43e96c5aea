"""The Mixture-of-Transition-Distributions task: its parameters, its samples, its truth.

The first `order` tokens are uniform. Every later token picks a lag g with probability
`weights[g-1]` and is drawn from row `transition[token g back]`. Weights differ from sequence to
sequence and are drawn from a Dirichlet prior; inferring them in context is the task (paper, eq.
mtd_definition).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mtdinterp.checks import (
    ArrayLike,
    as_concentration,
    as_distribution,
    as_tokens,
    as_transition,
    check_count,
    check_order,
)
from mtdinterp.sampling import draw_sequences


@dataclass(frozen=True, eq=False)
class Sample:
    """A batch of sequences with everything the process knows about them."""

    tokens: Int64[Tensor, "batch pos"]
    weights: Float64[Tensor, "batch lag"]
    lags: Int64[Tensor, "batch pos"]
    """The lag that produced each token, 1..order; 0 for the first `order` positions."""
    next_probs: Float64[Tensor, "batch vocab"]
    """The true distribution of the token after the last, given the sequence's own weights."""
    next_tokens: Int64[Tensor, " batch"]
    """One draw from `next_probs`."""


@dataclass(frozen=True, eq=False, init=False)
class MTDTask:
    """A fixed transition matrix, the number of lags, and the prior over mixture weights."""

    transition: Float64[Tensor, "vocab vocab"]
    order: int
    concentration: float | tuple[float, ...]
    """The Dirichlet prior: one number for a symmetric one, or one number a lag."""

    def __init__(
        self, transition: ArrayLike, order: int, concentration: ArrayLike | float = 1.0
    ) -> None:
        checked = as_transition(transition)
        order = check_order(order)
        alpha = as_concentration(concentration, order)
        symmetric = bool((alpha == alpha[0]).all())
        object.__setattr__(self, "transition", checked)
        object.__setattr__(self, "order", order)
        object.__setattr__(
            self, "concentration", alpha[0].item() if symmetric else tuple(alpha.tolist())
        )

    @classmethod
    def random(
        cls, vocab_size: int, order: int, seed: int, concentration: ArrayLike | float = 1.0
    ) -> "MTDTask":
        """A task whose transition rows are drawn from Dirichlet(1)."""
        vocab_size = check_count("vocab_size", vocab_size, minimum=2)
        rng = np.random.Generator(np.random.PCG64(check_count("seed", seed, minimum=0)))
        return cls(rng.dirichlet(np.ones(vocab_size), size=vocab_size), order, concentration)

    @property
    def vocab_size(self) -> int:
        return self.transition.shape[0]

    @property
    def stationary(self) -> Float64[Tensor, " vocab"]:
        """The token marginal p with pᵀπ = pᵀ, whatever the weights.

        Of several (a reducible transition matrix) the one of least norm.
        """
        balance = torch.cat(
            [self.transition.T - torch.eye(self.vocab_size), torch.ones(1, self.vocab_size)]
        )
        right = torch.zeros(self.vocab_size + 1, dtype=torch.float64)
        right[-1] = 1
        # "gelsd" works by singular values and so takes the rank-deficient case too.
        marginal = torch.linalg.lstsq(balance, right, driver="gelsd").solution.clamp_min(0)
        return marginal / marginal.sum()

    def sample(
        self,
        batch_size: int,
        length: int,
        seed: int | Sequence[int],
        weights: ArrayLike | None = None,
    ) -> Sample:
        """Draw `batch_size` sequences; the same seed gives the same sequences on every run.

        `weights` fixes the mixture weights, one vector for all sequences or one a sequence, instead
        of drawing them from the prior.
        """
        batch_size = check_count("batch_size", batch_size, minimum=0)
        length = check_count("length", length)
        check_order(self.order, length)
        entropy = seed if isinstance(seed, Sequence) else [seed]
        rng = np.random.Generator(
            np.random.SFC64([check_count("seed", part, minimum=0) for part in entropy])
        )
        mixture = self._draw_weights(batch_size, weights, rng)
        transition = self.transition.numpy()
        # One token more than asked for: its distribution is the truth, itself the sampled target.
        drawn, lags = draw_sequences(transition, mixture, length + 1, rng)
        tokens = torch.from_numpy(drawn[:, :-1])
        weights_drawn = torch.from_numpy(mixture)
        return Sample(
            tokens=tokens,
            weights=weights_drawn,
            lags=torch.from_numpy(lags[:, :-1]),
            next_probs=mix_rows(self.transition, tokens, weights_drawn),
            next_tokens=torch.from_numpy(drawn[:, -1].copy()),
        )

    def _draw_weights(
        self, batch_size: int, weights: ArrayLike | None, rng: np.random.Generator
    ) -> Float64[np.ndarray, "batch lag"]:
        if weights is None:
            alpha = as_concentration(self.concentration, self.order).numpy()
            return rng.dirichlet(alpha, size=batch_size)
        given = as_distribution("weights", weights, self.order)
        if given.shape not in ((self.order,), (batch_size, self.order)):
            raise ValueError(
                f"weights: expected shape [{self.order}] or [{batch_size}, {self.order}], "
                f"got {tuple(given.shape)}"
            )
        return given.expand(batch_size, self.order).contiguous().numpy()


def predict_next(
    transition: ArrayLike, tokens: ArrayLike, weights: ArrayLike
) -> Float64[Tensor, "batch vocab"]:
    """p(next = j) = Σ_g weights[g-1] · transition[token g back, j], the token after the last."""
    matrix = as_transition(transition)
    sequence = as_tokens(tokens, matrix.shape[0])
    mixture = as_distribution("weights", weights)
    order = mixture.shape[-1]
    if mixture.shape != (len(sequence), order):
        raise ValueError(
            f"weights: expected shape [{len(sequence)}, lag], got {tuple(mixture.shape)}"
        )
    if order > sequence.shape[1]:
        raise ValueError(
            f"weights: {order} lags need at least as many tokens, got {sequence.shape[1]}"
        )
    return mix_rows(matrix, sequence, mixture)


def mix_rows(
    transition: Float64[Tensor, "vocab vocab"],
    tokens: Int64[Tensor, "batch pos"],
    weights: Float64[Tensor, "batch lag"],
) -> Float64[Tensor, "batch vocab"]:
    """`predict_next` for inputs that are known to be good."""
    by_lag = tokens[:, -weights.shape[1] :].flip(-1)
    return torch.einsum("bg,bgv->bv", weights, transition[by_lag])
