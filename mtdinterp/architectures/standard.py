"""The standard attention-only transformer with relative positions (Shaw et al. 2018).

Learned embedding, Q/K/V/O projections, score[i, j] = q_i·(k_j + R_K[i-j])/√d_head, head output
Σ_j A[i, j]·(v_j + R_V[i-j]), additive residual stream, linear read-out, no MLP, no normalisation.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
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
from mtdinterp.checks import check_count
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
from mtdinterp.models.stream import Stream
from mtdinterp.native.step import FoldedLayer
from mtdinterp.plugins import register_architecture

LONGEST_READER = 50.0
"""The largest row that is added to a key table so that scores fall by 1; trained models need 20."""
CODE_WIDTH = 8
"""Dimensions of an offset's code in the tied start: 4 were too few for one of two tasks tried."""


@dataclass(frozen=True, kw_only=True)
class StandardConfig(ModelConfig):
    """Learned embedding, Q/K/V/O projections, tables on keys and values, additive stream."""

    n_heads: int = 1
    d_model: int = 32
    d_head: int | None = None
    """Width of a head; d_model / n_heads if None."""
    blocks: tuple[tuple[str, int], ...] = ()
    """Names and widths of the residual dimensions of a construction, which gives them a meaning."""

    architecture: ClassVar[str] = "standard"

    def __post_init__(self) -> None:
        self._count("n_heads")
        super().__post_init__()
        self._count("d_model")
        if self.d_head is not None:
            self._count("d_head")
        elif self.d_model % self.n_heads:
            raise ValueError(
                f"d_model: expected a multiple of n_heads = {self.n_heads}, got {self.d_model}; "
                "alternatively, set d_head"
            )
        widths = [check_count("blocks", width) for _, width in self.blocks]
        if widths and sum(widths) != self.d_model:
            raise ValueError(
                f"blocks: expected widths that add to d_model = {self.d_model}, got "
                f"{self.blocks!r:.60}"
            )
        per_head = self.head_width * (4 * self.d_model + 2 * self.length)
        in_and_out = self.d_model * (2 * self.vocab_size + self.d_mlp)
        self._check_size(self.n_layers * self.n_heads * per_head + in_and_out, self.d_model)

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.d_head if self.d_head is not None else self.d_model // self.n_heads


class StandardAttention(HookedAttention):
    """Parameters of one layer."""

    W_Q: nn.Parameter
    W_K: nn.Parameter
    W_V: nn.Parameter
    W_O: nn.Parameter

    def __init__(self, cfg: LensConfig, config: StandardConfig) -> None:
        super().__init__(cfg)
        self.n_heads = config.n_heads
        self.d_head = config.head_width
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
        """Projections at the scale that keeps activations, tables at `table_scale`."""
        for weight in (self.W_Q, self.W_K, self.W_V):
            nn.init.normal_(weight, std=self.cfg.d_model**-0.5)
        nn.init.normal_(self.W_O, std=(self.n_heads * self.d_head) ** -0.5)
        nn.init.normal_(self.R_K, std=table_scale)
        nn.init.normal_(self.R_V, std=table_scale)

    def forward(
        self, stream: Float[Tensor, "batch pos d_model"], last_only: bool, watched: bool
    ) -> Float[Tensor, "batch query d_model"]:
        """What the heads add to the stream.

        Args:
            stream: the stream before the layer, [batch, pos, d_model].
            last_only: whether to compute the last position only.
            watched: whether any hook is attached to the model.

        Returns:
            The sum of the heads' outputs, [batch, query, d_model].
        """
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
    """A layer that adds what its heads write."""

    attn: StandardAttention

    def write(self, stream: Tensor, written: Tensor) -> Tensor:
        return stream + written


