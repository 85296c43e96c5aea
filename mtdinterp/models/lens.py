"""The TransformerLens 4 contract: what its tools call on a model, shared by both transformers."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.hook_points import HookPoint

from mtdinterp.checks import ArrayLike, as_tokens, check_option
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.hooked import LensConfig, Unembed, attached, tap
from mtdinterp.models.stream import Stream
from mtdinterp.native.step import FoldedLayer


def _is_text(tokens: object) -> bool:
    """Whether tokens are written as digits: a string, or a list of strings."""
    return isinstance(tokens, str) or (
        isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], str)
    )


class LensTransformer(HookedRootModule):
    """What TransformerLens' tools call on a model; subclasses fill `config`, `blocks` and the
    embedding."""

    config: ModelConfig
    stream: Stream
    """Named blocks of the final stream, in order."""
    cfg: LensConfig
    embed: nn.Module
    blocks: nn.ModuleList
    unembed: Unembed
    hook_embed: HookPoint

    def forward(
        self,
        tokens: ArrayLike | str,
        last_only: bool = False,
        return_type: str = "logits",
    ) -> Tensor:
        """Outputs [batch, pos, vocab]; with `last_only` those of the last position, [batch, vocab].

        `last_only` computes only what the last position needs: one query in the last layer, so hook
        points there see one position. `return_type="loss"` is the mean squared error against the
        one-hot next token over all positions but the last.
        """
        check_option("return_type", return_type, ("logits", "loss"))
        sequence = self.check_tokens(tokens)
        if return_type == "loss" and (last_only or sequence.shape[1] < 2):
            raise ValueError(
                "return_type: the loss is over all positions but the last, so it needs two tokens "
                "or more "
                f"and last_only=False; got {sequence.shape[1]} and last_only={last_only}"
            )
        # If anything listens anywhere, every layer is eager: runs that are compared take the same
        # path.
        watched = self.is_watched
        embedded = self.embed(sequence)
        if watched and torch.is_grad_enabled() and not embedded.requires_grad:
            # One-hot embeddings are data, but backward hooks need a gradient to see.
            embedded.requires_grad_()
        stream = tap(self.hook_embed, embedded, slice(0, embedded.shape[-1]), self.cfg.d_model)
        outputs = self.run_layers(stream, 0, last_only, watched)
        if return_type == "loss":
            target = F.one_hot(sequence[:, 1:], self.cfg.d_vocab).to(outputs)
            return F.mse_loss(outputs[:, :-1], target)
        return outputs[:, -1] if last_only else outputs

    def to_probabilities(
        self, outputs: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        """Outputs as what they predict: their softmax where they are logits, else as they are."""
        return outputs.softmax(-1) if self.config.logits else outputs

    def run_layers(
        self, stream: Float[Tensor, "batch pos d"], first: int, last_only: bool, watched: bool
    ) -> Float[Tensor, "batch query vocab"]:
        """Outputs from the stream before layer `first` (0 is the first, one more than the last just
        reads out)."""
        for block in self.blocks[first:-1]:
            stream = block(stream, False, watched)
        if first < len(self.blocks):
            stream = self.blocks[-1](stream, last_only, watched)
        return self.unembed(stream)

    def check_tokens(self, tokens: ArrayLike | str) -> Int[Tensor, "batch pos"]:
        """Tokens on the model's device, or an error that says what this model accepts."""
        sequence = as_tokens(
            self.to_tokens(tokens) if _is_text(tokens) else tokens, self.config.vocab_size
        )
        length, longest = sequence.shape[1], self.config.length
        if self.config.exact_length and length != longest:
            raise ValueError(
                f"tokens: this constructed model is exact only at length {longest}, got {length}"
            )
        if not 1 <= length <= longest:
            raise ValueError(f"tokens: expected a length of 1..{longest}, got {length}")
        return sequence.to(self.W_U.device)

    def setup(self) -> None:
        """TransformerLens' naming of the hook points, and where to look for what is attached to any
        module."""
        super().setup()
        self._attached = tuple(place for module in self.modules() for place in attached(module))

    @property
    def is_watched(self) -> bool:
        """Whether anything is attached anywhere: then every step must be taken where it can be
        seen."""
        return any(self._attached)

    def folded_layers(self) -> list[FoldedLayer]:
        """The model as layers of one form on one-hot tokens, for the fused training step."""
        raise NotImplementedError

    @property
    def layers(self) -> list[Any]:
        return list(self.blocks)

    @property
    def exact_length(self) -> bool:
        return self.config.exact_length

    def run_with_cache(self, *args: Any, **kwargs: Any) -> tuple[Any, ActivationCache]:
        """TransformerLens' run_with_cache, returning an ActivationCache instead of a dict."""
        output, cache = super().run_with_cache(*args, **kwargs)
        has_batch = not kwargs.get("remove_batch_dim", False)
        return output, ActivationCache(cache, self, has_batch_dim=has_batch)

    def _apply(self, fn: Any, recurse: bool = True) -> "LensTransformer":
        """Keep TransformerLens' idea of dtype and device true when the model moves."""
        super()._apply(fn, recurse)
        self.cfg.dtype, self.cfg.device = self.W_U.dtype, str(self.W_U.device)
        return self

    # Tokens are numbers here: their names are their digits.

    def to_tokens(self, input: str | ArrayLike) -> Tensor:
        """Digits separated by blanks, a list of such strings, or numbers; a single sequence gets a
        batch axis."""
        if not _is_text(input):
            return torch.atleast_2d(torch.as_tensor(input))
        rows = [input] if isinstance(input, str) else input
        return torch.tensor([[self.to_single_token(word) for word in row.split()] for row in rows])

    def to_single_token(self, string: str | int) -> int:
        return int(check_option("token", str(string), map(str, range(self.cfg.d_vocab))))

    def to_str_tokens(self, input: Any) -> list[str]:
        if isinstance(input, str):
            return input.split()
        return [str(int(token)) for token in torch.as_tensor(input).flatten()]

    def tokens_to_residual_directions(self, tokens: str | int | Tensor) -> Tensor:
        """The columns of W_U, one residual direction a token."""
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        index = torch.as_tensor(tokens)
        return self.W_U.T[index.squeeze() if index.numel() == 1 else index]

    # Weights by their TransformerLens names.

    @property
    def W_U(self) -> Float[Tensor, "d_model vocab"]:
        return self.unembed.W_U

    @property
    def b_U(self) -> Float[Tensor, " vocab"]:
        return self.W_U.new_zeros(self.cfg.d_vocab)

    @property
    def W_E(self) -> Float[Tensor, "vocab d_model"]:
        raise NotImplementedError

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """No component has a bias."""
        return self.W_U.new_zeros(self.cfg.d_model)

    def tl_parameters(self) -> dict[str, Tensor]:
        """Weights under the names that TransformerLens' weight tools read."""
        named = {"embed.W_E": self.W_E, "unembed.W_U": self.W_U, "unembed.b_U": self.b_U}
        for layer, block in enumerate(self.blocks):
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                named[f"blocks.{layer}.attn.{name}"] = getattr(block.attn, name)
        return named

    def blocks_with(self, submodule: str) -> list[tuple[int, nn.Module]]:
        return [(i, block) for i, block in enumerate(self.blocks) if submodule in block._modules]

    # Switches for hook points that cost memory when they fire.

    def set_use_attn_result(self, value: bool) -> None:
        self.cfg.use_attn_result = value

    def set_use_split_qkv_input(self, value: bool) -> None:
        self._check_forks(value, self.cfg.use_attn_in)
        self.cfg.use_split_qkv_input = value

    def set_use_attn_in(self, value: bool) -> None:
        self._check_forks(value, self.cfg.use_split_qkv_input)
        self.cfg.use_attn_in = value

    def set_use_hook_mlp_in(self, value: bool) -> None:
        self.cfg.use_hook_mlp_in = value

    @staticmethod
    def _check_forks(value: bool, other: bool) -> None:
        if value and other:
            raise ValueError(
                "use_attn_in and use_split_qkv_input exclude each other: switch one off first"
            )
