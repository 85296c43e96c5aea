"""Hook points, and the layers that both transformers build on them.

Modules own hook points; nothing is computed for a hook point that nobody listens to. An activation
is cloned before a hook sees it, because TransformerLens' patch setters write in place and keys,
values and the stream may share memory here. A narrow activation is shown at its place in a stream
of the final width, where every component writes its own columns: that is how an additive-stream
tool sees a concatenated one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from mtdinterp.models import attention
from mtdinterp.models.config import ModelConfig


@dataclass
class LensConfig(TransformerLensConfig):
    """TransformerLens' configuration with the two switches its edge tools expect as well."""

    use_attn_in: bool = False
    use_hook_mlp_in: bool = (
        False  # kept for the tools that set it: hook_mlp_in fires whenever it is listened to
    )


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


def attached(module: nn.Module) -> tuple[Mapping[int, object], ...]:
    """Where a module keeps what is attached to it, by TransformerLens or by torch itself."""
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )


def listening(hook: HookPoint) -> bool:
    """Whether anything is attached to a hook point."""
    return any(attached(hook))


def tap(
    hook: HookPoint, value: Tensor, place: slice | None = None, width: int | None = None
) -> Tensor:
    """Show `value` to a hook point and return what comes back, as if it were not there otherwise.

    With `place` and `width` the hook sees the value in its columns of a tensor `width` wide, zero
    elsewhere; what a hook writes outside those columns is dropped, since they do not exist there.
    The layout in memory is that of the value, so that products take the same kernel and give the
    same bits.
    """
    if not listening(hook):
        return value
    if place is None or width is None:
        return hook(value.clone())
    return hook(F.pad(value, (place.start, width - place.stop)))[..., place].contiguous()


class HookedAttention(nn.Module):
    """Hook points of one attention layer, and attention through them; subclasses own the
    parameters."""

    n_heads: int
    score_scale = 1.0
    """What q·k is multiplied with before the softmax."""

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

    def inputs(self, stream: Float[Tensor, "batch pos d"]) -> tuple[Tensor, Tensor, Tensor]:
        """What queries, keys and values read, each [batch, pos, head, d], forked where a switch
        asks for it."""
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
        self,
        q: Tensor,
        p: Tensor,
        k: Tensor,
        v: Tensor,
        key_table: Tensor,
        value_table: Tensor,
        watched: bool,
    ) -> tuple[Tensor, Tensor]:
        """Attention: fused if nobody watches, step by step where a hook wants to see scores or
        pattern."""
        if not watched:
            return attention.relative_attention(q, p, k, v, key_table, value_table)
        if not any(
            map(listening, (self.hook_rel_scores, self.hook_attn_scores, self.hook_pattern))
        ):
            return attention.eager_relative_attention(q, p, k, v, key_table, value_table)
        future = attention.future_mask(q.shape[1], k.shape[1], q.device)
        position = attention.position_scores(p, key_table, k.shape[1]).masked_fill(future, 0)
        position = tap(self.hook_rel_scores, position)
        scores = attention.content_scores(q, k, position).masked_fill(future, float("-inf"))
        scores = tap(self.hook_attn_scores, scores)
        # A hook may write attention to the future; there is none, and by offset it would be another
        # row's.
        pattern = tap(self.hook_pattern, attention.causal_softmax(scores)).masked_fill(future, 0)
        return attention.gather_values(pattern, v), attention.gather_positions(pattern, value_table)

    def head_results(
        self, z: Float[Tensor, "batch pos head d"]
    ) -> Float[Tensor, "batch pos d_model"]:
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

    hook_out_is_single_residual_stream = (
        True  # what TransformerLens' logit lens asks before it reads
    )

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

    def forward(
        self, stream: Float[Tensor, "batch pos d"], last_only: bool, watched: bool
    ) -> Tensor:
        """The stream after the layer; `watched` says whether any hook point of the model is
        listened to."""
        if not watched:
            return self.unwatched(stream, last_only)
        width = self.cfg.d_model
        stream = tap(self.hook_resid_pre, stream, self.reads, width)
        written = tap(
            self.hook_attn_out, self.attn(stream, last_only, watched=True), self.writes, width
        )
        stream = self.write(stream[:, -1:] if last_only else stream, written)
        place = slice(0, stream.shape[-1])
        if listening(self.hook_mlp_in) or listening(self.hook_mlp_out):
            # Attribution tools expect an MLP in every block: here it is one that writes nothing.
            nothing = 0 * tap(self.hook_mlp_in, stream, place, width)
            stream = stream + tap(self.hook_mlp_out, nothing, place, width)
        return tap(self.hook_resid_post, stream, place, width)

    def unwatched(self, stream: Tensor, last_only: bool) -> Tensor:
        """The same layer when nobody looks."""
        return self.write(
            stream[:, -1:] if last_only else stream, self.attn(stream, last_only, watched=False)
        )

    def write(self, stream: Tensor, written: Tensor) -> Tensor:
        """How a layer's output enters the stream."""
        raise NotImplementedError


class Unembed(nn.Module):
    """The linear read-out W_U [d_model, vocab] (the paper's W_O, transposed); no bias, no softmax.

    With `d_mlp` a hidden layer of that width adds to it: output = h·W_U + gelu(h·W_in +
    b_in)·W_out.
    """

    def __init__(self, d_model: int, vocab_size: int, d_mlp: int = 0) -> None:
        super().__init__()
        self.W_U = nn.Parameter(torch.empty(d_model, vocab_size))
        self.d_mlp = d_mlp
        if d_mlp:
            self.W_in = nn.Parameter(torch.empty(d_model, d_mlp))
            self.b_in = nn.Parameter(torch.empty(d_mlp))
            self.W_out = nn.Parameter(torch.empty(d_mlp, vocab_size))

    def reset_parameters(self, scale: float = 0.02) -> None:
        nn.init.normal_(self.W_U, std=scale)
        if self.d_mlp:
            nn.init.normal_(self.W_in, std=self.W_in.shape[0] ** -0.5)
            nn.init.zeros_(self.b_in)
            nn.init.normal_(self.W_out, std=scale)

    def forward(self, stream: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos vocab"]:
        linear = stream @ self.W_U
        return (
            linear + F.gelu(stream @ self.W_in + self.b_in) @ self.W_out if self.d_mlp else linear
        )
