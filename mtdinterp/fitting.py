"""Which estimator explains given predictions: every family's constants fitted to them, KL(given ‖ estimator).

The predictions may be a model's or anybody's. Fits are hundreds of small operations, which torch does faster on one
thread. A family is a rule from the evidence of a sequence to mixture weights,
with none, one or four constants; its prediction is Σ_g w_g·π[y_{T-g}].
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float64, Int
from scipy.optimize import minimize
from torch import Tensor

from mtdinterp.estimators import exact_posterior_mean, expectation_maximization, lag_likelihoods
from mtdinterp.estimators.entropic import entropic_map
from mtdinterp.estimators.mirror import descend, learning_rate_from_beta
from mtdinterp.estimators.reweighted import TwoStepConstants, reweight
from mtdinterp.estimators.tuning import BETA_GRID, minimise_on_grid, tune_learning_rate
from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.task import MTDTask
from mtdinterp.theory import theory_beta

RESOLUTION = 1e-8
"""Differences of a mean divergence below this are not told apart: float32 predictions and a fit's end are no finer."""
STRENGTHS = tuple(np.geomspace(0.05, 200, 13))
"""Where the strength of the entropy is looked for first."""
BAYES_TOLERANCE, BAYES_NODES = 1e-5, 200_000

Constants = dict[str, float]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Sequences as the estimators see them."""

    task: MTDTask
    tokens: Int[Tensor, "batch pos"]

    @property
    def length(self) -> int:
        return self.tokens.shape[1]

    @cached_property
    def likelihoods(self) -> Float64[Tensor, "batch step lag"]:
        return lag_likelihoods(self.task.transition, self.tokens, self.task.order)

    @cached_property
    def responsibilities(self) -> Float64[Tensor, "batch step lag"]:
        """γ at positions m..T-1."""
        return self.likelihoods / self.likelihoods.sum(-1, keepdim=True)

    @cached_property
    def mean_responsibilities(self) -> Float64[Tensor, "batch lag"]:
        """Γ."""
        return self.responsibilities.mean(1)

    @cached_property
    def rows(self) -> Float64[Tensor, "batch lag vocab"]:
        """π[y_{T-g}] for every lag g."""
        return self.task.transition[self.tokens[:, -self.task.order :].flip(-1)]

    def predict(self, weights: Float64[Tensor, "batch lag"]) -> Float64[Tensor, "batch vocab"]:
        return torch.einsum("bg,bgv->bv", weights, self.rows)

    def divergence(
        self, given: Float64[Tensor, "batch vocab"], weights: Float64[Tensor, "batch lag"]
    ) -> Float64[Tensor, " batch"]:
        """KL(given ‖ prediction with these weights), both clipped alike: no estimator is infinitely wrong."""
        return kl_divergence(clip_to_distribution(given)[0], clip_to_distribution(self.predict(weights))[0])


@dataclass(frozen=True)
class Family:
    """An estimator with its constants; `fit` finds those that explain given predictions best."""

    constants: tuple[str, ...]
    weights: Callable[[Evidence, Constants], Float64[Tensor, "batch lag"]]
    fit: Callable[[Evidence, Float64[Tensor, "batch vocab"]], Constants]

    @property
    def n_constants(self) -> int:
        return len(self.constants)


def one_step_weights(evidence: Evidence, beta: float) -> Float64[Tensor, "batch lag"]:
    """softmax(β·Γ)."""
    return (beta * evidence.mean_responsibilities).softmax(-1)


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


def explained(
    evidence: Evidence, given: Float64[Tensor, "batch vocab"], weights: Float64[Tensor, "batch lag"]
) -> float:
    """1 - KL(given ‖ prediction with these weights) / KL(given ‖ the token marginal): 0 is no better than that."""
    marginal = clip_to_distribution(evidence.task.stationary)[0].expand_as(given)
    nothing = kl_divergence(clip_to_distribution(given)[0], marginal).mean().item()
    return 1 - evidence.divergence(given, weights).mean().item() / nothing if nothing > 0 else 0.0


def optimal_beta(task: MTDTask, length: int) -> float:
    """β of one-step mirror descent tuned to the truth; not a number where there is nothing to tune."""
    try:
        return tune_learning_rate(task, length).beta
    except ValueError:  # one lag, equal rows, or weights that hardly vary
        return math.nan


def beta_of_theory(task: MTDTask, length: int) -> float:
    """β at which one step agrees with the posterior mean to first order; not a number where no β does."""
    if isinstance(task.concentration, tuple):
        return math.nan
    return theory_beta(task.order, length, task.concentration)


def _rate(evidence: Evidence, beta: float) -> float:
    return learning_rate_from_beta(beta, evidence.task.order, evidence.length)


def _with_rate(evidence: Evidence, beta: float) -> Constants:
    return {"learning_rate": _rate(evidence, beta), "beta": beta}


def _nothing_to_fit(evidence: Evidence, given: Tensor) -> Constants:
    return {}


def _descent(steps: int) -> Family:
    def weights(evidence: Evidence, constants: Constants) -> Tensor:
        return descend(evidence.likelihoods, constants["learning_rate"], steps)

    def fit(evidence: Evidence, given: Tensor) -> Constants:
        def divergence(beta: float) -> float:
            return evidence.divergence(given, descend(evidence.likelihoods, _rate(evidence, beta), steps)).mean().item()

        return _with_rate(evidence, minimise_on_grid(divergence, BETA_GRID[::2], "beta", 1e-3, edges=True)[0])

    return Family(("learning_rate",), weights, fit)


def _fit_entropic(evidence: Evidence, given: Tensor) -> Constants:
    def divergence(strength: float) -> float:
        return evidence.divergence(given, _entropic(evidence, {"strength": strength})).mean().item()

    return {"strength": minimise_on_grid(divergence, STRENGTHS, "strength", 1e-2, edges=True)[0]}


def _entropic(evidence: Evidence, constants: Constants) -> Tensor:
    task = evidence.task
    return entropic_map(task.transition, evidence.tokens, task.order, constants["strength"], tolerance=1e-6)


def _bayes(evidence: Evidence, constants: Constants) -> Tensor:
    task = evidence.task
    return exact_posterior_mean(task.transition, evidence.tokens, task.order, task.concentration, BAYES_TOLERANCE,
                                BAYES_NODES)


def _uniform(evidence: Evidence, constants: Constants) -> Tensor:
    return torch.full_like(evidence.mean_responsibilities, 1 / evidence.task.order)


def _maximum_likelihood(evidence: Evidence, constants: Constants) -> Tensor:
    return expectation_maximization(evidence.task.transition, evidence.tokens, evidence.task.order, tolerance=1e-6)


def _fit_construction(evidence: Evidence, given: Tensor) -> Constants:
    return fit_two_step(evidence, given)._asdict()


FAMILIES: dict[str, Family] = {
    "uniform": Family((), _uniform, _nothing_to_fit),
    "one_step": Family(
        ("learning_rate",),
        lambda evidence, constants: one_step_weights(evidence, constants["beta"]),
        lambda evidence, given: _with_rate(evidence, fit_beta(evidence, given)),
    ),
    "one_step_theory": Family(
        (),
        lambda evidence, _: one_step_weights(evidence, beta_of_theory(evidence.task, evidence.length)),
        lambda evidence, _: _with_rate(evidence, beta_of_theory(evidence.task, evidence.length)),
    ),
    **{f"mirror_descent_{steps}": _descent(steps) for steps in (2, 3, 4, 5)},
    "maximum_likelihood": Family((), _maximum_likelihood, _nothing_to_fit),
    "entropic": Family(("strength",), _entropic, _fit_entropic),
    "exact_bayes": Family((), _bayes, _nothing_to_fit),
    "two_step_construction": Family(
        TwoStepConstants._fields,
        lambda evidence, constants: reweight(evidence.responsibilities, torch.tensor(
            [constants[name] for name in TwoStepConstants._fields], dtype=torch.float64)),
        _fit_construction,
    ),
}
"""Every estimator that a model is compared with, by the name it has everywhere."""


@torch_on_one_thread()
@torch.enable_grad()
def fit_two_step(
    evidence: Evidence, wanted: Float64[Tensor, "batch vocab"], beta: float | None = None
) -> TwoStepConstants:
    """β₁, a, c₁, c₂ of the five-layer construction that is nearest to the wanted predictions.

    `beta` is that of two-step mirror descent, for the scale; without it one is fitted. Two-step mirror descent at
    rate η has β₁ = c₁ = η·m·N, and c₂ about the same: the re-weighted average stands for the second gradient, whose
    mean size is that of the first. exp(-a·x) has the slope of 1/x at x = 1/m for a = m. The landscape is a long
    curved valley: several starts on a few sequences find its floor, all sequences then settle where along it.
    """
    if beta is None:
        # A model far from mirror descent may have next to none: that would be no scale to search on.
        beta = max(FAMILIES["mirror_descent_2"].fit(evidence, wanted)["beta"], 0.05 * evidence.length)
    starts = [(1.0, 1.0, 1.0, 1.0), (1.0, 2.0, 0.5, 1.5), (1.5, 1.0, 0.3, 2.0), (0.7, 3.0, 0.2, 2.5)]
    unit = two_step_unit(evidence, beta)
    few = Evidence(evidence.task, evidence.tokens[:500])
    fits = [_descend_to(np.array(start), unit, few, wanted[:500]) for start in starts]
    _, best = min(fits, key=lambda fit: fit[0])
    _, polished = _descend_to(best, unit, evidence, wanted)
    return TwoStepConstants(*(polished * unit).tolist())


def two_step_unit(evidence: Evidence, beta: float) -> np.ndarray:
    """The natural size of each constant."""
    return np.array([beta, evidence.task.order, beta, beta])


def _descend_to(
    start: np.ndarray, unit: np.ndarray, evidence: Evidence, wanted: Float64[Tensor, "batch vocab"]
) -> tuple[float, np.ndarray]:
    """The divergence reached and where, in multiples of `unit`: quasi-Newton with exact gradients."""
    gamma, target = evidence.responsibilities, clip_to_distribution(wanted)[0]

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        weights = reweight(gamma, scaled * torch.from_numpy(unit))
        loss = kl_divergence(target, clip_to_distribution(evidence.predict(weights))[0]).mean()
        (gradient,) = torch.autograd.grad(loss, scaled)
        return loss.item(), gradient.numpy()

    # The scale makes the convergence test relative: a loss of 1e-7 against two-step MD still matters.
    size = max(value_and_gradient(start)[0], 1e-300)
    result = minimize(lambda x: tuple(part / size for part in value_and_gradient(x)), start, jac=True,
                      method="L-BFGS-B", bounds=[(1e-3, 20), (0, 50), (-20, 50), (-20, 50)],
                      options={"maxiter": 500, "ftol": 1e-10, "gtol": 1e-7})
    return result.fun * size, result.x


@dataclass(frozen=True)
class Combination:
    """A combination of constants, each divided by its natural size, and how well it is known."""

    coefficients: Constants
    value: float
    stderr: float

    @property
    def identified(self) -> bool:
        """Known to a tenth of the constants' natural size."""
        return self.stderr < 0.1


