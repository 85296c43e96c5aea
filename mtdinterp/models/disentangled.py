"""The disentangled transformer: one-hot tokens, concatenated stream, no projections (paper, section
2).

score[i, j] = h_i·W_A·h_j + h_i·R_A[i-j],  out_i = Σ_j A[i, j]·concat(h_j, R_V[i-j]),
h ← concat(h, out of head 1, …, out of head H), output = h·W_U without a softmax.
"""

from typing import cast

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mtdinterp.models.config import DisentangledConfig
from mtdinterp.models.hooked import (
    HookedAttention,
    HookedBlock,
    LensConfig,
    Unembed,
    lens_config,
    listening,
    tap,
)
from mtdinterp.models.lens import LensTransformer
from mtdinterp.models.stream import concatenated_streams
from mtdinterp.native import use_kernels
from mtdinterp.native.attention import can_fuse
from mtdinterp.native.layer import fused_disentangled_layer
from mtdinterp.native.step import FoldedLayer


class DisentangledAttention(HookedAttention):
    """Parameters of one layer; axis `d_in` is the width of the stream the layer reads."""

    def __init__(
        self, cfg: LensConfig, config: DisentangledConfig, n_heads: int, d_in: int
    ) -> None:
        super().__init__(cfg)
        self.n_heads, self.d_in, self.d_rel = n_heads, d_in, config.d_rel
        self.W_A = nn.Parameter(torch.empty(n_heads, d_in, d_in))  # query side, key side
        self.R_A = nn.Parameter(torch.empty(n_heads, config.length, d_in))  # row i-j
        self.R_V = nn.Parameter(torch.empty(n_heads, config.length, config.d_rel))  # row i-j
        self.hook_p = (
            HookPoint()
        )  # [batch, pos, head, d_in]: what the position table is multiplied with

    def reset_parameters(self, scale: float = 0.02) -> None:
        """Small scores, so that attention starts uniform; value tables at unit scale."""
        nn.init.normal_(self.W_A, std=scale)
        nn.init.normal_(self.R_A, std=scale)
        nn.init.normal_(self.R_V)

    def forward(
        self, stream: Float[Tensor, "batch pos d_in"], last_only: bool, watched: bool
    ) -> Float[Tensor, "batch query written"]:
        query_in, key_in, value_in = self.inputs(stream)
        query_in = query_in[:, -1:] if last_only else query_in
        q = tap(self.hook_q, torch.einsum("bphd,hde->bphe", query_in, self.W_A))
        p = tap(self.hook_p, query_in)
        k = tap(self.hook_k, key_in)
        v = tap(self.hook_v, value_in, slice(0, self.d_in), self.d_in + self.d_rel)
        z = tap(
            self.hook_z, torch.cat(self.attend(q, p, k, v, self.R_A, self.R_V, watched), dim=-1)
        )
        if self.cfg.use_attn_result and listening(self.hook_result):
            return self.head_results(z)[..., self.writes]
        return rearrange(z, "batch pos head d -> batch pos (head d)")

    @property
    def writes(self) -> slice:
        """Columns of the final stream that this layer fills."""
        return slice(self.d_in, self.d_in + self.n_heads * (self.d_in + self.d_rel))

    # The fixed matrices that make this layer an ordinary one to TransformerLens. They are made when
    # asked for: stored, they would outweigh the parameters.

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_in"]:
        """W_A, reading the columns that exist."""
        return F.pad(self.W_A, (0, 0, 0, self.cfg.d_model - self.d_in))

    @property
    def W_K(self) -> Float[Tensor, "head d_model d_in"]:
        """The identity on the columns that exist."""
        identity = torch.eye(
            self.cfg.d_model, self.d_in, dtype=self.W_A.dtype, device=self.W_A.device
        )
        return identity.expand(self.n_heads, -1, -1)

    @property
    def W_V(self) -> Float[Tensor, "head d_model d_z"]:
        """The identity into the first d_in columns of z; its lag columns come from the value table
        alone."""
        return F.pad(self.W_K, (0, self.d_rel))

    @property
    def W_O(self) -> Float[Tensor, "head d_z d_model"]:
        """Placement: head h writes its z into its own columns of the final stream."""
        width = self.d_in + self.d_rel
        place = torch.eye(self.n_heads * width, dtype=self.W_A.dtype, device=self.W_A.device)
        place = F.pad(place, (self.d_in, self.cfg.d_model - self.writes.stop))
        return rearrange(place, "(head d) d_model -> head d d_model", head=self.n_heads)


class DisentangledBlock(HookedBlock):
    """Concatenates what its heads wrote."""

    attn: DisentangledAttention

    def unwatched(self, stream: Tensor, last_only: bool) -> Tensor:
        """In one operator where there is one for this: a third of the time goes into moving tensors
        otherwise."""
        tables = (self.attn.W_A, self.attn.R_A, self.attn.R_V)
        if can_fuse(stream, *tables) and use_kernels():
            return fused_disentangled_layer(stream, *tables, last_only)
        return super().unwatched(stream, last_only)

    def write(self, stream: Tensor, written: Tensor) -> Tensor:
        return torch.cat([stream, written], dim=-1)


class OneHot(nn.Module):
    """Tokens as one-hot vectors; nothing to learn, but a dtype and a device to follow."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("identity", torch.eye(vocab_size), persistent=False)
        self.identity: Tensor

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        return self.identity[tokens]


class DisentangledTransformer(LensTransformer):
    """See the module's docstring; `stream` names every column of the final stream."""

    config: DisentangledConfig
    embed: OneHot

    def __init__(self, config: DisentangledConfig) -> None:
        super().__init__()
        self.config = config
        streams = concatenated_streams(config.vocab_size, config.d_rel, config.heads_per_layer)
        self.streams = streams  # before layer 1, after layer 1, …: layer l reads streams[l-1]
        self.stream = streams[-1]
        self.cfg = lens_config(
            config,
            self.stream.width,
            d_head=streams[-2].width + config.d_rel,
            n_heads=max(config.heads_per_layer),
        )
        self.embed = OneHot(config.vocab_size)
        self.hook_embed = HookPoint()  # [batch, pos, d_model]
        blocks = []
        for before, n_heads in zip(streams[:-1], config.heads_per_layer, strict=True):
            attn = DisentangledAttention(self.cfg, config, n_heads, before.width)
            blocks.append(DisentangledBlock(self.cfg, attn, slice(0, before.width), attn.writes))
        self.blocks = nn.ModuleList(blocks)
        self.unembed = Unembed(self.stream.width, config.vocab_size, config.d_mlp)
        self.reset_parameters()
        self.setup()

    def reset_parameters(self, scale: float = 0.02) -> None:
        for attn in self.attention:
            attn.reset_parameters(scale)
        self.unembed.reset_parameters(scale)

    @property
    def attention(self) -> list[DisentangledAttention]:
        """The attention of every layer: layer l of the paper is attention[l-1]."""
        return [cast(DisentangledAttention, block.attn) for block in self.blocks]

    def folded_layers(self) -> list[FoldedLayer]:
        """Nothing to fold: these are the parameters."""
        return [FoldedLayer(attn.W_A, attn.R_A, attn.R_V) for attn in self.attention]

    @property
    def W_E(self) -> Float[Tensor, "vocab d_model"]:
        """The identity into the token block."""
        return F.pad(self.embed.identity, (0, self.cfg.d_model - self.cfg.d_vocab))
