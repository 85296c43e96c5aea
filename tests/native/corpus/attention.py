"""The attention operator, forward and backward."""

from collections.abc import Callable
from functools import partial

import torch
from native.corpus.base import Case, worst_error
from torch import Tensor

from mtdinterp.models.attention import eager_relative_attention
from mtdinterp.native.attention import fused_relative_attention

Inputs = list[Tensor]
NAMES = ("q", "p", "k", "v", "key_table", "value_table")


def inputs(
    batch: int = 2,
    heads: int = 2,
    queries: int = 5,
    keys: int = 5,
    length: int = 6,
    widths: tuple[int, int, int, int] = (3, 4, 5, 2),
) -> Inputs:
    """Random operands, each in an allocation of exactly its size."""
    generator = torch.Generator().manual_seed(0)
    d_key, d_pos, d_value, d_rel = widths
    shapes = (
        (batch, queries, heads, d_key),
        (batch, queries, heads, d_pos),
        (batch, keys, heads, d_key),
        (batch, keys, heads, d_value),
        (heads, length, d_pos),
        (heads, length, d_rel),
    )
    return [torch.randn(shape, generator=generator) for shape in shapes]


def compare(make: Callable[[], Inputs]) -> float:
    """Outputs and gradients of the operator against the eager ones in float64."""
    given = make()
    leaves = [tensor.detach().requires_grad_() for tensor in given]
    results = fused_relative_attention(*leaves)
    doubled = [tensor.detach().double().requires_grad_() for tensor in given]
    expected = eager_relative_attention(*doubled)
    # A sum has expanded gradients, a square has dense ones.
    loss = results[0].sum() + results[1].square().sum()
    wanted = expected[0].sum() + expected[1].square().sum()
    gradients = torch.autograd.grad(loss, leaves)
    wanted_gradients = torch.autograd.grad(wanted, doubled)
    return worst_error([*results, *gradients], [*expected, *wanted_gradients])


def call(make: Callable[[], Inputs]) -> float:
    """The operator alone, on inputs that it must refuse."""
    torch.ops.mtdinterp.relative_attention(*make())
    return 0.0


def changed(**changes: Callable[[Tensor], Tensor]) -> Inputs:
    """The usual inputs with some of them changed."""
    operands = dict(zip(NAMES, inputs(), strict=True))
    for name, change in changes.items():
        operands[name] = change(operands[name])
    return list(operands.values())


def with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers as a view into a larger allocation, with gaps in all axes."""
    large = torch.full([2 * size + 1 for size in tensor.shape], float("nan"))
    view = large[tuple(slice(1, 1 + 2 * size, 2) for size in tensor.shape)]
    return view.copy_(tensor)


def transposed(tensor: Tensor) -> Tensor:
    """The same numbers with the last axis first in memory."""
    return tensor.movedim(-1, 0).contiguous().movedim(0, -1)


def heads_first(tensor: Tensor) -> Tensor:
    """The same numbers with heads before positions in memory."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def one_for_all(tensor: Tensor) -> Tensor:
    """The first entry of the leading axis, repeated without memory."""
    return tensor[:1].expand(tensor.shape)


def negated_view(tensor: Tensor) -> Tensor:
    """A view whose memory holds the opposite numbers."""
    return torch._neg_view(tensor)


def each(change: Callable[[Tensor], Tensor]) -> Inputs:
    """The usual inputs, all of them changed."""
    return [change(tensor) for tensor in inputs()]


def call_backward(change: Callable[[dict[str, Tensor]], object]) -> float:
    """The backward operator alone, with some of its arguments changed."""
    operands = inputs()
    grad_v, grad_r, stats = torch.ops.mtdinterp.relative_attention(*operands)
    arguments = {"grad_v": grad_v, "grad_r": grad_r, "stats": stats}
    change(arguments)
    torch.ops.mtdinterp.relative_attention_backward(
        arguments["grad_v"], arguments["grad_r"], *operands, arguments["stats"]
    )
    return 0.0


WIDTHS = (1, 7, 8, 9, 15, 16, 17, 33)
"""Around multiples of the vector."""
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 33, 65)

SIZES: dict[str, dict] = {
    "one of everything": {
        "batch": 1,
        "heads": 1,
        "queries": 1,
        "keys": 1,
        "length": 1,
        "widths": (1, 1, 1, 1),
    },
    "many sequences": {"batch": 65},
    "three heads": {"heads": 3},
    "a long table": {"length": 40},
    "wide and narrow": {"widths": (1, 40, 2, 17)},
}
for width in WIDTHS:
    SIZES[f"width {width}"] = {"widths": (width,) * 4}
