"""A whole training step in one call: loss and all gradients, one sequence after the other while it
is in the cache.

Both transformers are chains of layers of one form, `FoldedLayer`. Because the loss is known to the
kernel, its gradients are computed right after it, with the attention of a sequence still at hand;
the backward pass of PyTorch only hands them on. float32 on the CPU, differentiable once.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtdinterp.checks import check_option
from mtdinterp.native.attention import can_fuse
from mtdinterp.native.build import required_library
from mtdinterp.native.threads import kernel_threads

LOSSES = ("mse", "cross-entropy")
KEPT_BYTES = 2**27
"""Attention that the step may keep, over all threads; beyond that the layers go one by one and
recompute it."""


class FoldedLayer(NamedTuple):
    """A layer without redundant parameters: score[i, j] = h_i·M·h_j + h_i·keys[i-j], content = Σ_j
    A[i, j]·h_j and position = Σ_j A[i, j]·values[i-j] for every head.

    Without `mix` the stream becomes concat(h, content, position, …); with it h·skip + Σ_heads
    content·mix + position.
    """

    M: Float[Tensor, "head d_in d_in"]
    keys: Float[Tensor, "head length d_in"]
    values: Float[Tensor, "head length d_rel"]
    mix: Float[Tensor, "head d_in d_out"] | None = None
    skip: Float[Tensor, "d_in d_out"] | None = None  # None: the identity

    @property
    def d_out(self) -> int:
        heads, d_in, _ = self.M.shape
        return (
            d_in + heads * (d_in + self.values.shape[-1])
            if self.mix is None
            else self.mix.shape[-1]
        )


def can_step(
    layers: Sequence[FoldedLayer], unembedding: Tensor, tokens: Tensor, last_only: bool
) -> bool:
    """Whether the kernel takes this model and batch."""
    batch, keys = tokens.shape
    full = layers[:-1] if last_only else layers
    kept = 4 * keys * keys * sum(layer.M.shape[0] for layer in full) * min(kernel_threads(), batch)
    tensors = [tensor for layer in layers for tensor in layer if tensor is not None]
    return (
        kept <= KEPT_BYTES
        and tokens.device.type == "cpu"
        and tokens.numel() > 0
        and can_fuse(unembedding, *tensors)
    )


def fused_loss(
    layers: Sequence[FoldedLayer],
    unembedding: Float[Tensor, "d_model vocab"],
    tokens: Int[Tensor, "batch pos"],
    targets: Float[Tensor, "batch query vocab"],
    loss: str,
) -> Float[Tensor, ""]:
    """The mean loss at the last positions, as many as there are targets, of the folded model on
    one-hot tokens."""
    check_option("loss", loss, LOSSES)
    parameters = [tensor for layer in layers for tensor in layer]
    wanted = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (unembedding, *parameters)
    )
    return _Loss.apply(tokens, targets, loss, wanted, unembedding, *parameters)


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        targets: Tensor,
        loss: str,
        wanted: bool,
        unembedding: Tensor,
        *layers: Tensor | None,
    ) -> Tensor:
        parameters = (unembedding, *layers)
        given = [None if tensor is None else tensor.contiguous() for tensor in parameters]
        # Offsets that no sequence reaches keep a gradient of zero.
        gradients = [
            torch.zeros_like(tensor) if wanted and tensor is not None else None for tensor in given
        ]
        result = unembedding.new_empty(())
        _call(
            tokens.contiguous(),
            targets.to(unembedding).contiguous(),
            loss,
            given,
            gradients,
            wanted,
            result,
        )
        ctx.save_for_backward(*gradients, *parameters)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        scale = grad.item()
        saved = ctx.saved_tensors
        gradients, parameters = saved[: len(saved) // 2], saved[len(saved) // 2 :]
        gradients = [
            tensor if tensor is None or scale == 1 else tensor * scale for tensor in gradients
        ]
        if torch.is_grad_enabled():  # create_graph: what comes back must not pass for a constant
            gradients = [
                tensor if tensor is None else _Once.apply(tensor, parameter)
                for tensor, parameter in zip(gradients, parameters, strict=True)
            ]
        return None, None, None, None, *gradients


class _Once(torch.autograd.Function):
    """A gradient that cannot be differentiated, and says so when it is."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, parameter: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None]:
        raise RuntimeError(
            "the fused loss can be differentiated once; set MTDINTERP_KERNEL=eager for more"
        )


class _StepLayer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("heads", "d_in", "d_rel", "d_out")),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "M",
                "keys",
                "values",
                "mix",
                "skip",
                "d_M",
                "d_keys",
                "d_values",
                "d_mix",
                "d_skip",
            )
        ),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                "batch",
                "keys",
                "queries",
                "length",
                "layers",
                "vocab",
                "cross_entropy",
                "backward",
                "threads",
            )
        ),
        *(
            (name, ctypes.c_void_p)
            for name in ("tokens", "targets", "layer", "W_U", "d_W_U", "loss")
        ),
    )


def _call(
    tokens: Tensor,
    targets: Tensor,
    loss: str,
    given: list[Tensor | None],
    gradients: list[Tensor | None],
    wanted: bool,
    result: Tensor,
) -> None:
    width = len(FoldedLayer._fields)
    starts = range(1, len(given), width)
    array = (_StepLayer * len(starts))()
    for index, start in enumerate(starts):
        layer = FoldedLayer(*given[start : start + width])  # type: ignore[arg-type]
        heads, d_in, _ = layer.M.shape
        array[index] = _StepLayer(
            heads,
            d_in,
            layer.values.shape[-1],
            layer.d_out,
            *map(_address, layer),
            *map(_address, gradients[start : start + width]),
        )
    first = FoldedLayer(*given[1 : 1 + width])  # type: ignore[arg-type]
    batch, keys = tokens.shape
    threads = max(1, min(kernel_threads(), batch))
    step = _Step(
        batch,
        keys,
        targets.shape[1],
        first.keys.shape[1],
        len(starts),
        targets.shape[2],
        loss == "cross-entropy",
        wanted,
        threads,
        tokens.data_ptr(),
        targets.data_ptr(),
        ctypes.addressof(array),
        _address(given[0]),
        _address(gradients[0]),
        result.data_ptr(),
    )
    required_library().transformer_step(ctypes.byref(step))


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
