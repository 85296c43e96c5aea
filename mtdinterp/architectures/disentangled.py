"""The disentangled transformer: one-hot tokens, concatenated stream, no projections.

Section 2 of the paper defines it:

score[i, j] = h_i·W_A·h_j + h_i·R_A[i-j],  out_i = Σ_j A[i, j]·concat(h_j, R_V[i-j]),
h ← concat(h, out of head 1, …, out of head H), output = h·W_U without a softmax.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mtdinterp.architectures.base import Architecture
from mtdinterp.architectures.starts import (
    TIE,
    can_tie,
    check_can_tie,
    code_at_query,
    default,
    small,
    spread_code,
    torch_default,
)
from mtdinterp.models.config import ModelConfig
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
from mtdinterp.native.step import FoldedLayer
from mtdinterp.plugins import register_architecture

SECOND_STEP_LAYERS = 5
"""Layers from which the model can take a second step of mirror descent."""
SECOND_STEP = 0.5
"""How strongly layer 4 of a tied start turns away from positions that the first weights explain."""


@dataclass(frozen=True, kw_only=True)
class DisentangledConfig(ModelConfig):
    """One-hot tokens, concatenated stream, one score matrix per head, learned relative tables."""

    d_rel: int = 4
    """Width of the value table, d_R in the paper; at least the order for the constructions."""

    architecture: ClassVar[str] = "disentangled"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._count("d_rel")
        width = self.vocab_size
        n_parameters = 0
        for n_heads in self.heads_per_layer:
            n_parameters += n_heads * (width**2 + self.length * (width + self.d_rel))
            width += n_heads * (width + self.d_rel)
        self._check_size(n_parameters + width * (self.vocab_size + self.d_mlp), width)


class DisentangledAttention(HookedAttention):
    """Parameters of one layer; axis `d_in` is the width of the stream that the layer reads."""

    def __init__(
        self, cfg: LensConfig, config: DisentangledConfig, n_heads: int, d_in: int
    ) -> None:
        super().__init__(cfg)
        self.n_heads = n_heads
        self.d_in = d_in
        self.d_rel = config.d_rel
        self.W_A = nn.Parameter(torch.empty(n_heads, d_in, d_in))  # query side, key side
        self.R_A = nn.Parameter(torch.empty(n_heads, config.length, d_in))  # row i-j
        self.R_V = nn.Parameter(torch.empty(n_heads, config.length, config.d_rel))  # row i-j
        # [batch, pos, head, d_in]: what the position table R_A is multiplied with.
        self.hook_p = HookPoint()

    def reset_parameters(self, scale: float = 0.02) -> None:
        """Small scores, so that attention starts uniform; value tables at unit scale."""
        nn.init.normal_(self.W_A, std=scale)
        nn.init.normal_(self.R_A, std=scale)
        nn.init.normal_(self.R_V)

    def forward(
        self, stream: Float[Tensor, "batch pos d_in"], last_only: bool, watched: bool
    ) -> Float[Tensor, "batch query written"]:
        """What the heads append to the stream.

        Args:
            stream: the stream before the layer, [batch, pos, d_in].
            last_only: whether to compute the last position only.
            watched: whether any hook is attached to the model.

        Returns:
            The outputs of all heads side by side, [batch, query, head·(d_in + d_rel)].
        """
        query_in, key_in, value_in = self.inputs(stream)
        query_in = query_in[:, -1:] if last_only else query_in
        q = tap(self.hook_q, torch.einsum("bphd,hde->bphe", query_in, self.W_A))
        p = tap(self.hook_p, query_in)
        k = tap(self.hook_k, key_in)
        v = tap(self.hook_v, value_in, slice(0, self.d_in), self.d_in + self.d_rel)
        content, position = self.attend(q, p, k, v, self.R_A, self.R_V, watched)
        z = tap(self.hook_z, torch.cat([content, position], dim=-1))
        if self.cfg.use_attn_result and listening(self.hook_result):
            return self.head_results(z)[..., self.writes]
        return rearrange(z, "batch pos head d -> batch pos (head d)")

    @property
    def writes(self) -> slice:
        """Columns of the final stream that this layer fills."""
        return slice(self.d_in, self.d_in + self.n_heads * (self.d_in + self.d_rel))

    # The fixed matrices that make this an ordinary layer for TransformerLens. They are built on
    # request: stored, they would be larger than the parameters.

    @property
    def W_Q(self) -> Float[Tensor, "head d_model d_in"]:
        """W_A on the columns that this layer reads."""
        return F.pad(self.W_A, (0, 0, 0, self.cfg.d_model - self.d_in))

    @property
    def W_K(self) -> Float[Tensor, "head d_model d_in"]:
        """The identity on the columns that this layer reads."""
        dtype = self.W_A.dtype
        device = self.W_A.device
        identity = torch.eye(self.cfg.d_model, self.d_in, dtype=dtype, device=device)
        return identity.expand(self.n_heads, -1, -1)

    @property
    def W_V(self) -> Float[Tensor, "head d_model d_z"]:
        """The identity into the first d_in columns of z; the others come from the value table."""
        return F.pad(self.W_K, (0, self.d_rel))

    @property
    def W_O(self) -> Float[Tensor, "head d_z d_model"]:
        """Placement: head h writes its z into its own columns of the final stream."""
        width = self.n_heads * (self.d_in + self.d_rel)
        place = torch.eye(width, dtype=self.W_A.dtype, device=self.W_A.device)
        place = F.pad(place, (self.d_in, self.cfg.d_model - self.writes.stop))
        return rearrange(place, "(head d) d_model -> head d d_model", head=self.n_heads)


class DisentangledBlock(HookedBlock):
    """A layer that appends what its heads write."""

    attn: DisentangledAttention

    def write(self, stream: Tensor, written: Tensor) -> Tensor:
        return torch.cat([stream, written], dim=-1)


class OneHot(nn.Module):
    """Tokens as one-hot vectors, in the dtype and on the device of the model."""

    identity: Tensor

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("identity", torch.eye(vocab_size), persistent=False)

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos vocab"]:
        return self.identity[tokens]


class DisentangledTransformer(LensTransformer):
    """See the module's docstring; `stream` names every column of the final stream."""

    fastest = "whole model"

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
        """Small scores and outputs, value tables at unit scale."""
        for attn in self.attention:
            attn.reset_parameters(scale)
        self.unembed.reset_parameters(scale)

    @property
    def attention(self) -> list[DisentangledAttention]:
        """The attention of every layer: layer l of the paper is attention[l-1]."""
        return [cast(DisentangledAttention, block.attn) for block in self.blocks]

    def folded_layers(self) -> list[FoldedLayer]:
        """The parameters themselves: there is nothing to fold."""
        return [FoldedLayer(attn.W_A, attn.R_A, attn.R_V) for attn in self.attention]

    @property
    def W_E(self) -> Float[Tensor, "vocab d_model"]:
        """The identity into the token block."""
        return F.pad(self.embed.identity, (0, self.cfg.d_model - self.cfg.d_vocab))