for size in LENGTHS:
    SIZES[f"length {size}"] = {"queries": size, "keys": size, "length": size}
    SIZES[f"length {size}, one query"] = {"queries": 1, "keys": size, "length": size}
    SIZES[f"length {size}, all queries but one"] = {
        "queries": max(1, size - 1),
        "keys": size,
        "length": size + 1,
    }

LAYOUTS: dict[str, Callable[[], Inputs]] = {
    "gaps": partial(each, with_gaps),
    "features first": partial(each, transposed),
    "one for all": partial(each, one_for_all),
    "negated views": partial(each, negated_view),
    "heads first": partial(changed, q=heads_first, p=heads_first, k=heads_first, v=heads_first),
    "width 1 with gaps": lambda: [with_gaps(x) for x in inputs(widths=(1, 1, 1, 1))],
    "width 1, negated": lambda: [negated_view(with_gaps(x)) for x in inputs(widths=(1, 1, 1, 1))],
}


def huge(tensor: Tensor) -> Tensor:
    """More features than can be counted in 32 bits, in the memory of one."""
    return tensor[..., :1].expand(*tensor.shape[:-1], 2**29)


WRONG: dict[str, tuple[Callable[[], Inputs], str]] = {
    "no sequences": (lambda: inputs(batch=0), "q: expected float32 .* no empty axis"),
    "no heads": (lambda: inputs(heads=0), "q: expected float32 .* no empty axis"),
    "no queries": (lambda: inputs(queries=0), "q: expected float32 .* no empty axis"),
    "no keys": (lambda: inputs(keys=0), "k: expected float32 .* no empty axis"),
    "no rows": (lambda: inputs(length=0), "key_table: expected float32 .* no empty axis"),
    "empty keys": (lambda: inputs(widths=(0, 1, 1, 1)), "q: expected"),
    "empty positions": (lambda: inputs(widths=(1, 0, 1, 1)), "p: expected"),
    "empty values": (lambda: inputs(widths=(1, 1, 0, 1)), "v: expected"),
    "empty value table": (lambda: inputs(widths=(1, 1, 1, 0)), "value_table: expected"),
    "more queries than keys": (lambda: inputs(queries=6), "queries: expected at most the 5 keys"),
    "more keys than rows": (lambda: inputs(length=4), "keys: expected at most the 4 rows"),
    "three axes": (partial(changed, q=lambda x: x[0]), r"q: expected \[batch, query"),
    "no axes": (partial(changed, k=lambda x: x.sum()), "k and key_table: expected"),
    "p of one axis": (partial(changed, p=lambda x: x.flatten()), "p: expected"),
    "sparse": (partial(changed, q=lambda x: x.to_sparse()), "q: .*got sparse_coo float32"),
    "too wide": (partial(changed, v=huge), "sequence: expected less than 2,147,483,648 entries"),
}
for name in NAMES:
    for kind in (torch.float64, torch.float16, torch.bfloat16, torch.int32):
        WRONG[f"{name} as {kind}"] = (
            partial(changed, **{name: lambda x, kind=kind: x.to(kind)}),
            f"{name}: expected float32 .* got {str(kind).removeprefix('torch.')}",
        )
    for axis in range(4 if name in NAMES[:4] else 3):
        WRONG[f"{name} too short in axis {axis}"] = (
            partial(changed, **{name: lambda x, axis=axis: x.narrow(axis, 0, 1)}),
            "expected",
        )
# Axes that nothing else limits may be short.
for free in ("v too short in axis 3", "value_table too short in axis 2"):
    del WRONG[free]

WRONG_GRADIENTS: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "short grad_v": (lambda x: x.update(grad_v=x["grad_v"][:1]), "grad_v: expected"),
    "narrow grad_r": (lambda x: x.update(grad_r=x["grad_r"][..., :1]), "grad_r: expected"),
    "double grad_v": (lambda x: x.update(grad_v=x["grad_v"].double()), "grad_v: expected"),
    "short stats": (lambda x: x.update(stats=x["stats"][:, :, :1]), "stats: expected"),
}

ATTENTION_CASES = (
    *(
        Case(f"attention: {name}", partial(compare, partial(inputs, **sizes)))
        for name, sizes in SIZES.items()
    ),
    *(Case(f"attention: {name}", partial(compare, make)) for name, make in LAYOUTS.items()),
    *(
        Case(f"attention refuses: {name}", partial(call, make), refusal)
        for name, (make, refusal) in WRONG.items()
    ),
    *(
        Case(f"attention refuses: {name}", partial(call_backward, change), refusal)
        for name, (change, refusal) in WRONG_GRADIENTS.items()
    ),
)
