"""The standard attention-only transformer with relative positions (Shaw et al. 2018).

Learned embedding, Q/K/V/O projections, score[i, j] = q_i·(k_j + R_K[i-j])/√d_head, head output
Σ_j A[i, j]·(v_j + R_V[i-j]), additive residual stream, linear read-out, no MLP, no normalisation.
"""

from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from mtdinterp.models.config import StandardConfig
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
from mtdinterp.models.stream import Stream
from mtdinterp.native.step import FoldedLayer


class StandardAttention(HookedAttention):
    """Parameters of one layer."""

    def __init__(self, cfg: LensConfig, config: StandardConfig) -> None:
        super().__init__(cfg)
        self.n_heads, self.d_head = config.n_heads, config.head_width
        self.score_scale = self.d_head**-0.5
        projection = (config.n_heads, config.d_model, self.d_head)
        table = (config.n_heads, config.length, self.d_head)
        self.W_Q = nn.Parameter(torch.empty(projection))
        self.W_K = nn.Parameter(torch.empty(projection))
        self.W_V = nn.Parameter(torch.empty(projection))
        self.W_O = nn.Parameter(torch.empty(config.n_heads, self.d_head, config.d_model))
        self.R_K = nn.Parameter(torch.empty(table))  # row i-j
        self.R_V = nn.Parameter(torch.empty(table))  # row i-j

    def reset_parameters(self, table_scale: float = 0.7) -> None:
        """Projections at the scale that keeps activations, tables at theirs."""
        for weight in (self.W_Q, self.W_K, self.W_V):
            nn.init.normal_(weight, std=self.cfg.d_model**-0.5)
        nn.init.normal_(self.W_O, std=(self.n_heads * self.d_head) ** -0.5)
        nn.init.normal_(self.R_K, std=table_scale)
        nn.init.normal_(self.R_V, std=table_scale)

    def forward(
        self, stream: Float[Tensor, "batch pos d_model"], last_only: bool, watched: bool
    ) -> Float[Tensor, "batch query d_model"]:
        query_in, key_in, value_in = self.inputs(stream)
        query_in = query_in[:, -1:] if last_only else query_in
        q = tap(self.hook_q, torch.einsum("bphd,hde->bphe", query_in, self.W_Q))
        k = tap(self.hook_k, torch.einsum("bphd,hde->bphe", key_in, self.W_K))
        v = tap(self.hook_v, torch.einsum("bphd,hde->bphe", value_in, self.W_V))
        scaled = q * self.score_scale
        content, position = self.attend(scaled, scaled, k, v, self.R_K, self.R_V, watched)
        z = tap(self.hook_z, content + position)
        if self.cfg.use_attn_result and listening(self.hook_result):
            return self.head_results(z)
        return torch.einsum("bphd,hdm->bpm", z, self.W_O)


class StandardBlock(HookedBlock):
    """Adds what its heads wrote."""

    def write(self, stream: Tensor, written: Tensor) -> Tensor:
        return stream + written


class Embed(nn.Module):
    """The learned token embedding W_E [vocab, d_model]."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(vocab_size, d_model))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.W_E)

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        # Not W_E[tokens]: the gradient of an index adds up in whatever order threads come, in other
        # bits every time.
        return F.embedding(tokens, self.W_E)


class StandardTransformer(LensTransformer):
    """See the module's docstring; `stream` is one block unless a construction named its
    dimensions."""

    config: StandardConfig
    embed: Embed

    def __init__(self, config: StandardConfig) -> None:
        super().__init__()
        self.config = config
        self.stream = Stream(config.blocks or (("residual", config.d_model),))
        self.cfg = lens_config(config, config.d_model, config.head_width, config.n_heads)
        self.embed = Embed(config.vocab_size, config.d_model)
        self.hook_embed = HookPoint()  # [batch, pos, d_model]
        everything = slice(0, config.d_model)
        self.blocks = nn.ModuleList(
            StandardBlock(self.cfg, StandardAttention(self.cfg, config), everything, everything)
            for _ in range(config.n_layers)
        )
        self.unembed = Unembed(config.d_model, config.vocab_size, config.d_mlp)
        self.reset_parameters()
        self.setup()

    def reset_parameters(self) -> None:
        self.embed.reset_parameters()
        for attn in self.attention:
            attn.reset_parameters()
        self.unembed.reset_parameters()

    @property
    def attention(self) -> list[StandardAttention]:
        """The attention of every layer: layer l of the paper is attention[l-1]."""
        return [cast(StandardAttention, block.attn) for block in self.blocks]

    def folded_layers(self) -> list[FoldedLayer]:
        """Queries with keys, values with outputs, and the embedding into the first layer: the same
        function.

        q_i·k_j = x_i·(W_Q·W_Kᵀ)·x_j and q_i·R_K[o] = x_i·(W_Q·R_K[o]), so positions need no
        projection but one, and the first layer, which sees only the embedding of a token, works on
        one-hot tokens.
        """
        layers: list[FoldedLayer] = []
        for attn in self.attention:
            queries = attn.W_Q * attn.score_scale
            M, keys, mix = queries @ attn.W_K.mT, attn.R_K @ queries.mT, attn.W_V @ attn.W_O
            skip = None
            if not layers:
                M, keys, mix, skip = (
                    self.W_E @ M @ self.W_E.T,
                    keys @ self.W_E.T,
                    self.W_E @ mix,
                    self.W_E,
                )
            layers.append(FoldedLayer(M, keys, attn.R_V @ attn.W_O, mix, skip))
        return layers

    @property
    def W_E(self) -> Float[Tensor, "vocab d_model"]:
        return self.embed.W_E
