"""Mirror descent with the entropy potential: the exponentiated gradient (paper, eq. eg_update).

w ← w·exp(η·∇ℓ(w)), normalised, from uniform weights. At uniform weights ∇ℓ = m·N·Γ, so that the
first step is softmax(β·Γ) with β = η·m·N; β is the unit in which learning rates are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_count, check_number, check_order
from mtdinterp.errors import NotApplicable
from mtdinterp.estimators.base import (
    Constant,
    Constants,
    Estimator,
    check_tunable,
    target_predictions,
)
from mtdinterp.estimators.optimum import Interval
from mtdinterp.estimators.tuning import find_optimum
from mtdinterp.evidence import Evidence, evidence_of, gradient_at
from mtdinterp.metrics import kl_divergence
from mtdinterp.plugins import register_estimator
from mtdinterp.style import Style
from mtdinterp.tasks.base import Task

BETA = Constant("beta", "β", low=0.1, high=2000)
"""Optima were 11 to 52 for T = 64 to 256; the paper's own grid misses them."""
BETA_POINTS = 45
"""Points of the grid on which a tuned β is searched first."""


def beta_from_learning_rate(learning_rate: float, order: int, length: int) -> float:
    """β = η·m·(T-m).

    Args:
        learning_rate: η.
        order: the number of lags m.
        length: tokens per sequence T.

    Returns:
        β.
    """
    check_order(order, length)
    return learning_rate * order * (length - order)


def learning_rate_from_beta(beta: float, order: int, length: int) -> float:
    """The inverse of `beta_from_learning_rate`.

    Args:
        beta: β.
        order: the number of lags m.
        length: tokens per sequence T.

    Returns:
        η = β / (m·(T-m)).
    """
    check_order(order, length)
    return beta / (order * (length - order))


def mirror_descent(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    learning_rate: float,
    steps: int = 1,
) -> Float64[Tensor, "batch lag"]:
    """Weights after `steps` mirror-descent steps from uniform weights.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        learning_rate: η of every step.
        steps: number of steps.

    Returns:
        Weights of every sequence.
    """
    steps = check_count("steps", steps, minimum=0)
    learning_rate = check_number("learning_rate", learning_rate, minimum=0)
    return descend(evidence_of(transition, tokens, order).likelihoods, learning_rate, steps)


def descend(
    likelihoods: Float64[Tensor, "batch step component"], learning_rate: float, steps: int
) -> Float64[Tensor, "batch component"]:
    """Mirror descent from the likelihoods, for callers that try many rates on one batch.

    Args:
        likelihoods: c[t, g] of every sequence.
        learning_rate: η of every step.
        steps: number of steps.

    Returns:
        Weights of every sequence.
    """
    batch_size, _, n_components = likelihoods.shape
    # Weights are kept as logits: a product of exponentials would overflow, a sum does not.
    logits = torch.zeros(batch_size, n_components, dtype=torch.float64)
    for _ in range(steps):
        logits = logits + learning_rate * gradient_at(likelihoods, logits.softmax(-1))
        logits = logits - logits.max(-1, keepdim=True).values
    return logits.softmax(-1)


def theory_beta(n_components: int, n_steps: int, concentration: float = 1.0) -> float:
    """β at which one step agrees with the posterior mean to first order: m·N/(α·m + 1).

    Args:
        n_components: m.
        n_steps: N, the number of observed tokens after the warm-up.
        concentration: α of a symmetric Dirichlet prior.

    Returns:
        β.
    """
    return n_components * n_steps / (concentration * n_components + 1)


class MirrorDescent(Estimator):
    """`steps` mirror-descent steps at the learning rate that corresponds to β."""

    constants = (BETA,)
    grid_points = 23

    def __init__(self, steps: int, style: Style) -> None:
        """
        Args:
            steps: number of steps.
            style: how figures draw it.
        """
        self.steps = steps
        self.name = f"mirror_descent_{steps}"
        self.label = f"{steps} steps of mirror descent"
        self.rank = 20 + steps
        self.style = style

    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        rate = constants["beta"] / (evidence.n_components * evidence.n_steps)
        return descend(evidence.likelihoods, rate, self.steps)

    def derived(self, evidence: Evidence, constants: Constants) -> Constants:
        return learning_rate_of(evidence, constants)


