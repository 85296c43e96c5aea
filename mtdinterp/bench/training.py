"""Benchmarks of one training step: time against the obvious implementation, and memory."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from mtdinterp.bench.measure import Measurement, interleaved_seconds, peak_megabytes
from mtdinterp.bench.reference import disentangled_forward, standard_forward
from mtdinterp.bench.setting import VOCAB_SIZE, bench_task, eagerly
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    LensTransformer,
    StandardConfig,
    StandardTransformer,
    prediction_loss,
)
from mtdinterp.models.loss import loss_of_outputs
from mtdinterp.native import use_kernels
from mtdinterp.native.kernels import machine_rates
from mtdinterp.native.step import FoldedLayer
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.tasks import Sample

Forward = Callable[[Tensor], Tensor]
"""Outputs at all positions, [batch, pos, vocab], from tokens."""
Rates = tuple[float, float]
"""Fused multiply-adds and exponentials per second."""


@dataclass(frozen=True)
class Problem:
    """One size of training step, with the speed-ups over the reference that the project aims at."""

    architecture: str
    length: int
    batch_size: int
    eager_aim: float | None = None
    fused_aim: float | None = None

    def __str__(self) -> str:
        return f"{self.architecture}, T = {self.length}, batch {self.batch_size}"

    def data(self) -> Sample:
        """The sequences of the step."""
        return bench_task().sample(self.batch_size, self.length, seed=1)


PROBLEMS = (
    Problem("disentangled", 64, 128, eager_aim=2.0, fused_aim=10.0),
    Problem("disentangled", 256, 32, eager_aim=2.0, fused_aim=15.0),
    Problem("standard", 64, 128, fused_aim=5.0),
)
LONG_PROBLEM = Problem("disentangled", 1984, 128)
"""The paper's longest sequences."""
QUICK_LONG_PROBLEM = Problem("disentangled", 496, 32)


def training_step(quick: bool) -> list[Measurement]:
    """Forward and backward with the loss at the last position, against gather-and-einsum.

    The reference computes the outputs at all positions.
    """
    rates = machine_rates() if use_kernels() else None
    lines = []
    for problem in PROBLEMS:
        lines += _step_lines(problem, rates, repeats=5 if quick else 20)
    if rates is not None:
        lines += [
            Measurement("fused multiply-adds", rates[0] / 1e9, "billion/s"),
            Measurement("exponentials", rates[1] / 1e9, "billion/s"),
        ]
    return lines


def long_step(quick: bool) -> list[Measurement]:
    """One step on the paper's longest sequences."""
    problem = QUICK_LONG_PROBLEM if quick else LONG_PROBLEM
    model, _ = _model(problem)
    step = _step(model, problem.data())
    peak = peak_megabytes(step)
    milliseconds = interleaved_seconds({"step": step}, repeats=1)["step"] * 1e3
    memory_name = f"peak memory of the fused step, {problem}"
    return [
        Measurement(f"fused step, {problem}", milliseconds, "ms"),
        Measurement(memory_name, peak, "MB", aim=4000, at_most=True),
    ]


def _step_lines(problem: Problem, rates: Rates | None, repeats: int) -> list[Measurement]:
    """The measurements of one problem."""
    data = problem.data()
    model, forward = _model(problem)
    actions = {
        "reference": _reference_step(model, forward, data),
        "eager": eagerly(_step(model, data)),
        "fused": _step(model, data),
    }
    seconds = interleaved_seconds(actions, repeats)
    lines = []
    for kind in actions:
        lines.append(Measurement(f"{kind} step, {problem}", seconds[kind] * 1e3, "ms"))
    for kind, aim in {"eager": problem.eager_aim, "fused": problem.fused_aim}.items():
        speedup = seconds["reference"] / seconds[kind]
        name = f"{kind} step over reference, {problem}"
        lines.append(Measurement(name, speedup, "× faster", aim))
    if rates is not None:
        least = _least_seconds(model.folded_layers(), problem, rates)
        least_name = f"arithmetic alone at the machine's rates, {problem}"
        ratio_name = f"fused step over arithmetic alone, {problem}"
        lines.append(Measurement(least_name, least * 1e3, "ms"))
        lines.append(Measurement(ratio_name, seconds["fused"] / least, "× slower"))
    for kind, action in actions.items():
        name = f"peak memory of the {kind} step, {problem}"
        lines.append(Measurement(name, peak_megabytes(action), "MB"))
    return lines


def _least_seconds(layers: Sequence[FoldedLayer], problem: Problem, rates: Rates) -> float:
    """The time of one step's multiplications and exponentials at the machine's full rate.

    Counted are the products with attention, forward and backward, over keys that are not in the
    future, and the products with the layers' matrices; the last layer has one query. Nothing is
    recomputed, and one-hot tokens need no gradient.
    """
    length = problem.length
    products = 0
    exponentials = 0
    for index, layer in enumerate(layers):
        n_heads, d_in, _ = layer.M.shape
        d_rel = layer.values.shape[-1]
        is_first = index == 0
        is_last = index == len(layers) - 1
        queries = 1 if is_last else length
        pairs = length if is_last else length * (length + 1) // 2
        # Per pair of query and key: scores by content and by position, content, position.
        forward = 3 * d_in + d_rel
        # The gradients of attention, of queries and of both tables; then of p, keys and values,
        # which the first layer does not need.
        backward = 3 * d_in + 2 * d_rel
        if not is_first:
            backward += 3 * d_in
        # Per query: the matrices of the layer, forward and once or twice backward.
        projections = d_in**2
        if layer.mix is not None:
            projections += d_in * layer.d_out
        passes = 2 if is_first else 3
        products += n_heads * (pairs * (forward + backward) + queries * projections * passes)
        exponentials += n_heads * pairs
    return problem.batch_size * (products / rates[0] + exponentials / rates[1])


def _model(problem: Problem) -> tuple[LensTransformer, Forward]:
    """A fresh model, and its outputs at all positions by the obvious implementation."""
    if problem.architecture == "disentangled":
        config = DisentangledConfig(vocab_size=VOCAB_SIZE, length=problem.length, d_rel=4)
        disentangled = DisentangledTransformer(config)
        return disentangled, lambda tokens: disentangled_forward(disentangled, tokens)
    standard = StandardTransformer(StandardConfig(vocab_size=VOCAB_SIZE, length=problem.length))
    return standard, lambda tokens: standard_forward(standard, tokens)


def _reference_step(model: LensTransformer, forward: Forward, data: Sample) -> Callable[[], None]:
    """Forward and backward pass of the mean squared error at the last position."""
    target = data.next_probs.float()
    parameters = tuple(model.parameters())

    def step() -> None:
        outputs = forward(data.tokens)[:, -1]
        torch.autograd.grad(loss_of_outputs(outputs, target, "mse"), parameters)

    return step


def _step(model: LensTransformer, data: Sample) -> Callable[[], None]:
    """The same by `prediction_loss`, as in training."""
    target = data.next_probs.float()
    parameters = tuple(model.parameters())

    def step() -> None:
        with torch_on_one_thread() if use_kernels() else nullcontext():
            torch.autograd.grad(prediction_loss(model, data.tokens, target), parameters)

    return step
