"""A whole model in one call of a compiled kernel: a forward pass, or a training step.

The kernel takes a model as a chain of layers of one form, `FoldedLayer`, and computes one sequence
after the other while it is in the cache. A training step knows its loss, so the gradients are
computed right after it, while the attention of the sequence is still in memory; PyTorch's backward
pass only passes them on. float32 on the CPU, differentiable once.

`LensTransformer.attention_path` decides whether a model runs here. Compared with the attention
operator layer by layer, a forward pass takes 0.6 to 0.85 of the time for the disentangled
transformer (T = 64 to 256), 0.4 to 0.95 for the standard one, and a training step about half.
"""

import ctypes
from collections.abc import Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtdinterp.checks import check_option
from mtdinterp.native.calls import run_kernel
from mtdinterp.native.folded import FoldedLayer, check_model
from mtdinterp.native.operands import (
    INDEX_LIMIT,
    check_at_most,
    check_index_range,
    check_operand,
)
from mtdinterp.native.threads import kernel_threads

LOSSES = ("mse", "cross-entropy")
KEPT_BYTES = 2**27
"""Attention that a training step keeps for its backward pass, over all threads.

A step that would need more memory recomputes the attention instead.
"""
BYTES_PER_FLOAT = 4


def fused_outputs(
    layers: Sequence[FoldedLayer],
    unembedding: Float[Tensor, "d_model vocab"],
    tokens: Int[Tensor, "batch pos"],
    last_only: bool,
) -> Float[Tensor, "batch query vocab"]:
    """The outputs of the folded model on one-hot tokens; they carry no gradient.

    Args:
        layers: the model's layers, in order.
        unembedding: the linear read-out, [d_model, vocab].
        tokens: integer tokens, [batch, pos].
        last_only: whether to compute the outputs of the last position only.

    Returns:
        Outputs [batch, query, vocab], with one query if `last_only` and all positions otherwise.
    """
    widest = check_model(layers, unembedding)
    sequence = _checked_tokens(tokens, layers[0].keys.shape[1], widest)
    batch, length = sequence.shape
    n_queries = 1 if last_only else length
    outputs = unembedding.new_empty(batch, n_queries, unembedding.shape[1])
    parameters = _contiguous([unembedding, *_tensors(layers)])
    _call(
        _Problem(
            tokens=sequence,
            n_queries=n_queries,
            parameters=parameters,
            outputs=outputs,
        )
    )
    return outputs


def fused_loss(
    layers: Sequence[FoldedLayer],
    unembedding: Float[Tensor, "d_model vocab"],
    tokens: Int[Tensor, "batch pos"],
    targets: Float[Tensor, "batch query vocab"],
    loss: str,
) -> Float[Tensor, ""]:
    """The mean loss of the folded model at its last positions, differentiable once.

    Args:
        layers: the model's layers, in order.
        unembedding: the linear read-out, [d_model, vocab].
        tokens: integer tokens, [batch, pos].
        targets: target distributions, [batch, query, vocab], for the last `query` positions.
        loss: "mse" or "cross-entropy".

    Returns:
        The loss, a scalar.
    """
    check_option("loss", loss, LOSSES)
    widest = check_model(layers, unembedding)
    sequence = _checked_tokens(tokens, layers[0].keys.shape[1], widest)
    converted = targets.to(unembedding).resolve_neg().contiguous()
    check_operand("targets", converted, (len(sequence), *targets.shape[1:2], unembedding.shape[1]))
    check_at_most("queries", targets.shape[1], "positions", sequence.shape[1])
    parameters = [unembedding, *_tensors(layers)]
    has_gradient = any(tensor is not None and tensor.requires_grad for tensor in parameters)
    backward = torch.is_grad_enabled() and has_gradient
    return _Loss.apply(sequence, converted, loss, backward, *parameters)


class _Loss(torch.autograd.Function):
    """The loss with its gradients, which the kernel computes in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        targets: Tensor,
        loss: str,
        backward: bool,
        *parameters: Tensor | None,
    ) -> Tensor:
        """Compute the loss, and its gradients if they will be needed.

        Args:
            ctx: autograd's context, which keeps the gradients for `backward`.
            tokens: contiguous int64 tokens, [batch, pos].
            targets: contiguous float32 target distributions, [batch, query, vocab].
            loss: "mse" or "cross-entropy".
            backward: whether to compute gradients.
            *parameters: the unembedding and the tensors of every layer.

        Returns:
            The loss, a scalar.
        """
        unembedding = parameters[0]
        assert unembedding is not None
        contiguous = _contiguous(parameters)
        gradients: list[Tensor | None] = [None] * len(contiguous)
        if backward:
            # Zeros, because offsets that no sequence reaches keep a gradient of zero.
            gradients = [None if t is None else torch.zeros_like(t) for t in contiguous]
        result = unembedding.new_empty(())
        _call(
            _Problem(
                tokens=tokens,
                n_queries=targets.shape[1],
                parameters=contiguous,
                targets=targets,
                loss=loss,
                gradients=gradients if backward else None,
                result=result,
            )
        )
        ctx.save_for_backward(*gradients, *parameters)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad.item()
        half = len(ctx.saved_tensors) // 2
        gradients = ctx.saved_tensors[:half]
        parameters = ctx.saved_tensors[half:]
        if scale != 1:
            gradients = [None if tensor is None else tensor * scale for tensor in gradients]
        if torch.is_grad_enabled():
            # create_graph: without this a second derivative would silently be zero.
            pairs = zip(gradients, parameters, strict=True)
            gradients = [None if t is None else _Once.apply(t, p) for t, p in pairs]
        return None, None, None, None, *gradients


class _Once(torch.autograd.Function):
    """A gradient that raises an error when it is differentiated."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, parameter: Tensor) -> Tensor:
        """Copy a gradient into a graph that depends on its parameter.

        Args:
            ctx: autograd's context; nothing is kept in it.
            gradient: the gradient.
            parameter: the parameter that it belongs to, so that autograd calls `backward`.

        Returns:
            The gradient's values.
        """
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        raise RuntimeError(
            "the fused loss can be differentiated once; set MTDINTERP_KERNEL=eager for more"
        )


