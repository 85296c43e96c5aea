"""Learn a subspace of the stream that holds a variable.

If a trained subspace of few dimensions can be swapped like the variable, the model keeps the
variable there, even if no named block does.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from transformer_lens.tools.analysis.interchange import (
    LearnedSubspace,
    SubspaceInterchange,
    run_with_intervention,
)

from mtdinterp.algorithms.base import Variable
from mtdinterp.checks import check_count
from mtdinterp.criteria import NOTHING_MOVES
from mtdinterp.errors import NotApplicable
from mtdinterp.explanation import Explanation
from mtdinterp.interventions.hooking import activations
from mtdinterp.metrics import r_squared
from mtdinterp.models.lens import LensTransformer

LEARNING_STEPS = 150
LEARNING_RATE = 0.05


@dataclass(frozen=True)
class Learned:
    """A subspace that was trained to hold the variable, judged on pairs it was not trained on."""

    rank: int
    r2: float
    control_r2: float
    """R² of a subspace that was trained in the same way on the targets of other pairs."""


def reading_layer(model: LensTransformer, explanation: Explanation, variable: Variable) -> int:
    """The layer, from 0, before which a subspace should hold a variable.

    Args:
        model: any hooked model.
        explanation: the model's explanation.
        variable: a variable at the last position.

    Returns:
        The layer that reads the variable in the construction, or the last layer.

    Raises:
        NotApplicable: if the variable lives at every position.
    """
    if variable.per_step:
        raise NotApplicable(
            "learn_rank: a subspace can be learned for variables at the last position only, not "
            f"for {variable.name}"
        )
    implementation = explanation.implementation
    if implementation is not None and variable.name in implementation.sites:
        return implementation.sites[variable.name].layer
    return len(model.blocks) - 1


class SubspaceLearner:
    """Trains subspaces of the stream before one layer, at the last position, on half the pairs."""

    def __init__(
        self,
        model: LensTransformer,
        layer: int,
        base: Int[Tensor, "batch pos"],
        source: Int[Tensor, "batch pos"],
        rank: int,
        seed: int,
    ) -> None:
        """
        Args:
            model: any hooked model.
            layer: the layer, from 0, that reads the stream.
            base: the sequences that the model runs on.
            source: the sequences that swapped values come from.
            rank: the dimension of the subspace.
            seed: seed of the first subspace and of the control's pairs.
        """
        width = model.layers[layer].reads.stop
        if check_count("learn_rank", rank) > width:
            raise ValueError(
                f"learn_rank: expected at most {width}, the width of the stream there, got {rank}"
            )
        self.model = model
        self.layer = layer
        self.rank = rank
        self.seed = seed
        self.hook = f"blocks.{layer}.hook_resid_pre"
        last = base.shape[1] - 1
        self.source_values = activations(model, source, [self.hook])[self.hook][:, last]
        # Nothing before the layer changes, so runs start from the stream that enters it.
        reads = model.layers[layer].reads
        self.streams = activations(model, base, [self.hook])[self.hook][..., reads]
        self.positions = torch.full((len(base),), last)
        half = len(base) // 2
        self.training = slice(0, half)
        self.judging = slice(half, None)

    @torch.enable_grad()
    def learn(
        self, unswapped: Float64[Tensor, "batch vocab"], swapped: Float64[Tensor, "batch vocab"]
    ) -> Learned:
        """Train a subspace towards the algorithm's predictions, and a control.

        Args:
            unswapped: the algorithm's predictions for the base.
            swapped: its predictions with the variable taken from the source.

        Returns:
            R² of both on new pairs.
        """
        expected = swapped - unswapped
        generator = torch.Generator().manual_seed(self.seed)
        other_pairs = torch.randperm(len(expected), generator=generator)
        with _frozen(self.model):
            movement = self._trained_movement(swapped)
            control = self._trained_movement(unswapped + expected[other_pairs])
        wanted = expected[self.judging]
        least = NOTHING_MOVES * len(wanted)
        return Learned(
            rank=self.rank,
            r2=r_squared(movement, wanted, least),
            control_r2=r_squared(control, wanted, least),
        )

    def _trained_movement(
        self, targets: Float64[Tensor, "batch vocab"]
    ) -> Float[Tensor, "judged vocab"]:
        """Train on the first half of the pairs; return the movement of the prediction on the second
        half.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            subspace = LearnedSubspace(self.model.cfg.d_model, self.rank)
        subspace = subspace.to(self.source_values)
        wanted = targets[self.training].to(self.source_values)
        optimizer = torch.optim.Adam(subspace.parameters(), lr=LEARNING_RATE)
        for _ in range(LEARNING_STEPS):
            optimizer.zero_grad()
            error = self._swapped(subspace, self.training) - wanted
            error.square().sum(-1).mean().backward()
            optimizer.step()
        with torch.no_grad():
            after = self._swapped(subspace, self.judging)
            return after - self._predict(self.streams[self.judging])

    def _swapped(self, subspace: LearnedSubspace, pairs: slice) -> Float[Tensor, "some vocab"]:
        """Predictions with the subspace taken from the source."""
        return run_with_intervention(
            self.model,
            self.hook,
            SubspaceInterchange(subspace),
            self.streams[pairs],
            self.source_values[pairs],
            self._predict,
            positions=self.positions[pairs],
        )

    def _predict(self, stream: Float[Tensor, "some pos d"]) -> Float[Tensor, "some vocab"]:
        outputs = self.model.run_layers(stream, self.layer, last_only=True, watched=True)
        return self.model.to_probabilities(outputs[:, -1])


@contextmanager
def _frozen(model: LensTransformer) -> Iterator[None]:
    """A context in which the model's parameters receive no gradients."""
    required = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        model.requires_grad_(False)
        yield
    finally:
        for parameter, requires_grad in required.items():
            parameter.requires_grad_(requires_grad)
