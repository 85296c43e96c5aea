"""A part of a model: from a layer, to a layer, as TransformerLens' forward pass allows."""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mtdinterp.checks import ArrayLike
from mtdinterp.models.hooked import HookedBlock, LensConfig, tap


class PartialRuns:
    """The forward pass of a model in parts; `LensTransformer.forward` is its interface."""

    cfg: LensConfig
    embed: nn.Module
    blocks: nn.ModuleList
    unembed: nn.Module
    hook_embed: HookPoint

    if TYPE_CHECKING:

        @property
        def is_watched(self) -> bool:
            """Whether a hook is attached to any module."""

        @property
        def layers(self) -> list[HookedBlock]:
            """The layers with their type."""

        def check_tokens(self, tokens: ArrayLike | str) -> Int[Tensor, "batch pos"]:
            """Tokens on the model's device."""

        def check_length(self, length: int) -> None:
            """Refuse sequences that the model does not accept."""

    def embedded(
        self, sequence: Int[Tensor, "batch pos"], watched: bool
    ) -> Float[Tensor, "batch pos d"]:
        """The stream before layer 0."""
        embedded = self.embed(sequence)
        if watched and torch.is_grad_enabled() and not embedded.requires_grad:
            # One-hot embeddings are data, but backward hooks need a gradient to see.
            embedded.requires_grad_()
        place = slice(0, embedded.shape[-1])
        return tap(self.hook_embed, embedded, place, self.cfg.d_model)

    def run_layers(
        self, stream: Float[Tensor, "batch pos d"], first: int, last_only: bool, watched: bool
    ) -> Float[Tensor, "batch query vocab"]:
        """Outputs from the stream before a layer.

        Args:
            stream: the stream before layer `first`, [batch, pos, d].
            first: the first layer to run, from 0; the number of layers to run the read-out only.
            last_only: whether to compute the last position only.
            watched: whether any hook is attached to the model.

        Returns:
            Outputs [batch, query, vocab], with one query if `last_only`.
        """
        for block in self.blocks[first:-1]:
            stream = block(stream, False, watched)
        if first < len(self.blocks):
            stream = self.blocks[-1](stream, last_only, watched)
        return self.unembed(stream)

    def run_part(
        self, given: ArrayLike | str, start_at_layer: int | None, stop_at_layer: int | None
    ) -> Float[Tensor, "batch pos width"]:
        """Run some of the layers.

        Args:
            given: tokens, or the stream [batch, pos, d_model] before `start_at_layer`.
            start_at_layer: the first layer to run, from 0; None starts with the tokens.
            stop_at_layer: the layer to stop before; None runs to the outputs.

        Returns:
            Outputs, or the stream before `stop_at_layer`.
        """
        watched = self.is_watched
        first = 0
        if start_at_layer is None:
            stream = self.embedded(self.check_tokens(given), watched)
        else:
            first = self._layer_index("start_at_layer", start_at_layer)
            stream = self._check_stream(given, first)
        if stop_at_layer is None:
            return self.run_layers(stream, first, last_only=False, watched=watched)
        stop = self._layer_index("stop_at_layer", stop_at_layer)
        if stop < first:
            raise ValueError(
                f"stop_at_layer: expected a layer from start_at_layer = {first} on, got {stop}"
            )
        for block in self.blocks[first:stop]:
            stream = block(stream, False, watched)
        return F.pad(stream, (0, self.cfg.d_model - stream.shape[-1]))

    def _layer_index(self, name: str, layer: int) -> int:
        n_layers = self.cfg.n_layers
        if not -n_layers <= layer <= n_layers:
            raise ValueError(f"{name}: expected a layer in {-n_layers}..{n_layers}, got {layer}")
        return layer + n_layers if layer < 0 else layer

    def _check_stream(self, given: Any, layer: int) -> Float[Tensor, "batch pos d"]:
        """The columns of a stream [batch, pos, d_model] that exist before a layer."""
        if not isinstance(given, Tensor) or given.ndim != 3 or given.shape[-1] != self.cfg.d_model:
            shape = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(
                "start_at_layer: expected the stream before that layer, [batch, pos, "
                f"{self.cfg.d_model}], got {shape}"
            )
        self.check_length(given.shape[1])
        everything = slice(0, self.cfg.d_model)
        part = self.layers[layer].reads if layer < self.cfg.n_layers else everything
        if given[..., part.stop :].any():
            raise ValueError(
                f"start_at_layer: layer {layer} reads columns 0..{part.stop - 1}, and the columns "
                "after them, which later layers write, must be zero"
            )
        return given[..., part].contiguous()
