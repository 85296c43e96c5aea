"""Relative attention as a PyTorch operator: `torch.ops.mtdinterp.relative_attention`.

float32 on the CPU only. Besides the two outputs the operator returns the row maxima and sums of the
softmax, from which the backward pass recomputes attention, a few rows at a time. Runs with the same
number of threads give the same bits. The operator can be differentiated once.
"""

import ctypes
from itertools import repeat
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mtdinterp.native.calls import run_kernel
from mtdinterp.native.operands import (
    INDEX_LIMIT,
    check_at_most,
    check_index_range,
    check_operand,
)
from mtdinterp.native.threads import kernel_threads

Outputs = tuple[Tensor, Tensor, Tensor]
Grads = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class _Operand(ctypes.Structure):
    """A tensor [batch, pos, head, d] with contiguous features: its address and other strides."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("batch", ctypes.c_int64),
        ("pos", ctypes.c_int64),
        ("head", ctypes.c_int64),
    )


SIZES = (
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


class _Problem(ctypes.Structure):
    """`Problem` of attention.cpp."""

    _fields_ = (
        *zip(SIZES, repeat(ctypes.c_int32)),
        *zip(("q", "p", "k", "v"), repeat(_Operand)),
        *zip(("key_table", "value_table", "stats"), repeat(ctypes.c_void_p)),
    )


class _Gradients(ctypes.Structure):
    """`Gradients` of attention.cpp."""

    _fields_ = (
        *zip(("out_v", "out_r", "q", "p", "k", "v"), repeat(_Operand)),
        *zip(("key_table", "value_table"), repeat(ctypes.c_void_p)),
    )


def fused_relative_attention(
    q: Float[Tensor, "batch query head d_key"],
    p: Float[Tensor, "batch query head d_pos"],
    k: Float[Tensor, "batch key head d_key"],
    v: Float[Tensor, "batch key head d_value"],
    key_table: Float[Tensor, "head length d_pos"],
    value_table: Float[Tensor, "head length d_rel"],
) -> tuple[Float[Tensor, "batch query head d_value"], Float[Tensor, "batch query head d_rel"]]:
    """`models.attention.relative_attention`, by the compiled kernel.

    Args:
        q: queries of the content score, [batch, query, head, d_key].
        p: queries of the position score, [batch, query, head, d_pos].
        k: keys, [batch, key, head, d_key].
        v: values, [batch, key, head, d_value].
        key_table: vectors that `p` is multiplied with, by offset, [head, length, d_pos].
        value_table: values gathered by offset, [head, length, d_rel].

    Returns:
        What each query gathers from the values, [batch, query, head, d_value], and from the value
        table, [batch, query, head, d_rel].
    """
    content, position, _ = _forward(q, p, k, v, key_table, value_table)
    return content, position


@torch.library.custom_op("mtdinterp::relative_attention", mutates_args=())
def _forward(
    q: Tensor, p: Tensor, k: Tensor, v: Tensor, key_table: Tensor, value_table: Tensor
) -> Outputs:
    _check(q, p, k, v, key_table, value_table)
    q, p, k, v = map(_rows_contiguous, (q, p, k, v))
    key_table = key_table.contiguous()
    value_table = value_table.contiguous()
    out_v, out_r, stats = _empty_outputs(q, p, k, v, key_table, value_table)
    problem = _problem(q, p, k, v, key_table, value_table, stats)
    run_kernel(
        "relative_attention_forward",
        ctypes.byref(problem),
        ctypes.byref(_operand(out_v)),
        ctypes.byref(_operand(out_r)),
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
    _check(q, p, k, v, key_table, value_table)
    batch, queries, heads, _ = q.shape
    check_operand("grad_v", grad_v, (batch, queries, heads, v.shape[-1]))
    check_operand("grad_r", grad_r, (batch, queries, heads, value_table.shape[-1]))
    check_operand("stats", stats, (batch, heads, queries, 2))
    grad_v = _rows_contiguous(grad_v)
    grad_r = _rows_contiguous(grad_r)
    q, p, k, v = map(_rows_contiguous, (q, p, k, v))
    key_table = key_table.contiguous()
    value_table = value_table.contiguous()
    d_q, d_p, d_k, d_v = (tensor.new_empty(tensor.shape) for tensor in (q, p, k, v))
    # Zeros, because offsets that no sequence reaches keep a gradient of zero.
    d_key_table = key_table.new_zeros(key_table.shape)
    d_value_table = value_table.new_zeros(value_table.shape)
    problem = _problem(q, p, k, v, key_table, value_table, stats.contiguous())
    gradients = _Gradients(
        *map(_operand, (grad_v, grad_r, d_q, d_p, d_k, d_v)),
        d_key_table.data_ptr(),
        d_value_table.data_ptr(),
    )
    run_kernel("relative_attention_backward", ctypes.byref(problem), ctypes.byref(gradients))
    return d_q, d_p, d_k, d_v, d_key_table, d_value_table


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
    operands = (q, p, k, v, key_table, value_table)
    d_q, d_p, d_k, d_v, d_keys, d_values = (x.new_empty(x.shape) for x in operands)
    return d_q, d_p, d_k, d_v, d_keys, d_values


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, ...], output: Outputs) -> None:
    ctx.save_for_backward(*inputs, output[2])


def _differentiate(ctx: Any, grad_v: Tensor, grad_r: Tensor, _: Tensor) -> Grads:
    return _backward(grad_v, grad_r, *ctx.saved_tensors)


_forward.register_autograd(_differentiate, setup_context=_keep_for_backward)


def _check(
    q: Tensor, p: Tensor, k: Tensor, v: Tensor, key_table: Tensor, value_table: Tensor
) -> None:
    """Refuse what the kernel would misread. Axes that are free are taken from the tensor itself."""
    if q.ndim != 4:
        raise ValueError(f"q: expected [batch, query, head, d_key], got shape {list(q.shape)}")
    if k.ndim != 4 or key_table.ndim != 3:
        raise ValueError(
            "k and key_table: expected [batch, key, head, d_key] and [head, length, d_pos], got "
            f"shapes {list(k.shape)} and {list(key_table.shape)}"
        )
    batch, queries, heads, d_key = q.shape
    keys, length = k.shape[1], key_table.shape[1]
    check_operand("q", q, q.shape)
    check_operand("p", p, (batch, queries, heads, *p.shape[-1:]))
    check_operand("k", k, (batch, keys, heads, d_key))
    check_operand("v", v, (batch, keys, heads, *v.shape[-1:]))
    check_operand("key_table", key_table, (heads, length, *p.shape[-1:]))
    check_operand("value_table", value_table, (heads, length, *value_table.shape[-1:]))
    check_at_most("queries", queries, "keys", keys)
    check_at_most("keys", keys, "rows of key_table", length)
    widest = max(d_key, p.shape[-1], v.shape[-1], value_table.shape[-1])
    check_index_range("sequence", keys, widest)
    check_at_most("batch", batch, "sequences of one call", INDEX_LIMIT - 1)
    check_at_most("heads", heads, "heads of one call", INDEX_LIMIT - 1)


def _rows_contiguous(tensor: Tensor) -> Tensor:
    """The tensor with contiguous features; the kernel accepts any other strides."""
    if tensor.stride(-1) == 1 or tensor.shape[-1] == 1:
        return tensor
    return tensor.contiguous()


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
