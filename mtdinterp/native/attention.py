"""The fused relative attention as a PyTorch operator: `torch.ops.mtdinterp.relative_attention`.

float32 on the CPU only. Besides the two outputs the operator returns the row maxima and sums of the
softmax, from which the backward pass recomputes the attention it needs, a few rows at a time. The
same number of threads gives the same bits, run after run. It can be differentiated once.
"""

import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.native.build import required_library
from mtdinterp.native.threads import kernel_threads

Outputs = tuple[Tensor, Tensor, Tensor]
Grads = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class _Operand(ctypes.Structure):
    """A tensor [batch, pos, head, d] whose features are contiguous: pointer and the other three
    strides."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("pos", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


class _Problem(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                "batch",
                "heads",
                "queries",
                "keys",
                "length",
                "d_key",
                "d_pos",
                "d_value",
                "d_rel",
                "threads",
            )
        ),
        *((name, _Operand) for name in ("q", "p", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("key_table", "value_table", "stats")),
    )


class _Gradients(ctypes.Structure):
    _fields_ = (
        *((name, _Operand) for name in ("out_v", "out_r", "q", "p", "k", "v")),
        *((name, ctypes.c_void_p) for name in ("key_table", "value_table")),
    )


def fused_relative_attention(
    q: Float[Tensor, "batch query head d_key"],
    p: Float[Tensor, "batch query head d_pos"],
    k: Float[Tensor, "batch key head d_key"],
    v: Float[Tensor, "batch key head d_value"],
    key_table: Float[Tensor, "head length d_pos"],
    value_table: Float[Tensor, "head length d_rel"],
) -> tuple[Float[Tensor, "batch query head d_value"], Float[Tensor, "batch query head d_rel"]]:
    """`models.attention.relative_attention`, by the compiled kernel."""
    content, position, _ = _forward(q, p, k, v, key_table, value_table)
    return content, position


def can_fuse(*tensors: Tensor) -> bool:
    """Whether the kernel takes these tensors: plain float32 on the CPU, with something to
    compute."""
    return all(
        tensor.dtype == torch.float32
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        for tensor in tensors
    )


@torch.library.custom_op("mtdinterp::relative_attention", mutates_args=())
def _forward(
    q: Tensor, p: Tensor, k: Tensor, v: Tensor, key_table: Tensor, value_table: Tensor
) -> Outputs:
    q, p, k, v = (_rows_contiguous(tensor) for tensor in (q, p, k, v))
    key_table, value_table = key_table.contiguous(), value_table.contiguous()
    out_v, out_r, stats = _empty_outputs(q, p, k, v, key_table, value_table)
    problem = _problem(q, p, k, v, key_table, value_table, stats)
    required_library().relative_attention_forward(
        ctypes.byref(problem), ctypes.byref(_operand(out_v)), ctypes.byref(_operand(out_r))
    )
    return out_v, out_r, stats


@torch.library.custom_op("mtdinterp::relative_attention_backward", mutates_args=())
def _backward(
    grad_v: Tensor,
    grad_r: Tensor,
    q: Tensor,
    p: Tensor,
    k: Tensor,
    v: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    stats: Tensor,
) -> Grads:
    grad_v, grad_r, q, p, k, v = (
        _rows_contiguous(tensor) for tensor in (grad_v, grad_r, q, p, k, v)
    )
    key_table, value_table = key_table.contiguous(), value_table.contiguous()
    results = [tensor.new_empty(tensor.shape) for tensor in (q, p, k, v)]
    # Offsets that no sequence reaches keep a gradient of zero.
    tables = [table.new_zeros(table.shape) for table in (key_table, value_table)]
    problem = _problem(q, p, k, v, key_table, value_table, stats)
    gradients = _Gradients(
        *map(_operand, (grad_v, grad_r, *results)), *(table.data_ptr() for table in tables)
    )
    required_library().relative_attention_backward(ctypes.byref(problem), ctypes.byref(gradients))
    return results[0], results[1], results[2], results[3], tables[0], tables[1]


@_forward.register_fake
def _empty_outputs(
    q: Tensor, p: Tensor, k: Tensor, v: Tensor, key_table: Tensor, value_table: Tensor
) -> Outputs:
    batch, queries, heads, _ = q.shape
    return (
        q.new_empty(batch, queries, heads, v.shape[-1]),
        q.new_empty(batch, queries, heads, value_table.shape[-1]),
        q.new_empty(batch, heads, queries, 2),
    )


@_backward.register_fake
def _empty_gradients(
    grad_v: Tensor,
    grad_r: Tensor,
    q: Tensor,
    p: Tensor,
    k: Tensor,
    v: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    stats: Tensor,
) -> Grads:
    q, p, k, v, key_table, value_table = (
        x.new_empty(x.shape) for x in (q, p, k, v, key_table, value_table)
    )
    return q, p, k, v, key_table, value_table


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: Outputs) -> None:
    ctx.save_for_backward(*inputs, output[2])


def _differentiate(ctx: Any, grad_v: Tensor, grad_r: Tensor, _: Tensor) -> Grads:
    return _backward(grad_v, grad_r, *ctx.saved_tensors)


_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)


def _rows_contiguous(tensor: Tensor) -> Tensor:
    """The kernel takes any strides but those of the features."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def _operand(tensor: Tensor) -> _Operand:
    return _Operand(tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2))


def _problem(
    q: Tensor,
    p: Tensor,
    k: Tensor,
    v: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    stats: Tensor,
) -> _Problem:
    batch, queries, heads, d_key = q.shape
    threads = max(1, min(kernel_threads(), batch * heads))
    return _Problem(
        batch,
        heads,
        queries,
        k.shape[1],
        key_table.shape[1],
        d_key,
        p.shape[-1],
        v.shape[-1],
        value_table.shape[-1],
        threads,
        *map(_operand, (q, p, k, v)),
        key_table.data_ptr(),
        value_table.data_ptr(),
        stats.data_ptr(),
    )
