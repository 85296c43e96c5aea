"""Shared by tasks whose components are lags: sampling, evidence and the true distributions."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_tokens, check_count, check_order
from mtdinterp.evidence import Evidence, lag_evidence, lag_rows, mix_rows
from mtdinterp.tasks.base import Sample, Task, Variant, draw_weights, generator
from mtdinterp.tasks.sampling import draw_sequences


class LagTask(Task):
    """Token y_t is drawn from row y_{t-g} of lag g's matrix, with g chosen by the weights."""

    if TYPE_CHECKING:  # subclasses have it as a field
        order: int

    @property
    @abstractmethod
    def matrices(self) -> Float64[Tensor, "lag vocab vocab"]:
        """The transition matrix of every lag."""

    @property
    def sampled_matrices(self) -> Float64[Tensor, "matrix vocab vocab"]:
        """What sequences are drawn from: one matrix for all lags, or one per lag."""
        return self.matrices

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        """Number of distinct tokens."""
        return self.matrices.shape[-1]

    @property
    def n_components(self) -> int:
        """One component per lag."""
        return self.order

    @property
    def warm_up(self) -> int:
        """`order`, because from there on every lag of a token lies within the sequence."""
        return self.order

    @property
    def read_offsets(self) -> tuple[int | None, ...]:
        """The next token's lag g stands g-1 positions before the last one."""
        return tuple(range(self.order))

    def sample(
        self,
        batch_size: int,
        length: int,
        seed: int | Sequence[int],
        weights: ArrayLike | None = None,
    ) -> Sample:
        """Draw sequences.

        Args:
            batch_size: number of sequences.
            length: tokens per sequence, more than `order`.
            seed: one integer or several; the same seed gives the same sequences.
            weights: mixture weights [lag] or [batch, lag]; drawn from the prior if None.

        Returns:
            The sequences with their weights and lags, and the true next-token distributions.
        """
        batch_size = check_count("batch_size", batch_size, minimum=0)
        length = check_count("length", length)
        check_order(self.order, length)
        rng = generator(seed)
        mixture = draw_weights(batch_size, self.order, self.concentration, weights, rng)
        # One more token than requested: its distribution is the truth, and the token is the sampled
        # target.
        matrices = self.sampled_matrices.numpy()
        drawn, lags = draw_sequences(matrices, mixture, length + 1, rng)
        tokens = torch.from_numpy(drawn[:, :-1])
        drawn_weights = torch.from_numpy(mixture)
        return Sample(
            tokens=tokens,
            weights=drawn_weights,
            lags=torch.from_numpy(lags[:, :-1]),
            next_probs=self.true_next(tokens, drawn_weights),
            next_tokens=torch.from_numpy(drawn[:, -1].copy()),
        )

    def evidence(self, tokens: ArrayLike) -> Evidence:
        """The evidence of sequences [batch, pos], longer than `order`, about their weights."""
        sequence = as_tokens(tokens, self.vocab_size)
        check_order(self.order, sequence.shape[1])
        return lag_evidence(self.matrices, sequence, self.concentration)

    def true_next(
        self, tokens: Int64[Tensor, "batch pos"], weights: Float64[Tensor, "batch component"]
    ) -> Float64[Tensor, "batch vocab"]:
        """Σ_g w_g·matrices[g, y_{T-g}]."""
        return mix_rows(lag_rows(self.matrices, tokens), weights)

    def true_next_everywhere(
        self, tokens: Int64[Tensor, "batch pos"], weights: Float64[Tensor, "batch component"]
    ) -> Float64[Tensor, "batch pos vocab"]:
        """The same after every position; uniform while fewer than `order` tokens were seen."""
        batch_size, length = tokens.shape
        first = self.order - 1
        shape = (batch_size, length, self.vocab_size)
        probs = torch.full(shape, 1 / self.vocab_size, dtype=torch.float64)
        probs[:, first:] = 0
        for lag, matrix in enumerate(self.matrices, start=1):
            sources = tokens[:, self.order - lag : length - lag + 1]
            probs[:, first:] += weights[:, lag - 1, None, None] * matrix[sources]
        return probs

    def shifted_by(self, even: Task, flatter: Task) -> tuple[Variant, ...]:
        """The three variants of a lag task, all possible under its own matrices.

        Args:
            even: the same task with a prior near uniform weights.
            flatter: the same task with flatter rows.

        Returns:
            Extreme weights, nearly uniform weights, other token statistics.
        """
        corners = torch.eye(self.order, dtype=torch.float64)
        return (
            Variant("weights at the corners", self, corners),
            Variant("weights near uniform", even),
            Variant("flatter token statistics", flatter),
        )
