"""The whole-model kernel: outputs, loss and gradients."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from native.corpus.attention import negated_view, transposed, with_gaps
from native.corpus.base import Case, worst_error
from torch import Tensor

from mtdinterp.models.attention import eager_relative_attention
from mtdinterp.models.output_loss import loss_of_outputs
from mtdinterp.native import step
from mtdinterp.native.folded import FoldedLayer
from mtdinterp.native.step import fused_loss, fused_outputs


@dataclass(frozen=True)
class Problem:
    """The arguments of `fused_loss`."""

    layers: list[FoldedLayer]
    unembedding: Tensor
    tokens: Tensor
    targets: Tensor
    loss: str = "mse"

    @property
    def parameters(self) -> list[Tensor]:
        """All parameters, without the ones that are None."""
        flat = [tensor for layer in self.layers for tensor in layer if tensor is not None]
        return [self.unembedding, *flat]


def problem(
    batch: int = 3,
    positions: int = 6,
    queries: int = 1,
    vocab: int = 5,
    heads: tuple[int, ...] = (1, 2),
    d_rel: int = 3,
    adding: bool = False,
    d_model: int = 6,
    length: int = 7,
    loss: str = "mse",
) -> Problem:
    """A random model whose layers append to the stream, or add to it if `adding`."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / 2

    layers = []
    width = vocab
    for n_heads in heads:
        layer = FoldedLayer(
            normal(n_heads, width, width),
            normal(n_heads, length, width),
            normal(n_heads, length, d_model if adding else d_rel),
        )
        if adding:
            skip = normal(width, d_model) if width != d_model else None
            layer = layer._replace(mix=normal(n_heads, width, d_model), skip=skip)
        layers.append(layer)
        width = layer.d_out
    return Problem(
        layers,
        normal(width, vocab),
        torch.randint(vocab, (batch, positions), generator=generator),
        torch.rand(batch, queries, vocab, generator=generator),
        loss,
    )


def outputs_by_definition(layers: list[FoldedLayer], unembedding: Tensor, tokens: Tensor) -> Tensor:
    """Outputs at all positions, straight from the definition of a folded layer."""
    stream = torch.nn.functional.one_hot(tokens.long(), layers[0].d_in).double()
    for layer in layers:
        by_head = stream[:, :, None].expand(-1, -1, layer.n_heads, -1)
        queries = torch.einsum("bid,hde->bihe", stream, layer.M)
        content, position = eager_relative_attention(
            queries, by_head, by_head, by_head, layer.keys, layer.values
        )
        if layer.mix is None:
            stream = torch.cat([stream, torch.cat([content, position], -1).flatten(2)], -1)
        else:
            kept = stream if layer.skip is None else stream @ layer.skip
            mixed = torch.einsum("bihd,hde->bie", content, layer.mix)
            stream = kept + mixed + position.sum(2)
    return stream @ unembedding


