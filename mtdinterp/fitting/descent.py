"""Mirror descent next to given predictions: the rate that explains them, and the rates it ought to
have."""

import math

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.estimators.mirror import descend, learning_rate_from_beta
from mtdinterp.estimators.tuning import BETA_GRID, minimise_on_grid, tune_learning_rate
from mtdinterp.fitting.evidence import Evidence
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.task import MTDTask
from mtdinterp.theory import theory_beta


def one_step_weights(evidence: Evidence, beta: float) -> Float64[Tensor, "batch lag"]:
    """softmax(β·Γ)."""
    return (beta * evidence.mean_responsibilities).softmax(-1)


def several_steps_weights(
    evidence: Evidence, beta: float, steps: int
) -> Float64[Tensor, "batch lag"]:
    """So many steps of mirror descent at the rate that belongs to β."""
    rate = learning_rate_from_beta(beta, evidence.task.order, evidence.length)
    return descend(evidence.likelihoods, rate, steps)


@torch_on_one_thread()
def fit_beta(evidence: Evidence, given: Float64[Tensor, "batch vocab"]) -> float:
    """β of the one-step mirror descent that is nearest to the given predictions."""

    def divergence(beta: float) -> float:
        return evidence.divergence(given, one_step_weights(evidence, beta)).mean().item()

    beta, reached = minimise_on_grid(divergence, BETA_GRID, "beta", edges=True)
    if beta > BETA_GRID[0]:
        return beta
    # Next to none: perhaps it is negative, a model that prefers what explains least.
    against, other = minimise_on_grid(lambda size: divergence(-size), BETA_GRID, "beta", edges=True)
    return -against if other < reached and against > BETA_GRID[0] else 0.0


def fit_several_steps(
    evidence: Evidence, given: Float64[Tensor, "batch vocab"], steps: int
) -> float:
    """The same of so many steps, never below the smallest β of the grid."""

    def divergence(beta: float) -> float:
        return (
            evidence.divergence(given, several_steps_weights(evidence, beta, steps)).mean().item()
        )

    return minimise_on_grid(divergence, BETA_GRID[::2], "beta", 1e-3, edges=True)[0]


def optimal_beta(task: MTDTask, length: int) -> float:
    """β of one-step mirror descent tuned to the truth; not a number where there is nothing to
    tune."""
    try:
        return tune_learning_rate(task, length).beta
    except ValueError:  # one lag, equal rows, or weights that hardly vary
        return math.nan


def usual_beta(task: MTDTask, length: int) -> float:
    """The optimum, or where there is none something of its size."""
    beta = optimal_beta(task, length)
    return 10.0 if math.isnan(beta) else beta


def beta_of_theory(task: MTDTask, length: int) -> float:
    """β at which one step agrees with the posterior mean to first order; not a number where no β
    does."""
    if isinstance(task.concentration, tuple):
        return math.nan
    return theory_beta(task.order, length, task.concentration)