class _Problem(NamedTuple):
    """The arguments of one kernel call: contiguous tensors, the unembedding first."""

    tokens: Tensor
    n_queries: int
    parameters: Sequence[Tensor | None]
    outputs: Tensor | None = None
    targets: Tensor | None = None
    loss: str = "mse"
    gradients: Sequence[Tensor | None] | None = None
    result: Tensor | None = None


LAYER_SIZES = ("heads", "d_in", "d_rel", "d_out")
LAYER_GRADIENTS = tuple(f"d_{name}" for name in FoldedLayer._fields)
STEP_SIZES = (
    "batch",
    "keys",
    "queries",
    "length",
    "layers",
    "vocab",
    "cross_entropy",
    "backward",
    "keep",
    "threads",
)
STEP_POINTERS = ("tokens", "targets", "outputs", "layer", "W_U", "d_W_U", "loss")


class _StepLayer(ctypes.Structure):
    """`StepLayer` of step.cpp."""

    _fields_ = (
        *zip(LAYER_SIZES, repeat(ctypes.c_int32)),
        *zip((*FoldedLayer._fields, *LAYER_GRADIENTS), repeat(ctypes.c_void_p)),
    )


class _Step(ctypes.Structure):
    """`Step` of step.cpp."""

    _fields_ = (
        *zip(STEP_SIZES, repeat(ctypes.c_int32)),
        *zip(STEP_POINTERS, repeat(ctypes.c_void_p)),
    )


def _call(problem: _Problem) -> None:
    """Run the kernel, which fills the outputs, the result and the gradients of the problem."""
    unembedding = problem.parameters[0]
    layers = _layers(problem.parameters)
    gradients = problem.gradients or [None] * len(problem.parameters)
    array = (_StepLayer * len(layers))()
    width = len(FoldedLayer._fields)
    for index, layer in enumerate(layers):
        first = 1 + index * width
        array[index] = _StepLayer(
            layer.n_heads,
            layer.d_in,
            layer.values.shape[-1],
            layer.d_out,
            *map(_address, layer),
            *map(_address, gradients[first : first + width]),
        )
    assert unembedding is not None
    batch, n_keys = problem.tokens.shape
    threads = max(1, min(kernel_threads(), batch))
    backward = problem.gradients is not None
    step = _Step(
        batch=batch,
        keys=n_keys,
        queries=problem.n_queries,
        length=layers[0].keys.shape[1],
        layers=len(layers),
        vocab=unembedding.shape[1],
        cross_entropy=problem.loss == "cross-entropy",
        backward=backward,
        keep=backward and _kept_bytes(layers, n_keys, problem.n_queries) * threads <= KEPT_BYTES,
        threads=threads,
        tokens=_address(problem.tokens),
        targets=_address(problem.targets),
        outputs=_address(problem.outputs),
        layer=ctypes.addressof(array),
        W_U=_address(unembedding),
        d_W_U=_address(gradients[0]),
        loss=_address(problem.result),
    )
    if not run_kernel("transformer_step", ctypes.byref(step)):
        lowest, highest = problem.tokens.min().item(), problem.tokens.max().item()
        raise ValueError(
            f"tokens: expected values in 0..{layers[0].d_in - 1}, got values in {lowest}..{highest}"
        )


def _checked_tokens(tokens: Tensor, table_rows: int, widest: int) -> Tensor:
    """Contiguous int64 tokens [batch, pos] of a length that the tables support.

    Their values are checked by the kernel, where that costs nothing.
    """
    if tokens.ndim != 2 or tokens.numel() == 0 or not tokens.is_cpu:
        raise ValueError(
            "tokens: expected [batch, pos] on the cpu with no empty axis, got shape "
            f"{list(tokens.shape)} on the {tokens.device.type}"
        )
    if tokens.dtype == torch.bool or tokens.is_floating_point() or tokens.is_complex():
        raise ValueError(f"tokens: expected an integer type, got {tokens.dtype}")
    batch, length = tokens.shape
    check_at_most("tokens", length, "rows of the tables", table_rows)
    check_index_range("sequence", length, widest)
    check_at_most("batch", batch, "sequences of one call", INDEX_LIMIT - 1)
    return tokens.to(torch.int64).resolve_neg().contiguous()


def _tensors(layers: Sequence[FoldedLayer]) -> list[Tensor | None]:
    """The parameters of all layers in one list."""
    flat: list[Tensor | None] = []
    for layer in layers:
        flat.extend(layer)
    return flat


def _layers(parameters: Sequence[Tensor | None]) -> list[FoldedLayer]:
    """The inverse of `_tensors`, with the unembedding in front."""
    width = len(FoldedLayer._fields)
    starts = range(1, len(parameters), width)
    return [FoldedLayer._make(parameters[start : start + width]) for start in starts]


def _kept_bytes(layers: Sequence[FoldedLayer], n_keys: int, n_queries: int) -> int:
    """Bytes per thread of all attention patterns; the last layer has `n_queries` queries only."""
    heads = [layer.n_heads for layer in layers]
    rows = sum(heads[:-1]) * n_keys + heads[-1] * n_queries
    return BYTES_PER_FLOAT * rows * n_keys


def _contiguous(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Tensors whose memory holds their values in order; a negated view holds the opposite ones."""
    return [None if tensor is None else tensor.resolve_neg().contiguous() for tensor in tensors]


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
