"""What a task is: a process that emits sequences from a mixture whose weights must be inferred.

Every sequence has its own mixture weights, drawn from a Dirichlet prior. After a warm-up, each
token is produced by one component, chosen with those weights. A task samples sequences, knows
their true next-token distribution, and turns tokens into `Evidence` about the weights. Everything
that compares models with estimators uses only this interface.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_concentration, as_distribution, check_count
from mtdinterp.errors import NotApplicable
from mtdinterp.evidence import Concentration, Evidence


@dataclass(frozen=True, eq=False)
class Sample:
    """A batch of sequences with everything the process knows about them."""

    tokens: Int64[Tensor, "batch pos"]
    weights: Float64[Tensor, "batch component"]
    lags: Int64[Tensor, "batch pos"]
    """The component that produced each token, from 1; 0 during the warm-up. For MTD: its lag."""
    next_probs: Float64[Tensor, "batch vocab"]
    """The true distribution of the token after the last, given the sequence's own weights."""
    next_tokens: Int64[Tensor, " batch"]
    """One draw from `next_probs`."""


class Task(ABC):
    """A process that emits sequences. Tasks are immutable and equal if their contents are."""

    name: ClassVar[str]
    """The task's name in checkpoints and on the command line."""
    label: ClassVar[str]
    """A short description of the task."""

    vocab_size: int
    """Number of distinct tokens, 0..vocab_size-1."""
    concentration: Concentration
    """The Dirichlet prior over weights: one number if symmetric, otherwise one per component."""

    @property
    @abstractmethod
    def n_components(self) -> int:
        """Number of components that can explain a token, which is the number of weights."""

    @property
    @abstractmethod
    def warm_up(self) -> int:
        """The first position that holds evidence about the weights."""

    @property
    @abstractmethod
    def read_offsets(self) -> tuple[int | None, ...]:
        """For each component, the attention offset where the last query reads it; None if none.

        Offset o is the position o before the query. For MTD the next token's lag g stands g-1
        positions before the last one.
        """

    @classmethod
    @abstractmethod
    def random(
        cls, vocab_size: int, order: int, seed: int, concentration: ArrayLike | float = 1.0
    ) -> "Task":
        """A task with random parameters.

        Args:
            vocab_size: number of distinct tokens.
            order: number of components.
            seed: the same seed gives the same task.
            concentration: the prior over weights.

        Returns:
            The task.
        """

    @classmethod
    def from_transition(
        cls, transition: ArrayLike, order: int, concentration: ArrayLike | float = 1.0
    ) -> "Task":
        """A task with given transition probabilities, as for `--transition FILE`.

        Optional: a task that cannot be made from such probabilities inherits this refusal.

        Args:
            transition: probabilities [vocab, vocab], or [lag, vocab, vocab] with a matrix per lag.
            order: number of components; the number of matrices if there is one per lag.
            concentration: the prior over weights.

        Returns:
            The task.

        Raises:
            NotApplicable: if this kind of task is not made from transition probabilities.
        """
        raise NotApplicable(
            f"the task {cls.name!r} cannot be made from a file of transition probabilities; leave "
            "out --transition"
        )

    @abstractmethod
    def sample(
        self,
        batch_size: int,
        length: int,
        seed: int | Sequence[int],
        weights: ArrayLike | None = None,
    ) -> Sample:
        """Draw sequences; the same seed gives the same sequences on every run.

        Args:
            batch_size: number of sequences.
            length: tokens per sequence.
            seed: one number or several.
            weights: mixture weights [component] or [batch, component] to use instead of draws
                from the prior.

        Returns:
            The sequences and what the process knows about them.
        """

    @abstractmethod
    def evidence(self, tokens: ArrayLike) -> Evidence:
        """The evidence of sequences [batch, pos] about their weights."""

    @abstractmethod
    def true_next(
        self, tokens: Int64[Tensor, "batch pos"], weights: Float64[Tensor, "batch component"]
    ) -> Float64[Tensor, "batch vocab"]:
        """The distribution of the token after the last, given each sequence's weights."""

    @abstractmethod
    def true_next_everywhere(
        self, tokens: Int64[Tensor, "batch pos"], weights: Float64[Tensor, "batch component"]
    ) -> Float64[Tensor, "batch pos vocab"]:
        """The distribution of the token after every position, given each sequence's weights."""

    @abstractmethod
    def shifted(self) -> tuple["Variant", ...]:
        """Sources of sequences atypical of the prior, on which similar estimators differ."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The task as plain values for JSON, with its name under "kind"."""

    @classmethod
    @abstractmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Task":
        """The inverse of `to_dict`, without "kind"; an unknown entry is an error."""

    @property
    def describe(self) -> str:
        """The task in a few words with its sizes, and its prior unless that is uniform."""
        sizes = f"{self.label}, {self.vocab_size} tokens, m = {self.n_components}"
        return sizes if self.concentration == 1 else f"{sizes}, prior {self.prior}"

    @property
    def prior(self) -> str:
        """The prior over weights in words, such as Dirichlet(1, 1)."""
        alpha = as_concentration(self.concentration, self.n_components).tolist()
        values = ", ".join(f"{value:g}" for value in alpha)
        return f"Dirichlet({values})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Task) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_dict(), sort_keys=True))


