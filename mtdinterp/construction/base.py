"""What an implementation is, and which one fits a model."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import torch

from mtdinterp.errors import NotApplicable
from mtdinterp.estimators.base import Constants
from mtdinterp.formatting import counted
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.lens import LensTransformer
from mtdinterp.models.stream import Stream
from mtdinterp.readings.regression import Slope
from mtdinterp.registry import ALGORITHMS, IMPLEMENTATIONS
from mtdinterp.tasks.base import Task, require_transition

DELTA = 100.0
"""The default size of a mask's scores."""


class LayerRole(Enum):
    """What a layer's attention does in a construction."""

    LAGS = "attends to each token's lags by their likelihood"
    AVERAGE = "averages over all positions that hold evidence"
    REWEIGHT = "averages with more weight on positions that the first weights explain badly"
    WEIGHTS = "attends to the next token's lags with the mixture weights"

    @property
    def counts_everywhere(self) -> bool:
        """Whether every query matters; otherwise only the last one reaches the output."""
        return self is LayerRole.LAGS

    @property
    def depends_on_constants(self) -> bool:
        """Whether the attention changes with the algorithm's constants."""
        return self in (LayerRole.REWEIGHT, LayerRole.WEIGHTS)

    @property
    def reads_next_lags(self) -> bool:
        """Whether the last query looks at the lags of the next token."""
        return self is LayerRole.WEIGHTS


@dataclass(frozen=True)
class NamedSite:
    """Where a construction keeps a variable: a stream block, before the layer that reads it."""

    block: str
    layer: int
    """The reading layer, from 0."""


class Implementation(ABC):
    """How an architecture carries out an algorithm."""

    algorithm: str
    architecture: str
    roles: tuple[LayerRole, ...]
    """What each layer's attention does; their number is the depth of the construction."""
    sites: dict[str, NamedSite]
    """Variables that the construction keeps in the stream, by name."""

    @property
    def name(self) -> str:
        """The name that it is registered under."""
        return f"{self.algorithm}/{self.architecture}"

    @property
    def n_layers(self) -> int:
        """The depth of the construction."""
        return len(self.roles)

    def check_task(self, task: Task) -> None:
        """Raise NotApplicable, with the reason, if there is no such construction for a task."""
        require_transition(task, "The construction")

    @abstractmethod
    def construct(
        self,
        task: Task,
        length: int,
        constants: Constants,
        delta: float | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> LensTransformer:
        """The algorithm as weights.

        Args:
            task: the model's task.
            length: the only length at which it is exact.
            constants: the algorithm's constants.
            delta: size of the masks' scores; large enough for the constants if None.
            dtype: data type of the weights.

        Returns:
            A model whose last output is the algorithm's prediction.

        Raises:
            NotApplicable: if there is no such construction for this task.
        """

    def read(self, model: LensTransformer, task: Task) -> dict[str, Slope]:
        """The algorithm's leading constant as the model's weights show it, by level.

        Attention and outputs can be read on any architecture; reading the weights depends on it.

        Args:
            model: a model of this architecture and depth.
            task: the model's task.

        Returns:
            One slope per level that applies, such as "weights".
        """
        return {}

    def blocks_of(self, stream: Stream, variable: str) -> list[str]:
        """The stream blocks that may hold a variable: with several heads, one per head."""
        site = self.sites.get(variable)
        if site is None:
            return []
        return [name for name in stream if without_heads(name) == site.block]


def without_heads(block: str) -> str:
    """A block's name without its heads: L2.H1.L1.H2.lag is a kind of L2.L1.lag."""
    return re.sub(r"\.H\d+", "", block)


def implementations_of(architecture: str) -> Iterable[Implementation]:
    """Every registered implementation on an architecture."""
    for implementation in IMPLEMENTATIONS.values():
        if implementation.architecture == architecture:
            yield implementation


def implementation_for(config: ModelConfig, task: Task) -> Implementation:
    """The construction with the simplest algorithm; see `implementations_for`."""
    return implementations_for(config, task)[0]


def implementations_for(config: ModelConfig, task: Task) -> list[Implementation]:
    """The constructions of a model's architecture and depth for a task.

    Args:
        config: the model's configuration.
        task: the model's task.

    Returns:
        One or more implementations, the simplest algorithm first.

    Raises:
        NotApplicable: if none is known, with the reason.
    """
    known = list(implementations_of(config.architecture))
    refusal: NotApplicable | None = None
    found: list[Implementation] = []
    for implementation in known:
        if implementation.n_layers != config.n_layers:
            continue
        try:
            implementation.check_task(task)
        except NotApplicable as error:
            # Another construction of this depth may apply.
            refusal = error
        else:
            found.append(implementation)
    if found:
        return sorted(found, key=lambda entry: ALGORITHMS[entry.algorithm].rank)
    if refusal is not None:
        raise refusal
    depths = " and ".join(str(implementation.n_layers) for implementation in known)
    others = f"; there are constructions of {depths} layers" if known else ""
    depth = counted(config.n_layers, "layer")
    raise NotApplicable(
        f"No construction is known for {depth} of the {config.architecture} architecture{others}."
    )