def learning_rate_of(evidence: Evidence, constants: Constants) -> Constants:
    """The learning rate η = β/(m·N) that corresponds to β, shown next to it in results."""
    rate = constants["beta"] / (evidence.n_components * evidence.n_steps)
    return {"learning_rate": rate}


for _steps, _style in {
    2: Style("#2563eb", "v", "-."),
    3: Style("#3b82f6", "<", "-."),
    4: Style("#60a5fa", ">", "-."),
    5: Style("#93c5fd", "p", "-."),
}.items():
    register_estimator(MirrorDescent(_steps, _style))


@register_estimator
class OneStepTheory(Estimator):
    """One step at the rate where it agrees with the posterior mean to first order."""

    name, label = "one_step_theory", "one step of mirror descent at the first-order rate"
    rank = 11
    style = Style("#0891b2", "v", ":")

    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        beta = first_order_beta(evidence)
        return (beta * evidence.mean_responsibilities).softmax(-1)

    def derived(self, evidence: Evidence, constants: Constants) -> Constants:
        beta = first_order_beta(evidence)
        return {"beta": beta, **learning_rate_of(evidence, {"beta": beta})}


def first_order_beta(evidence: Evidence) -> float:
    """β of first-order theory for the evidence's prior.

    Raises:
        NotApplicable: if the prior has a different concentration for every component.
    """
    if isinstance(evidence.concentration, tuple):
        raise NotApplicable(
            "A prior with one concentration per lag has no learning rate at which one step agrees "
            "with the posterior mean to first order."
        )
    return theory_beta(evidence.n_components, evidence.n_steps, evidence.concentration)


@dataclass(frozen=True)
class TunedRate:
    """The best learning rate, the same as β, and the mean KL(target ‖ prediction) it reaches."""

    learning_rate: float
    beta: float
    """At a flat optimum the geometric middle of the interval, because the minimiser is noise."""
    kl: float
    """The mean KL at `beta`."""
    steps: int
    target: str
    interval: Interval
    """β within one standard error of the optimum; an open end is None (see `optimum`)."""
    flat: bool
    """Whether the sequences cannot decide on β: any β of the interval predicts as well."""

    def beta_text(self) -> str:
        """β with its interval, or that it is flat."""
        return self.interval.text("β", self.beta, self.flat)


def tune_learning_rate(
    task: Task,
    length: int,
    steps: int = 1,
    target: str = "truth",
    seed: int = 0,
    n_sequences: int = 5000,
    grid: Sequence[float] | None = None,
) -> TunedRate:
    """The learning rate of `steps`-step mirror descent with the smallest mean KL to the target.

    Args:
        task: the task to draw sequences from.
        length: tokens per sequence.
        steps: mirror-descent steps.
        target: "truth" (the text of the paper) or "posterior_mean" (its appendix).
        seed: seed for drawing the sequences.
        n_sequences: number of sequences.
        grid: learning rates to search first; by default β from 0.1 to 2000.

    Returns:
        The tuned rate, with the interval of β within one standard error of it. If the sequences
        cannot decide on a rate, the result says so (`flat`).

    Raises:
        NothingToTune: if predictions do not depend on the weights, and so not on the rate.
        OptimumAtEdge: if the best rate is clearly at an end of the grid.
    """
    steps = check_count("steps", steps)
    data = task.sample(check_count("n_sequences", n_sequences), length, seed)
    evidence = task.evidence(data.tokens)
    check_tunable(evidence)
    wanted = target_predictions(evidence, data.next_probs, target)
    scale = evidence.n_components * evidence.n_steps
    rates = BETA.grid(BETA_POINTS) / scale if grid is None else grid

    def divergence(learning_rate: float) -> Float64[Tensor, " batch"]:
        weights = descend(evidence.likelihoods, learning_rate, steps)
        return kl_divergence(wanted, evidence.predict(weights))

    found = find_optimum(divergence, rates, "learning_rate")
    rate = found.middle if found.flat else found.best
    return TunedRate(
        learning_rate=rate,
        beta=rate * scale,
        kl=divergence(rate).mean().item() if found.flat else found.divergence,
        steps=steps,
        target=target,
        interval=found.interval.scaled(scale),
        flat=found.flat,
    )
