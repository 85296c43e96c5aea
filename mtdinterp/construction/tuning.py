"""Constants of the five-layer construction: fitted to the truth, or to two-step mirror descent itself.

The two targets give different constants. Against the truth the construction is an estimator of its own,
often a little better than two-step mirror descent, and its four constants are poorly identified; against
two-step mirror descent it shows how closely attention can follow that algorithm.
"""

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import minimize
from torch import Tensor

from mtdinterp.checks import check_count, check_option
from mtdinterp.estimators.likelihood import responsibilities
from mtdinterp.estimators.mirror import mirror_descent
from mtdinterp.estimators.reweighted import TwoStepConstants, reweight
from mtdinterp.estimators.tuning import tune_learning_rate
from mtdinterp.metrics import kl_divergence
from mtdinterp.task import MTDTask, predict_next

TARGETS = ("truth", "two_step")


def tune_two_step(
    task: MTDTask, length: int, target: str = "truth", seed: int = 0, n_sequences: int = 5000
) -> TwoStepConstants:
    """The four constants that minimise the mean KL(target ‖ construction), over sampled sequences."""
    check_option("target", target, TARGETS)
    data = task.sample(check_count("n_sequences", n_sequences), length, seed)
    # The same rate that anyone gets who tunes two-step mirror descent for this task and seed.
    two_step = tune_learning_rate(task, length, steps=2, seed=seed)
    if target == "truth":
        wanted = data.next_probs
    else:
        weights = mirror_descent(task.transition, data.tokens, task.order, two_step.learning_rate, steps=2)
        wanted = predict_next(task.transition, data.tokens, weights)
    gamma = responsibilities(task.transition, data.tokens, task.order)
    rows = task.transition[data.tokens[:, -task.order :].flip(-1)]
    # Two-step mirror descent at rate η has β₁ = c₁ = η·m·N, and c₂ about the same: the re-weighted average
    # stands for the second gradient, whose mean size is that of the first. exp(-a·x) has the slope of
    # 1/x at x = 1/m for a = m. The landscape is a long curved valley: several starts on a few
    # sequences find its floor, all sequences then settle where along it.
    starts = [(1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 0.5, 1.5), (1.5, 1.0, 0.3, 2.0), (0.7, 3.0, 0.2, 2.5)]
    unit = np.array([two_step.beta, task.order, two_step.beta, two_step.beta])
    few = slice(0, 500)
    fits = [_fit(np.array(start), unit, gamma[few], rows[few], wanted[few]) for start in starts]
    _, best = min(fits, key=lambda fit: fit[0])
    _, polished = _fit(best, unit, gamma, rows, wanted)
    return TwoStepConstants(*(polished * unit).tolist())


def _fit(
    start: np.ndarray,
    unit: np.ndarray,
    gamma: Float64[Tensor, "batch step lag"],
    rows: Float64[Tensor, "batch lag vocab"],
    wanted: Float64[Tensor, "batch vocab"],
) -> tuple[float, np.ndarray]:
    """The loss reached and where, in multiples of `unit`: quasi-Newton with exact gradients."""

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        weights = reweight(gamma, scaled * torch.from_numpy(unit))
        loss = kl_divergence(wanted, torch.einsum("bg,bgv->bv", weights, rows)).mean()
        (gradient,) = torch.autograd.grad(loss, scaled)
        return loss.item(), gradient.numpy()

    # The scale makes the convergence test relative: a loss of 1e-7 against two-step MD still matters.
    size = value_and_gradient(start)[0]
    result = minimize(lambda x: tuple(part / size for part in value_and_gradient(x)), start, jac=True,
                      method="L-BFGS-B", bounds=[(1e-3, 20), (0, 50), (-20, 50), (-20, 50)],
                      options={"maxiter": 500, "ftol": 1e-10, "gtol": 1e-7})
    return result.fun * size, result.x
