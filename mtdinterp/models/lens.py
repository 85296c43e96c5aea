"""The TransformerLens 4 contract, shared by both transformers.

Modules own hook points; nothing is computed for a hook point that nobody listens to. An activation is
cloned before a hook sees it, because TransformerLens' patch setters write in place and keys, values and
the stream may share memory here. A narrow activation is shown at its place in a stream of the final width,
where every component writes its own columns: that is how an additive-stream tool sees a concatenated one.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, FactoredMatrix, HookedRootModule
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from mtdinterp.checks import ArrayLike, as_tokens, check_option
from mtdinterp.models import attention
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.stream import Stream


@dataclass
class LensConfig(TransformerLensConfig):
    """TransformerLens' configuration with the two switches its edge tools expect as well."""

    use_attn_in: bool = False
    use_hook_mlp_in: bool = False  # kept for the tools that set it: hook_mlp_in fires whenever it is listened to


def lens_config(config: ModelConfig, d_model: int, d_head: int, n_heads: int) -> LensConfig:
    """What TransformerLens' tools want to know of either architecture."""
    return LensConfig(
        d_model=d_model,
        d_head=d_head,
        n_layers=config.n_layers,
        n_heads=n_heads,
        n_ctx=config.length + 1,  # one more than a sequence: TransformerLens' detect_head wants it
        d_vocab=config.vocab_size,
        attn_only=True,
        normalization_type=None,
        default_prepend_bos=False,
        device="cpu",
    )


def listening(hook: HookPoint) -> bool:
    """Whether anything is attached to a hook point, by TransformerLens or by torch itself."""
    return bool(hook._forward_hooks or hook._forward_pre_hooks or hook._backward_hooks or hook._backward_pre_hooks)


def tap(hook: HookPoint, value: Tensor, place: slice | None = None, width: int | None = None) -> Tensor:
    """Show `value` to a hook point and return what comes back, as if it were not there otherwise.

    With `place` and `width` the hook sees the value in its columns of a tensor `width` wide, zero
    elsewhere; what a hook writes outside those columns is dropped, since they do not exist there. The
    layout in memory is that of the value, so that products take the same kernel and give the same bits.
    """
    if not listening(hook):
        return value
    if place is None or width is None:
        return hook(value.clone())
    return hook(F.pad(value, (place.start, width - place.stop)))[..., place].contiguous()