@dataclass(frozen=True, eq=False)
class Variant:
    """A source of sequences that differ from the prior's."""

    name: str
    task: Task
    """The task that sequences are drawn from; their evidence is still that of the original."""
    weights: Float64[Tensor, "choice component"] | None = None
    """Weights that the sequences cycle through; drawn from the task's prior if None."""

    def sample(
        self, batch_size: int, length: int, seed: int | Sequence[int]
    ) -> Int64[Tensor, "batch pos"]:
        """Tokens of `batch_size` sequences.

        Args:
            batch_size: number of sequences.
            length: tokens per sequence.
            seed: one number or several.

        Returns:
            The tokens.
        """
        weights = None
        if self.weights is not None:
            weights = self.weights[torch.arange(batch_size) % len(self.weights)]
        return self.task.sample(batch_size, length, seed, weights=weights).tokens


@runtime_checkable
class HasTransition(Protocol):
    """A task in which every component applies one and the same transition matrix."""

    transition: Float64[Tensor, "vocab vocab"]
    order: int

    @property
    def stationary(self) -> Float64[Tensor, " vocab"]:
        """The token marginal p with pᵀπ = pᵀ."""
        ...


def require_transition(task: Task, what: str) -> HasTransition:
    """The task as one with a single transition matrix, if it is one.

    Args:
        task: any task.
        what: the part of mtdinterp that needs the matrix, as the subject of the error's sentence.

    Returns:
        The same task.

    Raises:
        NotApplicable: if the task has no such matrix.
    """
    if not isinstance(task, HasTransition):
        raise NotApplicable(
            f"{what} needs one transition matrix that all lags share; "
            f"the task {task.name!r} has none."
        )
    return task


def draw_weights(
    batch_size: int,
    n_components: int,
    concentration: Concentration,
    weights: ArrayLike | None,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "batch component"]:
    """Mixture weights for every sequence: draws from the prior, or the given ones.

    Args:
        batch_size: number of sequences.
        n_components: number of weights per sequence.
        concentration: the Dirichlet prior.
        weights: [component] or [batch, component] to use instead of draws.
        rng: random number generator.

    Returns:
        Weights of every sequence.
    """
    if weights is None:
        alpha = as_concentration(concentration, n_components).numpy()
        return rng.dirichlet(alpha, size=batch_size)
    given = as_distribution("weights", weights, n_components)
    if given.shape not in ((n_components,), (batch_size, n_components)):
        raise ValueError(
            f"weights: expected shape [{n_components}] or [{batch_size}, {n_components}], "
            f"got {tuple(given.shape)}"
        )
    return given.expand(batch_size, n_components).contiguous().numpy()


def check_concentration(concentration: ArrayLike | float, n_components: int) -> Concentration:
    """A Dirichlet concentration as one number if it is symmetric, otherwise as a tuple."""
    alpha = as_concentration(concentration, n_components)
    if bool((alpha == alpha[0]).all()):
        return alpha[0].item()
    return tuple(alpha.tolist())


def generator(seed: int | Sequence[int]) -> np.random.Generator:
    """The generator that sequences are drawn from."""
    parts = list(seed) if isinstance(seed, Sequence) else [seed]
    entropy = [check_count("seed", part, minimum=0) for part in parts]
    return np.random.Generator(np.random.SFC64(entropy))
