"""The two-step construction next to given predictions: its four constants, and how well each is
known."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64
from scipy.optimize import minimize
from torch import Tensor

from mtdinterp.estimators.reweighted import TwoStepConstants, reweight
from mtdinterp.fitting.descent import fit_several_steps
from mtdinterp.fitting.evidence import Evidence
from mtdinterp.native.threads import torch_on_one_thread

RESOLUTION = 1e-8
"""Differences of a mean divergence below this are not told apart: float32 predictions and a fit's
end are no finer."""


@torch_on_one_thread()
@torch.enable_grad()
def fit_two_step(
    evidence: Evidence, wanted: Float64[Tensor, "batch vocab"], beta: float | None = None
) -> TwoStepConstants:
    """β₁, a, c₁, c₂ of the two-step construction that is nearest to the wanted predictions.

    `beta` is that of two-step mirror descent, for the scale; without it one is fitted. Two-step
    mirror descent at rate η has β₁ = c₁ = η·m·N, and c₂ about the same: the re-weighted average
    stands for the second gradient, whose mean size is that of the first. exp(-a·x) has the slope of
    1/x at x = 1/m for a = m. The landscape is a long curved valley: several starts on a few
    sequences find its floor, all sequences then settle where along it.
    """
    if beta is None:
        # A model far from mirror descent may have next to none: that would be no scale to search
        # on.
        beta = max(fit_several_steps(evidence, wanted, steps=2), 0.05 * evidence.length)
    starts = [
        (1.0, 1.0, 1.0, 1.0),
        (1.0, 2.0, 0.5, 1.5),
        (1.5, 1.0, 0.3, 2.0),
        (0.7, 3.0, 0.2, 2.5),
    ]
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
    """The divergence reached and where, in multiples of `unit`: quasi-Newton with exact
    gradients."""

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        scaled = torch.tensor(x, dtype=torch.float64, requires_grad=True)
        weights = reweight(evidence.responsibilities, scaled * torch.from_numpy(unit))
        loss = evidence.divergence(wanted, weights).mean()
        (gradient,) = torch.autograd.grad(loss, scaled)
        return loss.item(), gradient.numpy()

    # The scale makes the convergence test relative: a loss of 1e-7 against two-step MD still
    # matters.
    size = max(value_and_gradient(start)[0], 1e-300)
    result = minimize(
        lambda x: tuple(part / size for part in value_and_gradient(x)),
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-3, 20), (0, 50), (-20, 50), (-20, 50)],
        options={"maxiter": 500, "ftol": 1e-10, "gtol": 1e-7},
    )
    return result.fun * size, result.x


@dataclass(frozen=True)
class Combination:
    """A combination of constants, each divided by its natural size, and how well it is known."""

    coefficients: dict[str, float]
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
) -> tuple[dict[str, float], tuple[Combination, ...]]:
    """Standard errors of the four fitted constants, and the combinations of them from best to worst
    known.

    The spread over sequences of the divergence's gradient through its curvature (a sandwich), and
    on top of it what lies within `RESOLUTION` of the minimum: an exact fit has no spread, but still
    a valley.
    """
    unit = two_step_unit(
        evidence, max(abs(constants.beta_mean) + abs(constants.beta_reweighted), 1e-6) / 2
    )
    scale = torch.from_numpy(unit)

    def each(x: Tensor) -> Tensor:
        return evidence.divergence(given, reweight(evidence.responsibilities, x * scale))

    here = torch.tensor(constants, dtype=torch.float64) / scale
    step = 1e-5 * torch.eye(len(here), dtype=torch.float64)
    jacobian = torch.stack(
        [(each(here + shift) - each(here - shift)) / 2e-5 for shift in step], dim=1
    )
    curvature = torch.autograd.functional.hessian(lambda x: each(x).mean(), here)
    values, vectors = torch.linalg.eigh((curvature + curvature.T) / 2)
    inverse = vectors @ torch.diag(1 / values.clamp_min(1e-9)) @ vectors.T
    spread = jacobian.T @ jacobian / len(jacobian) ** 2
    covariance = inverse @ spread @ inverse + 2 * RESOLUTION * inverse
    variances, directions = torch.linalg.eigh(covariance)
    names = TwoStepConstants._fields
    combinations = tuple(
        Combination(
            dict(zip(names, direction.tolist(), strict=True)),
            float(direction @ here),
            float(variance) ** 0.5,
        )
        for variance, direction in zip(variances.clamp_min(0), directions.T, strict=True)
    )
    errors = (covariance.diagonal().clamp_min(0).sqrt() * scale).tolist()
    return dict(zip(names, errors, strict=True)), combinations
