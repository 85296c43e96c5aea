"""Hook points, and the layers that every transformer here builds on.

Modules own hook points; a hook point without a hook costs nothing. An activation is cloned before a
hook sees it, because TransformerLens' patch setters write in place, and keys, values and the stream
may share memory here. A narrow activation is shown at its place in a stream of the final width,
where every component writes its own columns: that is how a tool for additive streams reads a
concatenated one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """TransformerLens' configuration with the further fields that its tools and users expect."""

    use_attn_in: bool = False
    use_hook_mlp_in: bool = False
    """Has no effect: hook_mlp_in fires whenever a hook is attached. Some tools set it."""
    attn_scale: float = 1.0
    """q·k is divided by this before the softmax."""
    attention_dir: str = "causal"
    model_name: str = ""
    """The name of the architecture."""


def lens_config(
    config: ModelConfig, d_model: int, d_head: int, n_heads: int, attn_scale: float = 1.0
) -> LensConfig:
    """What TransformerLens' tools ask about a model.

    Args:
        config: the model's configuration.
        d_model: width of the final stream.
        d_head: width of a head's output before it is written to the stream.
        n_heads: the largest number of heads of a layer.
        attn_scale: what q·k is divided by before the softmax.

    Returns:
        The configuration that the model publishes as `cfg`.
    """
    return LensConfig(
        d_model=d_model,
        d_head=d_head,
        n_layers=config.n_layers,
        n_heads=n_heads,
        n_ctx=config.length + 1,  # TransformerLens' detect_head requires sequences shorter than it
        d_vocab=config.vocab_size,
        d_mlp=0,  # of the layers; the hidden layer of config.d_mlp belongs to the read-out
        attn_only=True,
        positional_embedding_type="relative",
        attn_scale=attn_scale,
        model_name=config.architecture,
        normalization_type=None,
        default_prepend_bos=False,
        device="cpu",
    )


def attached(module: nn.Module) -> tuple[Mapping[int, object], ...]:
    """The dictionaries in which a module keeps its hooks, TransformerLens' and torch's own."""
    return (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )


def listening(hook: HookPoint) -> bool:
    """Whether a hook is attached to a hook point."""
    return any(attached(hook))


def tap(
    hook: HookPoint, value: Tensor, place: slice | None = None, width: int | None = None
) -> Tensor:
    """Show an activation to a hook point and return what the hooks make of it.

    With `place` and `width` the hooks see the value in its columns of a tensor that is `width`
    wide and zero elsewhere. What a hook writes outside those columns is dropped, because the model
    has no such columns at this point. The result is laid out in memory like the value, so that
    products with it take the same kernel and give the same bits.

    Args:
        hook: the hook point.
        value: the activation, [..., d].
        place: the columns that the activation occupies in the final stream.
        width: the width of the final stream.

    Returns:
        The activation, [..., d]; `value` itself if no hook is attached.
    """
    if not listening(hook):
        return value
    if place is None or width is None:
        return hook(value.clone())
    shown = F.pad(value, (place.start, width - place.stop))
    return hook(shown)[..., place].contiguous()


