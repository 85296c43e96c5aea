"""What an estimator may know about sequences, and the formulas that follow from it.

A task explains every token by one of a few components (for MTD: lags). For positions t after the
warm-up, c[t, g] is the probability of token y_t if component g produced it; `rows[g]` is what
component g predicts for the next token. Everything else is a function of those two:

    ℓ(w)      = Σ_t log Σ_g w_g·c[t, g]                    log-likelihood of weights w
    ∇ℓ(w)_g   = Σ_t c[t, g] / Σ_h w_h·c[t, h]              its gradient
    γ_t(g; w) = w_g·c[t, g] / Σ_h w_h·c[t, h]              responsibilities
    Γ_g       = mean over t of γ_t(g) at uniform weights   mean responsibilities
    p(next)   = Σ_g w_g·rows[g]                            prediction

Each formula is defined only here, as a pure function of tensors; `Evidence` bundles them.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_tokens, as_transition, check_order
from mtdinterp.metrics import divergences, to_distribution

__all__ = ["Concentration", "Evidence", "evidence_of", "lag_evidence"]

SMALLEST_WEIGHT = 1e-200
"""Weights are clamped here: one that underflowed to zero may still be the only component that
explains a token, and 1/(w_g·c[t, g]) must stay finite for any c[t, g] above 1e-100."""

ROUNDING = 1e-12
"""Probabilities closer than this are the same."""

Concentration = float | tuple[float, ...]
"""A Dirichlet prior over weights: one number if it is symmetric, otherwise one per component."""


def lag_likelihoods(
    matrices: Float64[Tensor, "lag vocab vocab"], tokens: Int64[Tensor, "batch pos"]
) -> Float64[Tensor, "batch step lag"]:
    """c[t, g] = matrices[g, y_{t-g}, y_t] for t = order..length-1; step 0 is position `order`.

    Raises:
        ValueError: if no lag can produce some token of a sequence.
    """
    order, vocab_size, _ = matrices.shape
    # Window t holds the `order` tokens before position t, oldest first; reversed, index g-1 is
    # lag g.
    sources = tokens[:, :-1].unfold(1, order, 1).flip(-1)
    targets = tokens[:, order:, None]
    # One flat look-up is faster than indexing with three tensors.
    rows = torch.arange(order) * vocab_size + sources
    likelihoods = matrices.reshape(-1).take(rows * vocab_size + targets)
    impossible = (likelihoods.sum(-1) == 0).nonzero()
    if len(impossible):
        row, step = impossible[0].tolist()
        raise ValueError(
            f"tokens: sequence {row} is impossible under this transition matrix: no lag in "
            f"1..{order} can produce its token at position {order + step}"
        )
    return likelihoods


def lag_rows(
    matrices: Float64[Tensor, "lag vocab vocab"], tokens: Int64[Tensor, "batch pos"]
) -> Float64[Tensor, "batch lag vocab"]:
    """What each lag g predicts for the token after the last: matrices[g, y_{T-g}]."""
    order = len(matrices)
    last_tokens = tokens[:, -order:].flip(-1)
    return matrices[torch.arange(order), last_tokens]


def mix_rows(
    rows: Float64[Tensor, "batch component vocab"], weights: Float64[Tensor, "batch component"]
) -> Float64[Tensor, "batch vocab"]:
    """p(next) = Σ_g w_g·rows[g]."""
    return torch.einsum("bg,bgv->bv", weights, rows)


def responsibilities_at(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
) -> Float64[Tensor, "batch step component"]:
    """γ_t(g; w) = w_g·c[t, g] / Σ_h w_h·c[t, h]: which component produced each token."""
    joint = likelihoods * weights.clamp_min(SMALLEST_WEIGHT)[:, None, :]
    return joint / joint.sum(-1, keepdim=True)


def mixed_likelihoods(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
) -> Float64[Tensor, "batch step"]:
    """Σ_g w_g·c[t, g]: the probability of each token under the weights."""
    return torch.einsum("btg,bg->bt", likelihoods, weights.clamp_min(SMALLEST_WEIGHT))


def log_likelihood_at(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
) -> Float64[Tensor, " batch"]:
    """ℓ(w) = Σ_t log Σ_g w_g·c[t, g]."""
    return mixed_likelihoods(likelihoods, weights).log().sum(-1)


def gradient_at(
    likelihoods: Float64[Tensor, "batch step component"],
    weights: Float64[Tensor, "batch component"],
) -> Float64[Tensor, "batch component"]:
    """∇ℓ(w)_g = Σ_t c[t, g] / Σ_h w_h·c[t, h]."""
    mixed = mixed_likelihoods(likelihoods, weights)
    return torch.einsum("btg,bt->bg", likelihoods, 1 / mixed)


def uniform_for(
    likelihoods: Float64[Tensor, "batch step component"],
) -> Float64[Tensor, "batch component"]:
    """Uniform weights for every sequence."""
    batch_size, _, n_components = likelihoods.shape
    return torch.full((batch_size, n_components), 1 / n_components, dtype=torch.float64)


def mean_over_steps(
    responsibilities: Float64[Tensor, "batch step component"],
) -> Float64[Tensor, "batch component"]:
    """Γ_g: the mean of γ_t(g) over steps."""
    return responsibilities.mean(1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """What sequences say about their mixture weights: all that an estimator may use.

    `Task.evidence(tokens)` builds it. For a task with one matrix per component, where `sources` and
    `targets` hold the earlier token of every component and the token at every step:

        likelihoods = matrices[components, sources, targets]  # [batch, step, component]
        rows = matrices[components, last_sources]  # [batch, component, vocab]
        return Evidence(likelihoods, rows, self.concentration)

    All tensors are float64 and on the CPU. At every step, at least one component must be able to
    produce the token. If the components are lags, `lag_evidence` does all of this.
    """

    likelihoods: Float64[Tensor, "batch step component"]
    """c[t, g]: the probability of the token at step t if component g produced it. Step 0 is the
    first token after the warm-up."""
    rows: Float64[Tensor, "batch component vocab"]
    """The distribution of the token after the last, if component g produces it; each sums to 1."""
    concentration: Concentration = 1.0
    """The Dirichlet prior over the weights: one number, or one per component."""

    def __len__(self) -> int:
        return len(self.likelihoods)

    def __getitem__(self, some: slice | Int64[Tensor, " some"]) -> "Evidence":
        """The evidence of some of the sequences."""
        return Evidence(self.likelihoods[some], self.rows[some], self.concentration)

    @property
    def n_steps(self) -> int:
        """N: how many tokens were observed after the warm-up."""
        return self.likelihoods.shape[1]

    @property
    def n_components(self) -> int:
        """m: how many components explain a token."""
        return self.likelihoods.shape[2]

    @property
    def uniform(self) -> Float64[Tensor, "batch component"]:
        """Weights before any evidence: 1/m for every component."""
        return uniform_for(self.likelihoods)

    @property
    def weights_matter(self) -> bool:
        """Whether predictions depend on the weights; they do not if all components agree."""
        spread = self.rows - self.rows[:, :1]
        return bool((spread.abs() > ROUNDING).any())

    @cached_property
    def _uniform_responsibilities(self) -> Float64[Tensor, "batch step component"]:
        return self.likelihoods / self.likelihoods.sum(-1, keepdim=True)

    @cached_property
    def mean_responsibilities(self) -> Float64[Tensor, "batch component"]:
        """Γ: the mean of γ over steps at uniform weights."""
        return mean_over_steps(self._uniform_responsibilities)

    def responsibilities(
        self, weights: Float64[Tensor, "batch component"] | None = None
    ) -> Float64[Tensor, "batch step component"]:
        """γ_t(g; w): the posterior of each step's component; at uniform weights if None."""
        if weights is None:
            return self._uniform_responsibilities
        return responsibilities_at(self.likelihoods, weights)

    def log_likelihood(
        self, weights: Float64[Tensor, "batch component"]
    ) -> Float64[Tensor, " batch"]:
        """ℓ(w) of every sequence."""
        return log_likelihood_at(self.likelihoods, weights)

    def gradient(
        self, weights: Float64[Tensor, "batch component"]
    ) -> Float64[Tensor, "batch component"]:
        """∇ℓ(w) of every sequence."""
        return gradient_at(self.likelihoods, weights)

    def predict(
        self, weights: Float64[Tensor, "batch component"]
    ) -> Float64[Tensor, "batch vocab"]:
        """Σ_g w_g·rows[g]: the distribution of the next token."""
        return mix_rows(self.rows, weights)

    def divergence(
        self,
        predictions: Float64[Tensor, "batch vocab"],
        weights: Float64[Tensor, "batch component"],
    ) -> Float64[Tensor, " batch"]:
        """KL(predictions ‖ prediction with `weights`) of every sequence.

        Both sides are clipped alike: a model's raw output may have negative entries, and no
        estimator is infinitely far away.

        Args:
            predictions: a model's raw output, or distributions.
            weights: mixture weights of every sequence.

        Returns:
            One divergence per sequence.
        """
        given = to_distribution(predictions)
        return divergences(given, self.predict(weights))


def evidence_of(
    transition: ArrayLike, tokens: ArrayLike, order: int, concentration: Concentration = 1.0
) -> Evidence:
    """Evidence about lag weights under one transition matrix, from plain arrays.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos] with more than `order` positions.
        order: the number of lags m.
        concentration: the Dirichlet prior.

    Returns:
        Evidence with `order` components and pos - order steps.
    """
    matrix = as_transition(transition)
    sequence = as_tokens(tokens, matrix.shape[0])
    order = check_order(order, sequence.shape[1])
    return lag_evidence(matrix.expand(order, -1, -1), sequence, concentration)


def lag_evidence(
    matrices: Float64[Tensor, "lag vocab vocab"],
    tokens: Int64[Tensor, "batch pos"],
    concentration: Concentration,
) -> Evidence:
    """Evidence about lag weights with one matrix per lag, from checked tensors.

    Args:
        matrices: one row-stochastic matrix per lag.
        tokens: sequences with more positions than lags.
        concentration: the Dirichlet prior.

    Returns:
        Evidence with one component per lag.
    """
    sequence = tokens.cpu()
    likelihoods = lag_likelihoods(matrices, sequence)
    return Evidence(likelihoods, lag_rows(matrices, sequence), concentration)
