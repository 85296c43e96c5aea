"""A third architecture, for tests: attention by relative position alone, in plain PyTorch.

score[i, j] = R[i-j], without a content score; h ← h + Σ_heads Σ_j A[i, j]·h_j·W_V·W_O. There are no
compiled kernels for it and no tied start, and it is not registered when it is imported.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn
from transformer_lens.hook_points import HookPoint

from mtdinterp.architectures import Architecture
from mtdinterp.architectures.standard import Embed
from mtdinterp.architectures.starts import default, small
from mtdinterp.models import LensTransformer, ModelConfig, Stream
from mtdinterp.models.attention import causal_softmax, gather_values, position_scores
from mtdinterp.models.hooked import HookedAttention, HookedBlock, Unembed, lens_config, tap


@dataclass(frozen=True, kw_only=True)
class PositionalConfig(ModelConfig):
    n_heads: int = 1
    d_model: int = 8

    architecture: ClassVar[str] = "positional"


class PositionalAttention(HookedAttention):
    def __init__(self, cfg, config):
        super().__init__(cfg)
        self.n_heads = config.n_heads
        square = (config.n_heads, config.d_model, config.d_model)
        self.R = nn.Parameter(torch.empty(config.n_heads, config.length, 1))  # row i-j
        self.W_V = nn.Parameter(torch.empty(square))
        self.W_O = nn.Parameter(torch.empty(square))

    @property
    def W_Q(self):
        """Zeros, because there is no content score."""
        return self.W_V.new_zeros(self.n_heads, self.cfg.d_model, 1)

    @property
    def W_K(self):
        return self.W_Q

    def forward(self, stream, last_only, watched):
        _, _, value_in = self.inputs(stream)
        v = tap(self.hook_v, torch.einsum("bphd,hde->bphe", value_in, self.W_V))
        batch, n_keys, n_heads, _ = v.shape
        ones = v.new_ones(batch, 1 if last_only else n_keys, n_heads, 1)
        scores = tap(self.hook_rel_scores, position_scores(ones, self.R, n_keys))
        scores = tap(self.hook_attn_scores, scores)
        pattern = tap(self.hook_pattern, causal_softmax(scores))
        z = tap(self.hook_z, gather_values(pattern, v))
        return self.head_results(z)


class PositionalBlock(HookedBlock):
    def write(self, stream, written):
        return stream + written


class PositionalTransformer(LensTransformer):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.stream = Stream([("residual", config.d_model)])
        self.cfg = lens_config(config, config.d_model, config.d_model, config.n_heads)
        self.embed = Embed(config.vocab_size, config.d_model)
        self.hook_embed = HookPoint()
        everything = slice(0, config.d_model)
        blocks = []
        for _ in range(config.n_layers):
            attn = PositionalAttention(self.cfg, config)
            blocks.append(PositionalBlock(self.cfg, attn, everything, everything))
        self.blocks = nn.ModuleList(blocks)
        self.unembed = Unembed(config.d_model, config.vocab_size, config.d_mlp)
        self.reset_parameters()
        self.setup()

    def reset_parameters(self):
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.3)

    @property
    def W_E(self):
        return self.embed.W_E


class Positional(Architecture):
    name = "positional"
    label = "position-only transformer"
    config = PositionalConfig
    model = PositionalTransformer
    starts: ClassVar = {"default": default, "small": small}

    def fast_recipe(self, n_layers, n_heads):
        return {"learning_rate": 2e-2}