class HookedAttention(nn.Module):
    """Hook points of one attention layer, and attention through them; subclasses own the parameters."""

    n_heads: int

    def __init__(self, cfg: LensConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.hook_attn_in = HookPoint()  # [batch, pos, head, d_model], with use_attn_in
        self.hook_q_input = HookPoint()  # [batch, pos, head, d_model], with use_split_qkv_input
        self.hook_k_input = HookPoint()  # [batch, pos, head, d_model], with use_split_qkv_input
        self.hook_v_input = HookPoint()  # [batch, pos, head, d_model], with use_split_qkv_input
        self.hook_q = HookPoint()  # [batch, pos, head, d]
        self.hook_k = HookPoint()  # [batch, pos, head, d]
        self.hook_v = HookPoint()  # [batch, pos, head, d]
        self.hook_rel_scores = HookPoint()  # [batch, head, query, key]
        self.hook_attn_scores = HookPoint()  # [batch, head, query, key]
        self.hook_pattern = HookPoint()  # [batch, head, query, key]
        self.hook_z = HookPoint()  # [batch, pos, head, d]
        self.hook_result = HookPoint()  # [batch, pos, head, d_model], with use_attn_result

    def inputs(
        self, stream: Float[Tensor, "batch pos d"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What queries, keys and values read, each [batch, pos, head, d], forked where a switch asks for it."""
        place, width = slice(0, stream.shape[-1]), self.cfg.d_model
        shared = stream[:, :, None].expand(-1, -1, self.n_heads, -1)
        if self.cfg.use_split_qkv_input:
            hooks = (self.hook_q_input, self.hook_k_input, self.hook_v_input)
            q, k, v = (tap(hook, shared, place, width) for hook in hooks)
            return q, k, v
        if self.cfg.use_attn_in:
            shared = tap(self.hook_attn_in, shared, place, width)
        return shared, shared, shared

    def attend(
        self, q: Tensor, p: Tensor, k: Tensor, v: Tensor, key_table: Tensor, value_table: Tensor, watched: bool
    ) -> tuple[Tensor, Tensor]:
        """Attention: fused if nobody watches, step by step where a hook wants to see scores or pattern."""
        if not watched:
            return attention.relative_attention(q, p, k, v, key_table, value_table)
        if not any(map(listening, (self.hook_rel_scores, self.hook_attn_scores, self.hook_pattern))):
            return attention.eager_relative_attention(q, p, k, v, key_table, value_table)
        future = attention.future_mask(q.shape[1], k.shape[1], q.device)
        position = attention.position_scores(p, key_table, k.shape[1]).masked_fill(future, 0)
        position = tap(self.hook_rel_scores, position)
        scores = attention.content_scores(q, k, position).masked_fill(future, float("-inf"))
        scores = tap(self.hook_attn_scores, scores)
        # A hook may write attention to the future; there is none, and by offset it would be another row's.
        pattern = tap(self.hook_pattern, attention.causal_softmax(scores)).masked_fill(future, 0)
        return attention.gather_values(pattern, v), attention.gather_positions(pattern, value_table)

    def head_results(self, z: Float[Tensor, "batch pos head d"]) -> Float[Tensor, "batch pos d_model"]:
        """The layer's write as a sum over heads, each shown to `hook_result` first."""
        return tap(self.hook_result, torch.einsum("bphd,hdm->bphm", z, self.W_O)).sum(2)

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q·W_Kᵀ of every head: what the content score does to two residual vectors."""
        return FactoredMatrix(self.W_Q, rearrange(self.W_K, "head d_model d -> head d d_model"))

    @property
    def OV(self) -> FactoredMatrix:
        """W_V·W_O of every head: what a head writes of what it attends to."""
        return FactoredMatrix(self.W_V, self.W_O)


class HookedBlock(nn.Module):
    """One layer: attention, its write into the stream, and the hook points around it."""

    hook_out_is_single_residual_stream = True  # what TransformerLens' logit lens asks before it reads

    def __init__(self, cfg: LensConfig, attn: HookedAttention, reads: slice, writes: slice) -> None:
        super().__init__()
        self.cfg = cfg
        self.attn = attn
        self.reads, self.writes = reads, writes
        self.hook_resid_pre = HookPoint()  # [batch, pos, d_model]
        self.hook_attn_out = HookPoint()  # [batch, pos, d_model]
        self.hook_mlp_in = HookPoint()  # [batch, pos, d_model]
        self.hook_mlp_out = HookPoint()  # [batch, pos, d_model]
        self.hook_resid_post = HookPoint()  # [batch, pos, d_model]

    def forward(self, stream: Float[Tensor, "batch pos d"], last_only: bool, watched: bool) -> Tensor:
        """The stream after the layer; `watched` says whether any hook point of the model is listened to."""
        if not watched:
            return self.unwatched(stream, last_only)
        width = self.cfg.d_model
        stream = tap(self.hook_resid_pre, stream, self.reads, width)
        written = tap(self.hook_attn_out, self.attn(stream, last_only, watched=True), self.writes, width)
        stream = self.write(stream[:, -1:] if last_only else stream, written)
        place = slice(0, stream.shape[-1])
        if listening(self.hook_mlp_in) or listening(self.hook_mlp_out):
            # Attribution tools expect an MLP in every block: here it is one that writes nothing.
            nothing = 0 * tap(self.hook_mlp_in, stream, place, width)
            stream = stream + tap(self.hook_mlp_out, nothing, place, width)
        return tap(self.hook_resid_post, stream, place, width)

    def unwatched(self, stream: Tensor, last_only: bool) -> Tensor:
        """The same layer when nobody looks."""
        return self.write(stream[:, -1:] if last_only else stream, self.attn(stream, last_only, watched=False))

    def write(self, stream: Tensor, written: Tensor) -> Tensor:
        """How a layer's output enters the stream."""
        raise NotImplementedError


class Unembed(nn.Module):
    """The linear read-out W_U [d_model, vocab] (the paper's W_O, transposed); no bias, no softmax."""

    def __init__(self, d_model: int, vocab_size: int) -> None:
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(d_model, vocab_size))

    def reset_parameters(self, scale: float = 0.02) -> None:
        nn.init.normal_(self.W_U, std=scale)

    def forward(self, stream: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos vocab"]:
        return stream @ self.W_U


def _is_text(tokens: object) -> bool:
    """Whether tokens are written as digits: a string, or a list of strings."""
    return isinstance(tokens, str) or (isinstance(tokens, list) and bool(tokens) and isinstance(tokens[0], str))


class LensTransformer(HookedRootModule):
    """What TransformerLens' tools call on a model; subclasses fill `config`, `blocks` and the embedding."""

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

        `last_only` computes only what the last position needs: one query in the last layer, so hook points
        there see one position. `return_type="loss"` is the mean squared error against the one-hot next
        token over all positions but the last.
        """
        check_option("return_type", return_type, ("logits", "loss"))
        sequence = self.check_tokens(tokens)
        if return_type == "loss" and (last_only or sequence.shape[1] < 2):
            raise ValueError("return_type: the loss is over all positions but the last, so it needs two tokens or more "
                             f"and last_only=False; got {sequence.shape[1]} and last_only={last_only}")
        # If anything listens anywhere, every layer is eager: runs that are compared take the same path.
        watched = any(map(listening, self.hook_points()))
        embedded = self.embed(sequence)
        if watched and torch.is_grad_enabled() and not embedded.requires_grad:
            embedded.requires_grad_()  # one-hot embeddings are data, but backward hooks need a gradient to see
        stream = tap(self.hook_embed, embedded, slice(0, embedded.shape[-1]), self.cfg.d_model)
        for block in self.blocks[:-1]:
            stream = block(stream, False, watched)
        stream = self.blocks[-1](stream, last_only, watched)
        outputs = self.unembed(stream)
        if return_type == "loss":
            target = F.one_hot(sequence[:, 1:], self.cfg.d_vocab).to(outputs)
            return F.mse_loss(outputs[:, :-1], target)
        return outputs[:, -1] if last_only else outputs

    def check_tokens(self, tokens: ArrayLike | str) -> Int[Tensor, "batch pos"]:
        """Tokens on the model's device, or an error that says what this model accepts."""
        sequence = as_tokens(self.to_tokens(tokens) if _is_text(tokens) else tokens, self.config.vocab_size)
        length, longest = sequence.shape[1], self.config.length
        if self.config.exact_length and length != longest:
            raise ValueError(f"tokens: this constructed model is exact only at length {longest}, got {length}")
        if not 1 <= length <= longest:
            raise ValueError(f"tokens: expected a length of 1..{longest}, got {length}")
        return sequence.to(self.W_U.device)

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
        """Digits separated by blanks, a list of such strings, or numbers; a single sequence gets a batch axis."""
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
            raise ValueError("use_attn_in and use_split_qkv_input exclude each other: switch one off first")