class Embed(nn.Module):
    """The learned token embedding W_E [vocab, d_model]."""

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.W_E = nn.Parameter(torch.empty(vocab_size, d_model))

    def reset_parameters(self) -> None:
        """Unit scale."""
        nn.init.normal_(self.W_E)

    def forward(self, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_model"]:
        # Not W_E[tokens]: the gradient of an index is summed in the order in which threads arrive,
        # so its last bits would differ from run to run.
        return F.embedding(tokens, self.W_E)


class StandardTransformer(LensTransformer):
    """See the module's docstring; `stream` is one block unless a construction names its parts."""

    fastest = "whole model"

    config: StandardConfig
    embed: Embed

    def __init__(self, config: StandardConfig) -> None:
        super().__init__()
        self.config = config
        self.stream = Stream(config.blocks or (("residual", config.d_model),))
        self.cfg = lens_config(
            config,
            config.d_model,
            config.head_width,
            config.n_heads,
            attn_scale=config.head_width**0.5,
        )
        self.embed = Embed(config.vocab_size, config.d_model)
        self.hook_embed = HookPoint()  # [batch, pos, d_model]
        everything = slice(0, config.d_model)
        blocks = []
        for _ in range(config.n_layers):
            attn = StandardAttention(self.cfg, config)
            blocks.append(StandardBlock(self.cfg, attn, everything, everything))
        self.blocks = nn.ModuleList(blocks)
        self.unembed = Unembed(config.d_model, config.vocab_size, config.d_mlp)
        self.reset_parameters()
        self.setup()

    def reset_parameters(self) -> None:
        """Embedding and projections at the scale that keeps activations, outputs small."""
        self.embed.reset_parameters()
        for attn in self.attention:
            attn.reset_parameters()
        self.unembed.reset_parameters()

    @property
    def attention(self) -> list[StandardAttention]:
        """The attention of every layer: layer l of the paper is attention[l-1]."""
        return [cast(StandardAttention, block.attn) for block in self.blocks]

    def folded_layers(self) -> list[FoldedLayer]:
        """Queries folded with keys, values with outputs, and the embedding into the first layer.

        With x the stream before a layer,

            q_i·k_j    = x_i·(W_Q·W_Kᵀ)·x_j
            q_i·R_K[o] = x_i·(W_Q·R_K[o])
            output_i   = Σ_j A[i, j]·x_j·(W_V·W_O) + Σ_j A[i, j]·R_V[i-j]·W_O,

        so the products in parentheses replace all projections. Layer 1 reads x = one-hot·W_E, so
        with W_E multiplied into its matrices it reads one-hot tokens.
        """
        layers: list[FoldedLayer] = []
        for index, attn in enumerate(self.attention):
            queries = attn.W_Q * attn.score_scale
            scores = queries @ attn.W_K.mT
            keys = attn.R_K @ queries.mT
            values = attn.R_V @ attn.W_O
            mix = attn.W_V @ attn.W_O
            skip = None
            if index == 0:
                scores = self.W_E @ scores @ self.W_E.T
                keys = keys @ self.W_E.T
                mix = self.W_E @ mix
                skip = self.W_E
            layers.append(FoldedLayer(scores, keys, values, mix, skip))
        return layers

    @property
    def W_E(self) -> Float[Tensor, "vocab d_model"]:
        """The learned embedding."""
        return self.embed.W_E


def tied(model: StandardTransformer) -> None:
    """The last layer reads averaged lags in the code in which layer 1 writes them."""
    _tie(model, sign=1)


def mirrored(model: StandardTransformer) -> None:
    """`tied` with the opposite sign, which leads to the mirrored solution on purpose."""
    _tie(model, sign=-1)


def _tie(model: StandardTransformer, sign: int) -> None:
    """Tie reads to writes in orthogonal directions of the stream, with small noise elsewhere.

    Tokens are embedded in directions of their own. Layer 1 writes an offset's code into `written`,
    layer 2 moves what it averages of that to `averaged`, and the queries of the last layer read
    `averaged` and compare it with the code in its key table.
    """
    check_can_tie(model)
    config = model.config
    width = min(CODE_WIDTH, config.head_width, (config.d_model - config.vocab_size) // 3)
    if width < 1:
        raise ValueError(
            "initialisation: the tied initialisation needs d_model ≥ vocab_size + 3, got "
            f"{config.d_model}"
        )
    model.reset_parameters()  # draws random numbers that the seeds of stored models count on
    small(model)
    first, second, *_, last = model.attention
    frame, _ = torch.linalg.qr(torch.randn(config.d_model, config.d_model))
    sizes = [config.vocab_size, width, width]
    token, written, averaged = frame[: sum(sizes)].split(sizes)
    code = spread_code(config.length, width)
    model.embed.W_E.copy_(token)
    first.R_V[0, :, :width] = code
    first.W_O[0, :width] = written
    second.W_V[0, :, :width] = written.T
    second.W_O[0, :width] = averaged
    last.W_Q[0, :, :width] = averaged.T
    strength = sign * TIE * last.d_head**0.5
    last.R_K[0, :-1, :width] = strength * code_at_query(code)
    # Not small, because the attention of the last layer has no gradient unless its values matter.
    nn.init.normal_(last.W_V, std=config.d_model**-0.5)
    nn.init.normal_(last.W_O, std=config.d_model**-0.5)


@register_architecture
class Standard(Architecture):
    """The usual transformer, for comparison with the disentangled one."""

    name = "standard"
    label = "standard transformer"
    config = StandardConfig
    model = StandardTransformer
    starts: ClassVar = {
        "tied": tied,
        "default": default,
        "small": small,
        "torch": torch_default,
        "mirrored": mirrored,
    }
    tables = ("R_K", "R_V")

    def fast_recipe(self, n_layers: int, n_heads: int) -> dict[str, Any]:
        """Half the usual learning rate, and a tied start if it applies."""
        fields: dict[str, Any] = {"learning_rate": 5e-3}
        if can_tie(n_layers, n_heads):
            fields["initialisation"] = "tied"
        return fields

    def keep_far_attention(
        self, model: StandardTransformer, shorter: int, n_components: int | None = None
    ) -> None:
        """Subtract the log of the ratio of lengths beyond the lags, in the first and last layer.

        There is no constant in the stream to hang a score on, but the tables are read by queries,
        and the query of every token in layer 1 is known: a vector u with u·q = 1 for all of them
        takes the place of a constant. In the last layer, queries also hold what earlier layers have
        written, so the change of the scores is only about right there; training does the rest. Tiny
        queries would need huge rows, which training could hardly move; then nothing is changed.

        Args:
            model: the grown model.
            shorter: the length before.
            n_components: the number of lags; without it, nothing is changed.
        """
        if n_components is None:
            return
        lower = math.log(model.config.length / shorter)
        layers = model.attention
        first = -lower * _constant_reader(model, layers[0])
        layers[0].R_K[:, 0] += first
        layers[0].R_K[:, n_components + 1 :] += first[:, None]
        if len(layers) > 1:
            last = -lower * _constant_reader(model, layers[-1])
            layers[-1].R_K[:, n_components:] += last[:, None]


def _constant_reader(
    model: StandardTransformer, attn: StandardAttention
) -> Float[Tensor, "head d_head"]:
    """A row of the key table that adds 1 to the score of the query of every token.

    The least-squares solution, if a head is narrower than the vocabulary; zero where it would be
    longer than `LONGEST_READER`.
    """
    queries = torch.einsum("vd,hde->hve", model.embed.W_E, attn.W_Q) * attn.score_scale
    ones = torch.ones(model.config.vocab_size, 1, dtype=queries.dtype)
    reader = (torch.linalg.pinv(queries) @ ones)[..., 0]
    short = reader.norm(dim=-1, keepdim=True) <= LONGEST_READER
    return torch.where(short, reader, torch.zeros_like(reader))
