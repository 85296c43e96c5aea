"""The model that all architectures extend: the forward pass and the TransformerLens 4 contract."""

from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.hook_points import HookPoint

from mtdinterp.checks import ArrayLike, as_tokens, check_option
from mtdinterp.formatting import counted
from mtdinterp.models.config import ModelConfig
from mtdinterp.models.hooked import HookedBlock, LensConfig, Unembed, attached
from mtdinterp.models.lens_cache import LensCache
from mtdinterp.models.lens_parts import PartialRuns
from mtdinterp.models.lens_switches import HookSwitches
from mtdinterp.models.lens_tokens import NamedTokens, check_no_bos, check_no_others, is_text
from mtdinterp.models.lens_weights import StackedWeights
from mtdinterp.models.output_loss import loss_by_row, loss_of_outputs
from mtdinterp.models.paths import AttentionPath, Implementation
from mtdinterp.models.stream import Stream
from mtdinterp.native import use_kernels
from mtdinterp.native.operands import can_fuse
from mtdinterp.native.step import FoldedLayer, fused_outputs


def _check_request(return_type: str | None, partial: bool, whole: bool) -> None:
    """Refuse an unknown return type, or one that needs the whole model if only a part is run."""
    if return_type is not None:
        check_option("return_type", return_type, ("logits", "loss", "both"))
    if partial and whole:
        raise ValueError(
            "start_at_layer and stop_at_layer run a part of the model at all positions: they "
            'need last_only=False and return_type "logits" or None'
        )