@torch_on_one_thread()
@torch.enable_grad()
def identify_combinations(
    evidence: Evidence, given: Float64[Tensor, "batch vocab"], constants: TwoStepConstants
) -> tuple[Constants, tuple[Combination, ...]]:
    """Standard errors of the four fitted constants, and the combinations of them from best to worst known.

    The spread over sequences of the divergence's gradient through its curvature (a sandwich), and on top of it what
    lies within `RESOLUTION` of the minimum: an exact fit has no spread, but still a valley.
    """
    unit = two_step_unit(evidence, max(abs(constants.beta_mean) + abs(constants.beta_reweighted), 1e-6) / 2)
    scale, target = torch.from_numpy(unit), clip_to_distribution(given)[0]

    def each(x: Tensor) -> Tensor:
        weights = reweight(evidence.responsibilities, x * scale)
        return kl_divergence(target, clip_to_distribution(evidence.predict(weights))[0])

    here = torch.tensor(constants, dtype=torch.float64) / scale
    step = 1e-5 * torch.eye(len(here), dtype=torch.float64)
    jacobian = torch.stack([(each(here + shift) - each(here - shift)) / 2e-5 for shift in step], dim=1)
    curvature = torch.autograd.functional.hessian(lambda x: each(x).mean(), here)
    values, vectors = torch.linalg.eigh((curvature + curvature.T) / 2)
    inverse = vectors @ torch.diag(1 / values.clamp_min(1e-9)) @ vectors.T
    spread = jacobian.T @ jacobian / len(jacobian) ** 2
    covariance = inverse @ spread @ inverse + 2 * RESOLUTION * inverse
    variances, directions = torch.linalg.eigh(covariance)
    names = TwoStepConstants._fields
    combinations = tuple(
        Combination(dict(zip(names, direction.tolist(), strict=True)), float(direction @ here), float(variance) ** 0.5)
        for variance, direction in zip(variances.clamp_min(0), directions.T, strict=True)
    )
    errors = (covariance.diagonal().clamp_min(0).sqrt() * scale).tolist()
    return dict(zip(names, errors, strict=True)), combinations


def bootstrap_interval(
    values: Float64[Tensor, " batch"], level: float = 0.95, n_resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean under resampling of sequences."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (n_resamples, len(values)), generator=generator)
    low, high = values[drawn].mean(1).quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64))
    return low.item(), high.item()