class HookedAttention(nn.Module):
    """Hook points of one attention layer and attention through them; subclasses own parameters."""

    n_heads: int
    score_scale = 1.0
    """The factor of q·k before the softmax."""

    if TYPE_CHECKING:
        # The weights by their TransformerLens names. A subclass has them as parameters or as
        # properties. As properties of this class they would hide parameters of the same name.

        @property
        def W_Q(self) -> Float[Tensor, "head d_model d_key"]:
            """Queries from the stream."""

        @property
        def W_K(self) -> Float[Tensor, "head d_model d_key"]:
            """Keys from the stream."""

        @property
        def W_V(self) -> Float[Tensor, "head d_model d_head"]:
            """Values from the stream."""

        @property
        def W_O(self) -> Float[Tensor, "head d_head d_model"]:
            """What each head writes to the stream."""

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
        """What queries, keys and values read, each [batch, pos, head, d].

        They are three separate tensors only if `use_split_qkv_input` is set.
        """
        place = slice(0, stream.shape[-1])
        width = self.cfg.d_model
        shared = stream[:, :, None].expand(-1, -1, self.n_heads, -1)
        if self.cfg.use_split_qkv_input:
            query_in = tap(self.hook_q_input, shared, place, width)
            key_in = tap(self.hook_k_input, shared, place, width)
            value_in = tap(self.hook_v_input, shared, place, width)
            return query_in, key_in, value_in
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
        """`attention.relative_attention`, through this layer's hook points.

        Args:
            q: queries of the content score, [batch, query, head, d_key].
            p: queries of the position score, [batch, query, head, d_pos].
            k: keys, [batch, key, head, d_key].
            v: values, [batch, key, head, d_value].
            key_table: vectors that `p` is multiplied with, by offset, [head, length, d_pos].
            value_table: values gathered by offset, [head, length, d_rel].
            watched: whether any hook is attached to the model; if not, the operator may run.

        Returns:
            What each query gathers from the values, [batch, query, head, d_value], and from the
            value table, [batch, query, head, d_rel].
        """
        if not watched:
            return attention.relative_attention(q, p, k, v, key_table, value_table)
        inner_hooks = (self.hook_rel_scores, self.hook_attn_scores, self.hook_pattern)
        if not any(map(listening, inner_hooks)):
            return attention.eager_relative_attention(q, p, k, v, key_table, value_table)
        future = attention.future_mask(q.shape[1], k.shape[1], q.device)
        position = attention.position_scores(p, key_table, k.shape[1]).masked_fill(future, 0)
        position = tap(self.hook_rel_scores, position)
        scores = attention.content_scores(q, k, position).masked_fill(future, float("-inf"))
        scores = tap(self.hook_attn_scores, scores)
        pattern = tap(self.hook_pattern, attention.causal_softmax(scores))
        # A hook may write attention to the future. It is removed: read by offset, it would be
        # taken for attention of another row.
        pattern = pattern.masked_fill(future, 0)
        return attention.gather_values(pattern, v), attention.gather_positions(pattern, value_table)

    def head_results(
        self, z: Float[Tensor, "batch pos head d"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The layer's output as a sum over heads, each of them shown to `hook_result` first."""
        return tap(self.hook_result, torch.einsum("bphd,hdm->bphm", z, self.W_O)).sum(2)

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q·W_Kᵀ of every head: the content score of two residual vectors."""
        return FactoredMatrix(self.W_Q, rearrange(self.W_K, "head d_model d -> head d d_model"))

    @property
    def OV(self) -> FactoredMatrix:
        """W_V·W_O of every head: what a head writes for the residual vector it attends to."""
        return FactoredMatrix(self.W_V, self.W_O)


class HookedBlock(nn.Module):
    """One layer: attention, its write into the stream, and the hook points around it."""

    hook_out_is_single_residual_stream = True
    """TransformerLens' logit lens asks for this."""
    attn: HookedAttention
    reads: slice
    """Columns of the final stream that the layer reads."""
    writes: slice
    """Columns of the final stream that the layer writes."""

    def __init__(self, cfg: LensConfig, attn: HookedAttention, reads: slice, writes: slice) -> None:
        super().__init__()
        self.cfg = cfg
        self.attn = attn
        self.reads = reads
        self.writes = writes
        self.hook_resid_pre = HookPoint()  # [batch, pos, d_model]
        self.hook_attn_out = HookPoint()  # [batch, pos, d_model]
        self.hook_mlp_in = HookPoint()  # [batch, pos, d_model]
        self.hook_mlp_out = HookPoint()  # [batch, pos, d_model]
        self.hook_resid_post = HookPoint()  # [batch, pos, d_model]

    def forward(
        self, stream: Float[Tensor, "batch pos d"], last_only: bool, watched: bool
    ) -> Float[Tensor, "batch query d_out"]:
        """The stream after the layer.

        Args:
            stream: the stream before the layer, [batch, pos, d].
            last_only: whether to compute the last position only.
            watched: whether any hook is attached to the model.

        Returns:
            The stream [batch, query, d_out], with one query if `last_only`.
        """
        width = self.cfg.d_model
        stream = tap(self.hook_resid_pre, stream, self.reads, width)
        written = self.attn(stream, last_only, watched)
        written = tap(self.hook_attn_out, written, self.writes, width)
        stream = self.write(stream[:, -1:] if last_only else stream, written)
        place = slice(0, stream.shape[-1])
        if listening(self.hook_mlp_in) or listening(self.hook_mlp_out):
            # Attribution tools expect an MLP in every block. This one writes zeros.
            nothing = 0 * tap(self.hook_mlp_in, stream, place, width)
            stream = stream + tap(self.hook_mlp_out, nothing, place, width)
        return tap(self.hook_resid_post, stream, place, width)

    def write(self, stream: Tensor, written: Tensor) -> Tensor:
        """The stream with the layer's output in it."""
        raise NotImplementedError


class Unembed(nn.Module):
    """The linear read-out W_U [d_model, vocab] (the paper's W_O, transposed); no bias, no softmax.

    With `d_mlp` a hidden layer of that width is added to it: output = h·W_U + gelu(h·W_in +
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
        """Small output weights; hidden weights at the scale that keeps activations."""
        nn.init.normal_(self.W_U, std=scale)
        if self.d_mlp:
            nn.init.normal_(self.W_in, std=self.W_in.shape[0] ** -0.5)
            nn.init.zeros_(self.b_in)
            nn.init.normal_(self.W_out, std=scale)

    def forward(self, stream: Float[Tensor, "batch pos d"]) -> Float[Tensor, "batch pos vocab"]:
        linear = stream @ self.W_U
        if not self.d_mlp:
            return linear
        hidden = F.gelu(stream @ self.W_in + self.b_in)
        return linear + hidden @ self.W_out