def as_leaves(given: Problem, convert: Callable[[Tensor], Tensor]) -> Problem:
    """The same problem with parameters that gradients can be taken of."""

    def leaf(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else convert(tensor.detach()).requires_grad_()

    layers = [FoldedLayer._make(map(leaf, layer)) for layer in given.layers]
    unembedding = leaf(given.unembedding)
    assert unembedding is not None
    return replace(given, layers=layers, unembedding=unembedding)


def compare(make: Callable[[], Problem]) -> float:
    """Outputs, loss and gradients of the kernel against the definition in float64."""
    given = make()
    exact = as_leaves(given, Tensor.double)
    expected = outputs_by_definition(exact.layers, exact.unembedding, exact.tokens)
    queries = given.targets.shape[1]
    wanted = loss_of_outputs(expected[:, -queries:], given.targets.double(), given.loss)
    results = []
    references = []
    for last_only in (False, True):
        results.append(fused_outputs(given.layers, given.unembedding, given.tokens, last_only))
        references.append(expected[:, -1:] if last_only else expected)
    for kept_bytes in (step.KEPT_BYTES, 0):
        before, step.KEPT_BYTES = step.KEPT_BYTES, kept_bytes
        leaves = as_leaves(given, lambda tensor: tensor)
        loss = fused_loss(
            leaves.layers, leaves.unembedding, given.tokens, given.targets, given.loss
        )
        step.KEPT_BYTES = before
        results += [loss, *torch.autograd.grad(loss, leaves.parameters)]
        gradients = torch.autograd.grad(wanted, exact.parameters, retain_graph=True)
        references += [wanted, *gradients]
    return worst_error(results, references)


def call(make: Callable[[], Problem]) -> float:
    """The loss alone, of a problem that must be refused."""
    given = make()
    fused_loss(given.layers, given.unembedding, given.tokens, given.targets, given.loss)
    return 0.0


def call_outputs(make: Callable[[], Problem]) -> float:
    """The outputs alone, of a problem that must be refused."""
    given = make()
    fused_outputs(given.layers, given.unembedding, given.tokens, last_only=False)
    return 0.0


def changed(make: Callable[[], Problem] = problem, **changes: Callable[[Any], Any]) -> Problem:
    """A problem with some arguments changed."""
    given = make()
    new = {name: change(getattr(given, name)) for name, change in changes.items()}
    return replace(given, **new)


def each_parameter(change: Callable[[Tensor], Tensor], adding: bool) -> Problem:
    """A problem with all parameters changed."""
    given = problem(adding=adding)
    layers = [
        FoldedLayer._make(None if tensor is None else change(tensor) for tensor in layer)
        for layer in given.layers
    ]
    return replace(given, layers=layers, unembedding=change(given.unembedding))


def in_layer(
    index: int, make: Callable[[], Problem] = problem, **changes: Callable[[Any], Any]
) -> Problem:
    """A problem with some tensors of one layer changed."""
    given = make()
    layer = given.layers[index]
    new = {name: change(getattr(layer, name)) for name, change in changes.items()}
    layers = [*given.layers]
    layers[index] = layer._replace(**new)
    return replace(given, layers=layers)


def shorter(axis: int) -> Callable[[Tensor], Tensor]:
    """A change that leaves out the last entries of an axis."""
    return lambda tensor: tensor.narrow(axis, 0, tensor.shape[axis] - 1).clone()


def filled(value: int) -> Callable[[Tensor], Tensor]:
    """A change of the last token alone."""

    def change(tokens: Tensor) -> Tensor:
        tokens[-1, -1] = value
        return tokens

    return change


adding_problem = partial(problem, adding=True)
RIGHT: dict[str, Callable[[], Problem]] = {
    "one of everything": partial(
        problem, batch=1, positions=1, vocab=1, heads=(1,), d_rel=1, length=1
    ),
    "one layer": partial(problem, heads=(2,)),
    "three layers": partial(problem, heads=(1, 3, 1)),
    "many sequences": partial(problem, batch=65),
    "cross-entropy": partial(problem, loss="cross-entropy", queries=6),
    "adding layers": adding_problem,
    "adding layers without skip": partial(adding_problem, d_model=5),
    "adding layers, cross-entropy": partial(adding_problem, loss="cross-entropy", queries=6),
    "long tables": partial(problem, length=40),
    "smallest tokens": partial(changed, tokens=torch.zeros_like),
    "largest tokens": partial(changed, tokens=lambda x: torch.full_like(x, 4)),
    "transposed tokens": partial(changed, tokens=transposed),
    "repeated tokens": partial(changed, tokens=lambda x: x[:1].expand(3, -1)),
    "every other token": partial(changed, tokens=lambda x: x.repeat_interleave(2, 1)[:, ::2]),
    "targets with gaps": partial(changed, targets=with_gaps),
    "negated targets": partial(changed, targets=negated_view),
}
for kind in (torch.uint8, torch.int16, torch.int32):
    RIGHT[f"tokens as {kind}"] = partial(changed, tokens=lambda x, kind=kind: x.to(kind))
for kind in (torch.float16, torch.float64):
    RIGHT[f"targets as {kind}"] = partial(changed, targets=lambda x, kind=kind: x.to(kind))
for width in (7, 8, 9, 17):
    RIGHT[f"{width} kinds of token"] = partial(problem, vocab=width)
    RIGHT[f"position values of width {width}"] = partial(problem, d_rel=width)
    RIGHT[f"a stream of width {width}"] = partial(adding_problem, d_model=width)
for size in (1, 2, 4, 5, 8, 17, 33):
    for title, queries in {"last": 1, "all but one": max(1, size - 1), "all": size}.items():
        RIGHT[f"{size} positions, {title}"] = partial(
            problem, positions=size, queries=queries, length=size
        )
for adding in (False, True):
    for change in (with_gaps, transposed, negated_view):
        title = "added" if adding else "appended"
        RIGHT[f"{change.__name__}, {title}"] = partial(each_parameter, change, adding)

TOKEN_RANGE = r"tokens: expected values in 0\.\.4, got values in"
WRONG: dict[str, tuple[Callable[[], Problem], str]] = {
    "no sequences": (partial(problem, batch=0), "tokens: expected .* no empty axis"),
    "no positions": (partial(problem, positions=0), "tokens: expected .* no empty axis"),
    "too many positions": (partial(problem, length=5), "tokens: expected at most the 5 rows"),
    "tokens of one axis": (partial(changed, tokens=torch.ravel), r"tokens: expected \[batch, pos"),
    "tokens as numbers": (partial(changed, tokens=Tensor.float), "tokens: expected an integer"),
    "tokens as truth values": (partial(changed, tokens=Tensor.bool), "tokens: expected an integer"),
    "tokens without memory": (partial(changed, tokens=lambda x: x.to("meta")), "on the meta"),
    "no layers": (partial(changed, layers=lambda x: []), "layers: expected at least one"),
    "layers in the wrong order": (partial(changed, layers=lambda x: x[::-1]), "layers.1..M: exp"),
    "a layer too many": (partial(changed, layers=lambda x: [*x, x[0]]), "layers.2..M: expected"),
    "a layer too few": (partial(changed, layers=lambda x: x[:1]), "unembedding: expected"),
    "other table lengths": (
        partial(in_layer, 1, keys=shorter(1), values=shorter(1)),
        r"layers\[1\].keys: expected",
    ),
    "skip without mix": (
        partial(in_layer, 0, skip=lambda _: torch.zeros(5, 5)),
        r"layers\[0\].skip: expected None",
    ),
    "mix without skip": (
        partial(in_layer, 0, adding_problem, skip=lambda _: None),
        r"layers\[0\].skip: expected a tensor, because .* from 5 to 6",
    ),
    "narrow mix": (partial(in_layer, 0, adding_problem, mix=shorter(2)), "mix: expected"),
    "short mix": (partial(in_layer, 0, adding_problem, mix=shorter(1)), "mix: expected"),
    "mix without axes": (partial(in_layer, 0, adding_problem, mix=Tensor.sum), "mix: expected"),
    "short skip": (partial(in_layer, 0, adding_problem, skip=shorter(0)), "skip: expected"),
    "M without axes": (partial(in_layer, 1, M=Tensor.sum), r"layers\[1\].M: expected"),
    "first M without axes": (partial(in_layer, 0, M=Tensor.sum), "M and keys: expected"),
    "values without axes": (partial(in_layer, 1, values=Tensor.sum), "values: expected"),
    "empty values": (partial(problem, d_rel=0), r"layers\[0\].values: .* no empty axis"),
    "short unembedding": (partial(changed, unembedding=shorter(0)), "unembedding: expected"),
    "an unembedding of one axis": (partial(changed, unembedding=torch.ravel), "unembedding: exp"),
    "a double unembedding": (partial(changed, unembedding=Tensor.double), "got float64"),
    "fewer targets": (partial(changed, targets=shorter(0)), "targets: expected"),
    "narrow targets": (partial(changed, targets=shorter(2)), "targets: expected"),
    "targets of two axes": (partial(changed, targets=lambda x: x[:, 0]), "targets: expected"),
    "no targets": (partial(problem, queries=0), "targets: expected .* no empty axis"),
    "more targets than positions": (
        partial(problem, queries=7),
        "queries: expected at most the 6 positions",
    ),
    "another loss": (partial(problem, loss="hinge"), "loss: expected one of"),
}
for name in ("M", "keys", "values"):
    for kind in (torch.float64, torch.float16):
        WRONG[f"{name} as {kind}"] = (
            partial(in_layer, 1, **{name: lambda x, kind=kind: x.to(kind)}),
            rf"layers\[1\].{name}: expected float32",
        )
    WRONG[f"{name} of fewer heads"] = (partial(in_layer, 1, **{name: shorter(0)}), "expected")
    WRONG[f"{name} with shorter rows"] = (partial(in_layer, 1, **{name: shorter(1)}), "expected")
    WRONG[f"{name} without memory"] = (
        partial(in_layer, 1, **{name: lambda x: x.to("meta")}),
        "on the meta",
    )
    WRONG[f"sparse {name}"] = (partial(in_layer, 1, **{name: Tensor.to_sparse}), "sparse_coo")
BAD_TOKENS = {
    f"token {value}": (partial(changed, tokens=filled(value)), TOKEN_RANGE)
    for value in (-1, 5, 8, 2**31, 2**40, -(2**63), 2**63 - 1)
}

STEP_CASES = (
    *(Case(f"step: {name}", partial(compare, make)) for name, make in RIGHT.items()),
    *(
        Case(f"step refuses: {name}", partial(call, make), refusal)
        for name, (make, refusal) in (WRONG | BAD_TOKENS).items()
    ),
    *(
        Case(f"outputs refuse: {name}", partial(call_outputs, make), refusal)
        for name, (make, refusal) in BAD_TOKENS.items()
    ),
)
