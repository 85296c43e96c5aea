"""A whole layer of the disentangled transformer as one PyTorch operator.

h [batch, key, d_in] -> concat(h, Σ_j A[i, j]·concat(h_j, R_V[i-j]) of every head), at all positions
or at the last one: scores, attention and concatenation in one pass over a sequence while it is in
the cache, and in the backward pass all gradients of the stream added up in place. float32 on the
CPU, differentiable once.
"""

import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.native.build import required_library
from mtdinterp.native.threads import kernel_threads

Grads = tuple[Tensor, Tensor, Tensor, Tensor]


class _Layer(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("batch", "heads", "queries", "keys", "length", "d_in", "d_rel", "threads")
        ),
        *((name, ctypes.c_void_p) for name in ("stream", "W_A", "R_A", "R_V", "stats")),
    )


class _LayerGradients(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_void_p) for name in ("out", "stream", "W_A", "R_A", "R_V"))


def fused_disentangled_layer(
    stream: Float[Tensor, "batch pos d_in"],
    W_A: Float[Tensor, "head d_in d_in"],
    R_A: Float[Tensor, "head length d_in"],
    R_V: Float[Tensor, "head length d_rel"],
    last_only: bool,
) -> Float[Tensor, "batch query d_out"]:
    """The stream after the layer; with `last_only` at the last position alone."""
    out, _ = _forward(stream, W_A, R_A, R_V, last_only)
    return out


@torch.library.custom_op("mtdinterp::disentangled_layer", mutates_args=())
def _forward(
    stream: Tensor, W_A: Tensor, R_A: Tensor, R_V: Tensor, last_only: bool
) -> tuple[Tensor, Tensor]:
    stream, W_A, R_A, R_V = (tensor.contiguous() for tensor in (stream, W_A, R_A, R_V))
    out, stats = _empty_outputs(stream, W_A, R_A, R_V, last_only)
    layer = _layer(stream, W_A, R_A, R_V, stats)
    required_library().disentangled_layer_forward(
        ctypes.byref(layer), ctypes.c_void_p(out.data_ptr())
    )
    return out, stats


@torch.library.custom_op("mtdinterp::disentangled_layer_backward", mutates_args=())
def _backward(
    grad: Tensor,
    stream: Tensor,
    W_A: Tensor,
    R_A: Tensor,
    R_V: Tensor,
    stats: Tensor,
    needs_stream: bool,
) -> Grads:
    grad, stream, W_A, R_A, R_V = (tensor.contiguous() for tensor in (grad, stream, W_A, R_A, R_V))
    d_stream = torch.empty_like(stream) if needs_stream else stream.new_empty(0)
    d_W_A = torch.empty_like(W_A)
    d_R_A, d_R_V = (
        torch.zeros_like(R_A),
        torch.zeros_like(R_V),
    )  # offsets that no sequence reaches keep zero
    gradients = _LayerGradients(
        grad.data_ptr(),
        d_stream.data_ptr() if needs_stream else None,
        d_W_A.data_ptr(),
        d_R_A.data_ptr(),
        d_R_V.data_ptr(),
    )
    layer = _layer(stream, W_A, R_A, R_V, stats)
    required_library().disentangled_layer_backward(ctypes.byref(layer), ctypes.byref(gradients))
    return d_stream, d_W_A, d_R_A, d_R_V


@_forward.register_fake
def _empty_outputs(
    stream: Tensor, W_A: Tensor, R_A: Tensor, R_V: Tensor, last_only: bool
) -> tuple[Tensor, Tensor]:
    batch, keys, d_in = stream.shape
    queries, heads = 1 if last_only else keys, W_A.shape[0]
    return (
        stream.new_empty(batch, queries, d_in + heads * (d_in + R_V.shape[-1])),
        stream.new_empty(batch, heads, queries, 2),
    )


@_backward.register_fake
def _empty_gradients(
    grad: Tensor,
    stream: Tensor,
    W_A: Tensor,
    R_A: Tensor,
    R_V: Tensor,
    stats: Tensor,
    needs_stream: bool,
) -> Grads:
    d_stream = torch.empty_like(stream) if needs_stream else stream.new_empty(0)
    return d_stream, torch.empty_like(W_A), torch.empty_like(R_A), torch.empty_like(R_V)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:4], output[1])


def _differentiate(
    ctx: Any, grad: Tensor, _: Tensor
) -> tuple[Tensor | None, Tensor, Tensor, Tensor, None]:
    needs_stream = ctx.needs_input_grad[0]
    d_stream, d_W_A, d_R_A, d_R_V = _backward(grad, *ctx.saved_tensors, needs_stream)
    return d_stream if needs_stream else None, d_W_A, d_R_A, d_R_V, None


_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)


def _layer(stream: Tensor, W_A: Tensor, R_A: Tensor, R_V: Tensor, stats: Tensor) -> _Layer:
    batch, keys, d_in = stream.shape
    threads = max(1, min(kernel_threads(), batch))
    return _Layer(
        batch,
        W_A.shape[0],
        stats.shape[2],
        keys,
        R_A.shape[1],
        d_in,
        R_V.shape[-1],
        threads,
        *(tensor.data_ptr() for tensor in (stream, W_A, R_A, R_V, stats)),
    )