class LensTransformer(NamedTokens, StackedWeights, HookSwitches, PartialRuns, HookedRootModule):
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
        return_type: str | None = "logits",
        *,
        loss_per_token: bool = False,
        prepend_bos: bool | None = None,
        start_at_layer: int | None = None,
        stop_at_layer: int | None = None,
        **others: Any,
    ) -> Tensor | tuple[Tensor, Tensor] | None:
        """The model's outputs.

        Args:
            tokens: integer tokens [batch, pos], or digits separated by blanks; the stream
                [batch, pos, d_model] before a layer if `start_at_layer` is given.
            last_only: compute only what the last position needs. The last layer then has one
                query, so that its hook points see one position.
            return_type: "logits" for the outputs, which are probabilities unless `config.logits`;
                "loss" for `loss_fn`; "both" for the two of them; None to run the hooks only.
            loss_per_token: whether the loss is returned for every token instead of as a mean.
            prepend_bos: None or False, because there is no such token.
            start_at_layer: the first layer to run, from 0; negative numbers count from the end.
            stop_at_layer: the first layer not to run, likewise. The stream before that layer is
                returned instead of outputs.
            others: further arguments of TransformerLens' models, such as `attention_mask`. They
                have no meaning here, so only None is accepted.

        Returns:
            Outputs [batch, pos, vocab], or [batch, vocab] if `last_only`; or the loss; or both; or
            the stream [batch, pos, d_model], in which columns that no layer has written are zero.
        """
        check_no_bos(prepend_bos)
        check_no_others(others)
        wants_loss = return_type in ("loss", "both")
        partial = start_at_layer is not None or stop_at_layer is not None
        _check_request(return_type, partial=partial, whole=last_only or wants_loss)
        if partial:
            outputs = self.run_part(tokens, start_at_layer, stop_at_layer)
            return None if return_type is None and stop_at_layer is None else outputs
        sequence = self.check_tokens(tokens)
        if wants_loss and (last_only or sequence.shape[1] < 2):
            raise ValueError(
                "return_type: the loss is over all positions but the last, so it needs at least "
                f"two tokens and last_only=False; got {counted(sequence.shape[1], 'token')} and "
                f"last_only={last_only}"
            )
        if self.attention_path().name == "whole pass" and len(sequence):
            outputs = fused_outputs(self.folded_layers(), self.W_U, sequence, last_only)
        else:
            # With a hook anywhere every layer is eager, so that runs that are compared with each
            # other take the same path.
            watched = self.is_watched
            outputs = self.run_layers(self.embedded(sequence, watched), 0, last_only, watched)
        if return_type is None:
            return None
        if not wants_loss:
            return outputs[:, -1] if last_only else outputs
        loss = self.loss_fn(outputs, sequence, per_token=loss_per_token)
        return (outputs, loss) if return_type == "both" else loss

    def loss_fn(
        self,
        logits: Float[Tensor, "batch pos vocab"],
        tokens: Int[Tensor, "batch pos"],
        per_token: bool = False,
    ) -> Tensor:
        """The loss of outputs against the next tokens, over all positions but the last.

        It is the cross-entropy of the softmax if `config.logits`, as in TransformerLens. If not,
        outputs are probabilities, and it is the mean squared error against the one-hot next token.

        Args:
            logits: the model's outputs, [batch, pos, vocab].
            tokens: the sequences, [batch, pos].
            per_token: whether to return one loss per token instead of their mean.

        Returns:
            The loss, a scalar, or [batch, pos-1] if `per_token`.
        """
        kind = "cross-entropy" if self.config.logits else "mse"
        targets = F.one_hot(tokens[:, 1:], self.cfg.d_vocab).to(logits)
        define = loss_by_row if per_token else loss_of_outputs
        return define(logits[:, :-1], targets, kind)

    def generate(self, input: ArrayLike | str, max_new_tokens: int = 10, **options: Any) -> Any:
        """The sequences, continued by tokens drawn from the model's predictions.

        Args:
            input: integer tokens [batch, pos], or digits separated by blanks.
            max_new_tokens: the number of tokens to draw for each sequence.
            **options: see `mtdinterp.models.generation.generate`.

        Returns:
            Tokens [batch, pos + max_new_tokens], or text if the input is text.
        """
        # That module needs this class for its types.
        from mtdinterp.models.generation import generate

        return generate(self, input, max_new_tokens, **options)

    def to_probabilities(
        self, outputs: Float[Tensor, "*batch vocab"]
    ) -> Float[Tensor, "*batch vocab"]:
        """The predicted distributions: the softmax of logits, other outputs as they are."""
        return outputs.softmax(-1) if self.config.logits else outputs

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
        numbers = self.to_tokens(tokens) if is_text(tokens) else tokens
        sequence = as_tokens(numbers, self.config.vocab_size)
        self.check_length(sequence.shape[1])
        return sequence.to(self.W_U.device)

    def check_length(self, length: int) -> None:
        """Refuse a length that this model does not accept."""
        longest = self.config.length
        if self.config.exact_length and length != longest:
            raise ValueError(
                f"tokens: this constructed model is exact only at length {longest}, got {length}"
            )
        if not 1 <= length <= longest:
            raise ValueError(f"tokens: expected a length in 1..{longest}, got {length}")

    def setup(self) -> None:
        """Name the hook points, as TransformerLens does, and note where hooks are kept."""
        super().setup()
        places: list[Any] = []
        for module in self.modules():
            places.extend(attached(module))
        self._attached = tuple(places)

    @property
    def is_watched(self) -> bool:
        """Whether a hook is attached to any module; if so, every step runs where hooks see it."""
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

    def run_with_cache(
        self, *args: Any, return_cache_object: bool = True, **kwargs: Any
    ) -> tuple[Any, ActivationCache | dict[str, Tensor]]:
        """TransformerLens' run_with_cache, with an ActivationCache unless a dict is asked for."""
        output, cache = super().run_with_cache(*args, **kwargs)
        if not return_cache_object:
            return output, cache
        has_batch = not kwargs.get("remove_batch_dim", False)
        return output, LensCache(cache, self, has_batch_dim=has_batch)

    def _apply(self, fn: Any, recurse: bool = True) -> "LensTransformer":
        """Update dtype and device in TransformerLens' configuration when the model moves."""
        super()._apply(fn, recurse)
        self.cfg.dtype = self.W_U.dtype
        self.cfg.device = str(self.W_U.device)
        return self

    # Weights by their TransformerLens names.

    @property
    def W_U(self) -> Float[Tensor, "d_model vocab"]:
        """The linear read-out."""
        return self.unembed.W_U

    @property
    def W_E(self) -> Float[Tensor, "vocab d_model"]:
        """The embedding of every token, at its place in the final stream."""
        raise NotImplementedError

    def tokens_to_residual_directions(self, tokens: str | int | Tensor) -> Tensor:
        """The columns of W_U: one residual direction per token."""
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        index = torch.as_tensor(tokens)
        return self.W_U.T[index.squeeze() if index.numel() == 1 else index]