def tied(model: DisentangledTransformer) -> None:
    """`default`, with later layers reading lag blocks in the code that earlier ones write."""
    _tie(model, sign=1)


def mirrored(model: DisentangledTransformer) -> None:
    """`tied` with the opposite sign, which leads to the mirrored solution on purpose."""
    _tie(model, sign=-1)


def _tie(model: DisentangledTransformer, sign: int) -> None:
    check_can_tie(model)
    model.reset_parameters()
    layers = model.attention
    code = spread_code(model.config.length, model.config.d_rel)
    layers[0].R_V[0] = code
    here = code_at_query(code)
    layers[-1].R_A[0, :-1, model.stream["L2.L1.lag"]] = sign * TIE * here
    if len(layers) >= SECOND_STEP_LAYERS:
        _tie_second_step(model, here, sign)


def _tie_second_step(
    model: DisentangledTransformer, here: Float[Tensor, "length_minus_1 d_rel"], sign: int
) -> None:
    """Layer 3 reads and writes weights in layer 1's code; layer 4 turns away from positions that
    those weights explain; layer 5 reads layer 4's average as well.
    """
    third, fourth, fifth = model.attention[2:SECOND_STEP_LAYERS]
    third.R_A[0, :-1, model.stream["L2.L1.lag"]] = sign * TIE * here
    third.R_V[0, :-1] = here
    turn_away = -sign * SECOND_STEP * torch.eye(model.config.d_rel)
    fourth.W_A[0, model.stream["L3.lag"], model.stream["L1.lag"]] = turn_away
    fifth.R_A[0, :-1, model.stream["L4.L1.lag"]] = sign * TIE * here


@register_architecture
class Disentangled(Architecture):
    """The architecture of the paper's analysis."""

    name = "disentangled"
    label = "disentangled transformer"
    config = DisentangledConfig
    model = DisentangledTransformer
    starts: ClassVar = {
        "tied": tied,
        "default": default,
        "small": small,
        "torch": torch_default,
        "mirrored": mirrored,
    }
    tables = ("R_A", "R_V")

    def default_settings(self, n_components: int) -> dict[str, Any]:
        """A value table with one dimension per component."""
        return {"d_rel": n_components}

    def fast_recipe(self, n_layers: int, n_heads: int) -> dict[str, Any]:
        """A tied start if it applies, and a longer schedule for models with a second step."""
        fields: dict[str, Any] = {}
        if can_tie(n_layers, n_heads):
            fields["initialisation"] = "tied"
        if n_layers >= SECOND_STEP_LAYERS:
            fields |= {"steps": 20_000, "later_rate": 0.3, "warmup": 500, "evaluate_every": 1000}
        return fields

    def keep_far_attention(
        self, model: DisentangledTransformer, shorter: int, n_components: int | None = None
    ) -> None:
        """Subtract the log of the ratio of lengths beyond the lags, in the first and last layer.

        The token block of every query is one-hot, so a value on all its columns is added to the
        score of every query. The first layer reads lag g at offset g, the last one at offset g-1.
        The layers between average over positions, and may spread over the new ones.

        Args:
            model: the grown model.
            shorter: the length before.
            n_components: the number of lags; if None, the width of the lag blocks.
        """
        n_lags = n_components or model.config.d_rel
        lower = math.log(model.config.length / shorter)
        token = model.stream["token"]
        layers = model.attention
        layers[0].R_A[:, 0, token] -= lower
        layers[0].R_A[:, n_lags + 1 :, token] -= lower
        if len(layers) > 1:
            layers[-1].R_A[:, n_lags:, token] -= lower
