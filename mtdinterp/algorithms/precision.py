"""How well fitted constants are known: standard errors, and which combinations are determined."""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.algorithms.base import Algorithm
from mtdinterp.criteria import IDENTIFIED_TO, RESOLUTION
from mtdinterp.estimators.base import Constants
from mtdinterp.evidence import Evidence
from mtdinterp.native.threads import torch_on_one_thread


@dataclass(frozen=True)
class Combination:
    """A combination of constants, each divided by its natural size, and how well it is known."""

    coefficients: Constants
    value: float
    stderr: float

    @property
    def identified(self) -> bool:
        """Whether it is known to a small part of the constants' natural size."""
        return self.stderr < IDENTIFIED_TO


@dataclass(frozen=True)
class Precision:
    """Standard errors of fitted constants, and their combinations from best to worst known."""

    stderrs: Constants
    combinations: tuple[Combination, ...]

    @property
    def identified(self) -> bool:
        """Whether the predictions determine every combination of the constants."""
        return all(combination.identified for combination in self.combinations)


@torch_on_one_thread()
@torch.enable_grad()
def precision_of(
    algorithm: Algorithm,
    evidence: Evidence,
    predictions: Float64[Tensor, "batch vocab"],
    constants: Constants,
) -> Precision:
    """How well the predictions determine the constants fitted to them.

    The covariance is a sandwich: the spread over sequences of the divergence's gradient, through
    the inverse of its curvature. With several constants, the region within `RESOLUTION` of the
    minimum is added: an exact fit has no spread, but its valley may still be flat.

    Args:
        algorithm: the algorithm that the constants belong to.
        evidence: the evidence of the sequences.
        predictions: the predictions that the constants were fitted to.
        constants: the fitted values.

    Returns:
        Standard errors and combinations.
    """
    names = list(constants)
    sizes = algorithm.natural_sizes(evidence, constants)
    scale = torch.tensor([sizes[name] for name in names], dtype=torch.float64)
    here = torch.tensor(list(constants.values()), dtype=torch.float64) / scale

    def each(x: Float64[Tensor, " constant"]) -> Float64[Tensor, " batch"]:
        values = dict(zip(names, x * scale, strict=True))
        return evidence.divergence(predictions, algorithm.weights(evidence, **values))

    step = 1e-5
    shifts = step * torch.eye(len(here), dtype=torch.float64)
    slopes = [(each(here + shift) - each(here - shift)) / (2 * step) for shift in shifts]
    jacobian = torch.stack(slopes, dim=1)
    curvature = torch.autograd.functional.hessian(lambda x: each(x).mean(), here)
    values, vectors = torch.linalg.eigh((curvature + curvature.T) / 2)
    inverse = vectors @ torch.diag(1 / values.clamp_min(1e-9)) @ vectors.T
    centred = jacobian - jacobian.mean(0)
    spread = centred.T @ centred / len(jacobian) ** 2
    covariance = inverse @ spread @ inverse
    if len(names) > 1:
        covariance = covariance + 2 * RESOLUTION * inverse
    errors = covariance.diagonal().clamp_min(0).sqrt() * scale
    return Precision(
        dict(zip(names, errors.tolist(), strict=True)), _combinations(names, covariance, here)
    )


def _combinations(
    names: list[str],
    covariance: Float64[Tensor, "constant constant"],
    here: Float64[Tensor, " constant"],
) -> tuple[Combination, ...]:
    variances, directions = torch.linalg.eigh(covariance)
    found = []
    for variance, direction in zip(variances.clamp_min(0), directions.T, strict=True):
        coefficients = dict(zip(names, direction.tolist(), strict=True))
        found.append(Combination(coefficients, float(direction @ here), float(variance) ** 0.5))
    return tuple(found)
