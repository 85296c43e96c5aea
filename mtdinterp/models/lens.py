"""The model that all architectures extend: the forward pass and the TransformerLens 4 contract."""

from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.hook_points import HookPoint

from mtdinterp.checks import ArrayLike, as_tokens, check_option
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.hooked import HookedBlock, LensConfig, Unembed, attached, tap
from mtdinterp.models.paths import AttentionPath, Implementation
from mtdinterp.models.stream import Stream
from mtdinterp.native import use_kernels
from mtdinterp.native.attention import can_fuse
from mtdinterp.native.step import FoldedLayer, fused_outputs


def _is_text(tokens: object) -> bool:
    """Whether tokens are written as digits: a string, or a list of strings."""
    if isinstance(tokens, list):
        return bool(tokens) and isinstance(tokens[0], str)
    return isinstance(tokens, str)


class LensTransformer(HookedRootModule):
    """A transformer that TransformerLens' tools can read.

    Subclasses set `config`, `stream`, `cfg`, the embedding, `blocks` and `unembed`, and call
    `setup` at the end of their constructor.
    """

    fastest: ClassVar[Implementation] = "eager"
    """The fastest implementation of attention that the architecture has.

    "operator" if its layers call `HookedAttention.attend`, "whole model" if `folded_layers` is
    defined as well.
    """

    config: ModelConfig
    stream: Stream
    """Named blocks of the final stream, in column order."""
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
        """The model's outputs.

        Args:
            tokens: integer tokens [batch, pos], or digits separated by blanks.
            last_only: compute only what the last position needs. The last layer then has one
                query, so that its hook points see one position.
            return_type: "logits" for the outputs; "loss" for the mean squared error against the
                one-hot next token, over all positions but the last.

        Returns:
            Outputs [batch, pos, vocab], or [batch, vocab] if `last_only`; or the loss, a scalar.
        """
        check_option("return_type", return_type, ("logits", "loss"))
        sequence = self.check_tokens(tokens)
        if return_type == "loss" and (last_only or sequence.shape[1] < 2):
            raise ValueError(
                "return_type: the loss is over all positions but the last, so it needs two tokens "
                f"or more and last_only=False; got {sequence.shape[1]} and last_only={last_only}"
            )
        if self.attention_path().name == "whole pass" and len(sequence):
            outputs = fused_outputs(self.folded_layers(), self.W_U, sequence, last_only)
        else:
            outputs = self._outputs_by_layer(sequence, last_only)
        if return_type == "loss":
            target = F.one_hot(sequence[:, 1:], self.cfg.d_vocab).to(outputs)
            return F.mse_loss(outputs[:, :-1], target)
        return outputs[:, -1] if last_only else outputs

    def _outputs_by_layer(
        self, sequence: Int[Tensor, "batch pos"], last_only: bool
    ) -> Float[Tensor, "batch query vocab"]:
        # With a hook anywhere every layer is eager, so that runs that are compared with each other
        # take the same path.
        watched = self.is_watched
        embedded = self.embed(sequence)
        if watched and torch.is_grad_enabled() and not embedded.requires_grad:
            # One-hot embeddings are data, but backward hooks need a gradient to see.
            embedded.requires_grad_()
        place = slice(0, embedded.shape[-1])
        stream = tap(self.hook_embed, embedded, place, self.cfg.d_model)
        return self.run_layers(stream, 0, last_only, watched)

    def to_probabilities(
        self, outputs: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        """The predicted distributions: the softmax of logits, other outputs as they are."""
        return outputs.softmax(-1) if self.config.logits else outputs

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

    def attention_path(self, training: bool = False) -> AttentionPath:
        """Which implementation of attention runs now, and why.

        Args:
            training: whether the question is about `prediction_loss` instead of a forward pass.

        Returns:
            The path; see `mtdinterp.models.paths`.
        """
        if self.fastest == "eager":
            name = self.config.architecture
            return AttentionPath("eager", f"the {name} architecture has no compiled kernels")
        if self.is_watched:
            return AttentionPath("eager", "hooks are attached")
        if not can_fuse(*self.parameters()):
            return AttentionPath("eager", "the kernels need float32 parameters on the CPU")
        if not use_kernels():
            return AttentionPath("eager", "compiled kernels are switched off or not available")
        if self.fastest == "operator":
            return AttentionPath("operator", "this architecture has no folded form")
        if self.unembed.d_mlp:
            return AttentionPath("operator", "the whole-model kernel has no hidden layer")
        if training:
            return AttentionPath("whole step", "loss and gradients are one call of the kernel")
        differentiable = any(parameter.requires_grad for parameter in self.parameters())
        if torch.is_grad_enabled() and differentiable:
            return AttentionPath("operator", "the outputs must be differentiable")
        return AttentionPath("whole pass", "all layers are one call of the kernel")

    def check_tokens(self, tokens: ArrayLike | str) -> Int[Tensor, "batch pos"]:
        """Tokens on the model's device, or an error that says what this model accepts."""
        numbers = self.to_tokens(tokens) if _is_text(tokens) else tokens
        sequence = as_tokens(numbers, self.config.vocab_size)
        length = sequence.shape[1]
        longest = self.config.length
        if self.config.exact_length and length != longest:
            raise ValueError(
                f"tokens: this constructed model is exact only at length {longest}, got {length}"
            )
        if not 1 <= length <= longest:
            raise ValueError(f"tokens: expected a length in 1..{longest}, got {length}")
        return sequence.to(self.W_U.device)

    def setup(self) -> None:
        """Name the hook points, as TransformerLens does, and note where hooks are kept."""
        super().setup()
        places: list[Any] = []
        for module in self.modules():
            places.extend(attached(module))
        self._attached = tuple(places)

    @property
    def is_watched(self) -> bool:
        """Whether a hook is attached to any module, so that every step must run where it shows."""
        return any(self._attached)

    @property
    def layers(self) -> list[HookedBlock]:
        """The layers with their type; layer l of the paper is layers[l-1]."""
        return [cast(HookedBlock, block) for block in self.blocks]

    def folded_layers(self) -> list[FoldedLayer]:
        """The model as layers of one form on one-hot tokens, for the whole-model kernel."""
        raise NotImplementedError(f"{type(self).__name__} has no folded form")

    def reset_parameters(self) -> None:
        """Set all parameters to the architecture's default start."""
        raise NotImplementedError

    @property
    def exact_length(self) -> bool:
        """Whether the model is a construction that refuses other lengths than its own."""
        return self.config.exact_length

    def run_with_cache(self, *args: Any, **kwargs: Any) -> tuple[Any, ActivationCache]:
        """TransformerLens' run_with_cache, with an ActivationCache instead of a dict."""
        output, cache = super().run_with_cache(*args, **kwargs)
        has_batch = not kwargs.get("remove_batch_dim", False)
        return output, ActivationCache(cache, self, has_batch_dim=has_batch)

    def _apply(self, fn: Any, recurse: bool = True) -> "LensTransformer":
        """Keep dtype and device of TransformerLens' configuration true when the model moves."""
        super()._apply(fn, recurse)
        self.cfg.dtype = self.W_U.dtype
        self.cfg.device = str(self.W_U.device)
        return self

    # Tokens are numbers here, and their names are their digits.

    def to_tokens(self, input: str | ArrayLike) -> Tensor:
        """Tokens [batch, pos] from digits separated by blanks, a list of such strings, or numbers.

        A single sequence gets a batch axis.
        """
        if not _is_text(input):
            return torch.atleast_2d(torch.as_tensor(input))
        rows = [input] if isinstance(input, str) else input
        return torch.tensor([self._parse(row) for row in rows])

    def _parse(self, row: str) -> list[int]:
        return [self.to_single_token(word) for word in row.split()]

    def to_single_token(self, string: str | int) -> int:
        """The token that a string of digits stands for."""
        return int(check_option("token", str(string), map(str, range(self.cfg.d_vocab))))

    def to_str_tokens(self, input: Any) -> list[str]:
        """Tokens as strings of digits."""
        if isinstance(input, str):
            return input.split()
        return [str(int(token)) for token in torch.as_tensor(input).flatten()]

    def tokens_to_residual_directions(self, tokens: str | int | Tensor) -> Tensor:
        """The columns of W_U: one residual direction per token."""
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        index = torch.as_tensor(tokens)
        return self.W_U.T[index.squeeze() if index.numel() == 1 else index]

    # Weights by their TransformerLens names.

    @property
    def W_U(self) -> Float[Tensor, "d_model vocab"]:
        """The linear read-out."""
        return self.unembed.W_U

    @property
    def b_U(self) -> Float[Tensor, " vocab"]:
        """Zeros: the read-out has no bias."""
        return self.W_U.new_zeros(self.cfg.d_vocab)

    @property
    def W_E(self) -> Float[Tensor, "vocab d_model"]:
        """The embedding of every token, at its place in the final stream."""
        raise NotImplementedError

    def accumulated_bias(
        self, layer: int, mlp_input: bool = False, include_mlp_biases: bool = True
    ) -> Float[Tensor, " d_model"]:
        """Zeros: no component has a bias.

        Args:
            layer: the layer up to which biases are summed.
            mlp_input: whether to include that layer's attention.
            include_mlp_biases: whether to include the biases of MLPs.

        Returns:
            Zeros [d_model].
        """
        return self.W_U.new_zeros(self.cfg.d_model)

    def tl_parameters(self) -> dict[str, Tensor]:
        """Weights by the names that TransformerLens' weight tools read."""
        named = {"embed.W_E": self.W_E, "unembed.W_U": self.W_U, "unembed.b_U": self.b_U}
        for layer, block in enumerate(self.layers):
            for name in ("W_Q", "W_K", "W_V", "W_O"):
                named[f"blocks.{layer}.attn.{name}"] = getattr(block.attn, name)
        return named

    def blocks_with(self, submodule: str) -> list[tuple[int, nn.Module]]:
        """Index and block of every layer that has a submodule of this name."""
        return [(i, block) for i, block in enumerate(self.blocks) if submodule in block._modules]

    # TransformerLens' switches for hook points that cost memory when they fire.

    def set_use_attn_result(self, value: bool) -> None:
        """Whether `hook_result` fires."""
        self.cfg.use_attn_result = value

    def set_use_split_qkv_input(self, value: bool) -> None:
        """Whether queries, keys and values have separate input hooks."""
        self._check_forks(value, self.cfg.use_attn_in)
        self.cfg.use_split_qkv_input = value

    def set_use_attn_in(self, value: bool) -> None:
        """Whether `hook_attn_in` fires."""
        self._check_forks(value, self.cfg.use_split_qkv_input)
        self.cfg.use_attn_in = value

    def set_use_hook_mlp_in(self, value: bool) -> None:
        """Has no effect; some tools call it."""
        self.cfg.use_hook_mlp_in = value

    @staticmethod
    def _check_forks(value: bool, other: bool) -> None:
        if value and other:
            raise ValueError(
                "use_attn_in and use_split_qkv_input cannot be combined: switch one off first"
            )
