"""The weights of all layers under TransformerLens' names, stacked as [layer, head, …].

TransformerLens stacks W_Q, W_K and W_V as [layer, head, d_model, d_head] and W_O as
[layer, head, d_head, d_model]. The layers of a disentangled model have different widths. They share
one space nonetheless: the concatenated stream is an additive stream of the final width d_model, in
which every component writes its own columns. Each layer's matrices live there:

    W_Q  W_A, with zero rows for the columns that the layer does not read,
    W_K  the identity on the columns that it reads,
    W_V  the identity on the columns that it reads,
    W_O  the placement of each head's output in the columns that it writes.

Their inner axis is filled up with zeros to d_head, the width of the last layer's heads. A zero
there adds nothing to a product, so QK and OV are exact in every layer.

What QK and OV leave out are the position tables, which belong to offsets and not to the stream.
With x the stream before a layer, c = `score_scale`, and o = i - j,

    score[i, j]  =  c·x_i·QK·x_jᵀ  +  what the key table adds (`hook_rel_scores`),
    output_i     =  Σ_j A[i, j]·(x_j·OV  +  R_V[o]·W_O).

R_V[o] is multiplied with those rows of W_O that belong to it: the last d_rel rows of the layer's
own W_O in the disentangled model, all rows in the standard one. Composition scores are made of QK
and OV, so they do not see what one head writes from its value table, nor what another one reads by
its key table.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens import FactoredMatrix
from transformer_lens.utilities import composition_scores

from mtdinterp.checks import check_option
from mtdinterp.errors import NotApplicable
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.hooked import HookedBlock, LensConfig

if TYPE_CHECKING:
    from transformer_lens.model_bridge.composition_scores import CompositionScores

NO_POSITIONS = "positions enter through the tables of each layer's attention, not the stream"
NO_MLP = "the layers have attention only; the hidden layer of d_mlp belongs to `unembed`"
NO_NORM = "there are no layer norms and no biases, so there is nothing to fold or to centre"
NO_TOKENIZER = "tokens are numbers; use to_tokens and to_string, which read and write digits"
ABSENT = {
    "W_pos": NO_POSITIONS,
    "W_E_pos": NO_POSITIONS,
    "pos_embed": NO_POSITIONS,
    "W_in": NO_MLP,
    "W_gate": NO_MLP,
    "W_out": NO_MLP,
    "b_in": NO_MLP,
    "b_out": NO_MLP,
    "ln_final": NO_NORM,
    "process_weights": NO_NORM,
    "fold_layer_norm": NO_NORM,
    "fold_value_biases": NO_NORM,
    "center_writing_weights": NO_NORM,
    "center_unembed": NO_NORM,
    "enable_compatibility_mode": NO_NORM,
    "tokenizer": NO_TOKENIZER,
    "set_tokenizer": NO_TOKENIZER,
}
"""Names of TransformerLens' models that these models cannot have, and why."""


class NoSuchAttribute(NotApplicable, AttributeError):
    """A name that makes no sense for these models; `hasattr` is False for it."""


