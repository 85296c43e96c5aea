"""Any number of mirror-descent steps by re-weighted averaging: `two_step` continued.

With Γ¹ = Γ, every further step takes the weights so far and averages again, so that positions which
they explain badly count more:

    w^j = softmax(Σ_{i≤j} c_{j,i}·Γ^i),   Γ^{j+1} = Σ_t softmax_t(-a_j·w^j·γ_t)·γ_t,   w = w^k.

Each step reads all averages so far. That makes k(k+1)/2 reads c and k-1 sharpnesses a.
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import minimize
from torch import Tensor

from mtdinterp.algorithms.two_step import fit_two_step
from mtdinterp.checks import check_count
from mtdinterp.estimators.expected_truth import expected_truth
from mtdinterp.estimators.mirror_descent import tune_learning_rate
from mtdinterp.evidence import Evidence
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.tasks.base import Task

SHARPEST, LARGEST_READ = 50.0, 50.0
"""The bounds of a search, in units of m and of β."""
SHARES = (0.0, 0.3, 0.6)
"""How much of the last read a new step starts with on its own average."""


class KStepConstants(NamedTuple):
    """The constants of k steps."""

    sharpness: tuple[float, ...]
    """a_1 to a_{k-1}."""
    reads: tuple[tuple[float, ...], ...]
    """Row j has c_{j,1} to c_{j,j}."""

    @property
    def n_steps(self) -> int:
        """k."""
        return len(self.reads)


def check_constants(constants: KStepConstants) -> KStepConstants:
    """Constants whose sizes fit each other, as plain tuples.

    Args:
        constants: sharpnesses and reads.

    Returns:
        The same.

    Raises:
        ValueError: if there are not k-1 sharpnesses and k rows of 1, 2, …, k reads, all finite.
    """
    sharpness, reads = constants
    sizes = [len(row) for row in reads]
    if not sizes or sizes != list(range(1, len(sizes) + 1)):
        raise ValueError(f"reads: expected rows of 1, 2, 3, … numbers, got rows of {sizes}")
    if len(sharpness) != len(sizes) - 1:
        raise ValueError(
            f"sharpness: expected {len(sizes) - 1} numbers for {len(sizes)} steps, "
            f"got {len(sharpness)}"
        )
    numbers = [*sharpness, *chain.from_iterable(reads)]
    if not np.isfinite(numbers).all():
        raise ValueError("constants: expected finite numbers")
    rows = [tuple(map(float, row)) for row in reads]
    return KStepConstants(tuple(map(float, sharpness)), tuple(rows))


def k_step_weights(
    evidence: Evidence, sharpness: Sequence[float | Tensor], reads: Sequence[Tensor]
) -> Float64[Tensor, "batch component"]:
    """The weights after k steps.

    Args:
        evidence: the evidence of the sequences.
        sharpness: a_1 to a_{k-1}.
        reads: for every step, its reads of all averages so far, [step].

    Returns:
        Weights of every sequence.
    """
    gamma = evidence.responsibilities()
    averages = [evidence.mean_responsibilities]
    for sharp, read in zip(sharpness, reads, strict=False):
        explained = torch.einsum("btg,bg->bt", gamma, _softmax_of(averages, read))
        attention = (-sharp * explained).softmax(-1)
        averages.append(torch.einsum("bt,btg->bg", attention, gamma))
    return _softmax_of(averages, reads[-1])


def _softmax_of(averages: Sequence[Tensor], read: Tensor) -> Float64[Tensor, "batch component"]:
    """softmax(Σ_i c_i·Γ^i)."""
    return torch.einsum("ibg,i->bg", torch.stack(list(averages)), read).softmax(-1)


def predict_k_steps(
    evidence: Evidence, constants: KStepConstants
) -> Float64[Tensor, "batch component"]:
    """The weights after k steps with plain constants."""
    sharpness, reads = check_constants(constants)
    rows = [torch.tensor(row, dtype=torch.float64) for row in reads]
    return k_step_weights(evidence, sharpness, rows)


@torch_on_one_thread()
@torch.enable_grad()
def tune_k_step(
    task: Task, length: int, steps: int, *, seed: int = 0, n_sequences: int = 2000
) -> KStepConstants:
    """The constants with the smallest mean KL(truth ‖ prediction).

    The truth is replaced by its mean given each sequence, which has the same minimum and needs far
    fewer sequences.

    The search for k steps starts from the solution for k-1 steps, which k steps can represent: the
    new average is read with several shares of the last read. Started elsewhere, four steps end in
    local minima.

    Args:
        task: the task to draw sequences from.
        length: tokens per sequence.
        steps: k, at least 1.
        seed: seed for drawing the sequences.
        n_sequences: number of sequences.

    Returns:
        The constants.
    """
    steps = check_count("steps", steps)
    data = task.sample(check_count("n_sequences", n_sequences), length, seed)
    evidence = task.evidence(data.tokens)
    target = expected_truth(evidence, data.next_probs)
    beta = tune_learning_rate(task, length, steps=min(steps, 2), seed=seed).beta
    if steps == 1:
        return KStepConstants((), ((beta,),))
    first = fit_two_step(evidence, target, beta).constants
    found = KStepConstants(
        (first["sharpness"],),
        ((first["beta_first"],), (first["beta_mean"], first["beta_reweighted"])),
    )
    while found.n_steps < steps:
        ends = [_descend(start, evidence, target, beta) for start in _longer(found)]
        _, found = min(ends, key=lambda end: end[0])
    return found


def _longer(known: KStepConstants) -> list[KStepConstants]:
    """Starts with one step more."""
    last = known.reads[-1]
    starts = []
    for share in SHARES:
        kept = tuple((1 - share) * value for value in last)
        row = (*kept, share * sum(last))
        starts.append(KStepConstants((*known.sharpness, known.sharpness[-1]), (*known.reads, row)))
    return starts


def _descend(
    start: KStepConstants, evidence: Evidence, target: Float64[Tensor, "batch vocab"], beta: float
) -> tuple[float, KStepConstants]:
    """The divergence reached from a start by quasi-Newton steps, and where."""
    n_sharp, sizes = len(start.sharpness), [len(row) for row in start.reads]
    unit = np.array([evidence.n_components] * n_sharp + [beta] * sum(sizes))

    def split(flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        sharpness, *reads = flat.split([n_sharp, *sizes])
        return list(sharpness), reads

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = torch.tensor(x * unit, dtype=torch.float64, requires_grad=True)
        weights = k_step_weights(evidence, *split(scaled))
        loss = evidence.divergence(target, weights).mean()
        (gradient,) = torch.autograd.grad(loss, scaled)
        return loss.item(), gradient.numpy() * unit

    flat = np.array([*start.sharpness, *chain.from_iterable(start.reads)])
    size = value_and_gradient(flat / unit)[0]

    def relative(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(x)
        return value / size, gradient / size

    bounds = [(0.0, SHARPEST)] * n_sharp + [(-LARGEST_READ, LARGEST_READ)] * sum(sizes)
    options = {"maxiter": 300, "ftol": 1e-9, "gtol": 1e-6}
    result = minimize(
        relative, flat / unit, jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    sharpness, reads = split(torch.from_numpy(result.x * unit))
    rows = tuple(tuple(row.tolist()) for row in reads)
    return result.fun * size, KStepConstants(tuple(value.item() for value in sharpness), rows)
