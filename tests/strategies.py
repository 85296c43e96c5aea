"""Random small problems for property-based tests."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from hypothesis import strategies as st

from mtdinterp.tasks import MTDTask


@dataclass(frozen=True)
class Problem:
    """A task with random rows and sequences sampled from it, so that none is impossible.

    Built on first use and not while Hypothesis draws: the run-time type checker uses Python's
    `random`, which Hypothesis forbids there.
    """

    vocab_size: int
    order: int
    steps: int
    batch_size: int
    row_concentration: float
    """Dirichlet parameter of the transition rows, from almost deterministic to almost uniform."""
    seed: int

    @cached_property
    def task(self):
        rows = np.full(self.vocab_size, self.row_concentration)
        return MTDTask(
            np.random.default_rng(self.seed).dirichlet(rows, size=self.vocab_size), self.order
        )

    @cached_property
    def data(self):
        return self.task.sample(self.batch_size, self.order + self.steps, self.seed)

    @property
    def arguments(self):
        return self.task.transition, self.data.tokens, self.order


def problems(min_order=1, max_order=3, max_steps=12, max_batch=2):
    return st.builds(
        Problem,
        vocab_size=st.integers(2, 4),
        order=st.integers(min_order, max_order),
        steps=st.integers(1, max_steps),
        batch_size=st.integers(1, max_batch),
        row_concentration=st.sampled_from([1.0, 10.0, 0.3, 0.05]),
        seed=st.integers(0, 10_000),
    )