class StackedWeights:
    """The weights and biases of a TransformerLens model, and what is computed from them alone."""

    cfg: LensConfig
    config: ModelConfig
    blocks: nn.ModuleList

    if TYPE_CHECKING:

        @property
        def layers(self) -> list[HookedBlock]:
            """The layers with their type."""

        @property
        def W_E(self) -> Float[Tensor, "vocab d_model"]:
            """The embedding."""

        @property
        def W_U(self) -> Float[Tensor, "d_model vocab"]:
            """The linear read-out."""

    else:

        def __getattr__(self, name: str) -> Any:
            """Say why a name of TransformerLens' models is missing here."""
            if name in ABSENT:
                raise NoSuchAttribute(f"{name} does not apply to this model: {ABSENT[name]}.")
            return super().__getattr__(name)

    def _stacked(self, name: str) -> Float[Tensor, "layer head rows columns"]:
        heads = self.config.heads_per_layer
        if len(set(heads)) > 1:
            raise NotApplicable(
                f"{name}: the layers of this model have {heads} heads, which cannot be stacked; "
                f"use blocks[layer].attn.{name} instead."
            )
        matrices = []
        for block in self.layers:
            matrix = getattr(block.attn, name)
            if name == "W_O":
                missing = self.cfg.d_head - matrix.shape[1]
                matrices.append(F.pad(matrix, (0, 0, 0, missing)))
            else:
                missing = self.cfg.d_head - matrix.shape[2]
                matrices.append(F.pad(matrix, (0, missing)))
        return torch.stack(matrices)

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Queries from the stream, of every head. See the module's docstring."""
        return self._stacked("W_Q")

    @property
    def W_K(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Keys from the stream, of every head. See the module's docstring."""
        return self._stacked("W_K")

    @property
    def W_V(self) -> Float[Tensor, "layer head d_model d_head"]:
        """Values from the stream, of every head. See the module's docstring."""
        return self._stacked("W_V")

    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]:
        """What every head writes to the stream. See the module's docstring."""
        return self._stacked("W_O")

    @property
    def QK(self) -> FactoredMatrix:
        """W_Q·W_Kᵀ [layer, head, d_model, d_model]: content scores, without `score_scale`.

        Contributions of the key table are not included.
        """
        return FactoredMatrix(self.W_Q, self.W_K.mT)

    @property
    def OV(self) -> FactoredMatrix:
        """W_V·W_O [layer, head, d_model, d_model]: what a head writes for the vector it attends to.

        Contributions of the value table are not included.
        """
        return FactoredMatrix(self.W_V, self.W_O)

    @property
    def b_Q(self) -> Float[Tensor, "layer head d_head"]:
        """Zeros: no component has a bias."""
        return self.W_Q.new_zeros(self.cfg.n_layers, self.cfg.n_heads, self.cfg.d_head)

    b_K = b_Q
    b_V = b_Q

    @property
    def b_O(self) -> Float[Tensor, "layer d_model"]:
        """Zeros: no component has a bias."""
        return self.W_U.new_zeros(self.cfg.n_layers, self.cfg.d_model)

    @property
    def b_U(self) -> Float[Tensor, " vocab"]:
        """Zeros: the read-out has no bias."""
        return self.W_U.new_zeros(self.cfg.d_vocab)

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

    def all_composition_scores(self, mode: str) -> "CompositionScores":
        """How strongly each head can read what each earlier head wrote, from QK and OV alone.

        The score of a pair is ‖L·R‖ / (‖L‖·‖R‖) in the Frobenius norm, with L the earlier head's
        OV, and R the later head's QK, QKᵀ or OV. It is NaN if one of the two is zero, as in layers
        of a construction that attend by position alone. Writing to a value table's columns and
        reading by a key table does not count; see the module's docstring.

        Args:
            mode: "Q", "K" or "V": which input of the later head.

        Returns:
            Scores [earlier layer, head, later layer, head], zero unless the first layer is the
            earlier one; they behave like a tensor and carry `head_labels`.
        """
        # TransformerLens' package of model bridges takes seconds to import.
        from transformer_lens.model_bridge.composition_scores import CompositionScores

        check_option("mode", mode, ("Q", "K", "V"))
        written = self.OV
        read = {"Q": self.QK, "K": self.QK.T, "V": written}[mode]
        scores = composition_scores(written, read, broadcast_dims=True)
        layer = torch.arange(self.cfg.n_layers, device=scores.device)
        is_earlier = layer[:, None, None, None] < layer[:, None]
        scores = scores.masked_fill(~is_earlier, 0)
        return CompositionScores(
            scores=scores,
            layer_indices=self.composition_layer_indices(),
            head_labels=self.all_head_labels,
        )

    def composition_layer_indices(self) -> list[int]:
        """The layers that composition scores cover: all of them."""
        return list(range(self.cfg.n_layers))

    @property
    def all_head_labels(self) -> list[str]:
        """ "L0H0", "L0H1", … for every head of every layer."""
        labels = []
        for layer, n_heads in enumerate(self.config.heads_per_layer):
            labels += [f"L{layer}H{head}" for head in range(n_heads)]
        return labels

    @property
    def attn_head_labels(self) -> list[str]:
        """`all_head_labels`: every layer has attention."""
        return self.all_head_labels

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
