"""The estimator of the two-step construction: a second mirror-descent step by re-weighted
averaging.

The second gradient is Σ_t γ_t / (w¹·γ_t), with w¹ the one-step estimate: the responsibilities
again, each divided by how well w¹ explains it. Attention cannot divide, but exp(-a·x) stands for
1/x up to scale: Γ² = Σ_t softmax_t(-a·w¹·γ_t)·γ_t, and the estimate is softmax(c₁·Γ + c₂·Γ²).
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.estimators.likelihood import responsibilities


class TwoStepConstants(NamedTuple):
    """β₁, a, c₁ and c₂ of the two-step construction, in the order `construction.two_step` takes
    them."""

    beta_first: float
    sharpness: float
    beta_mean: float
    beta_reweighted: float


def reweighted_two_step(
    transition: ArrayLike, tokens: ArrayLike, order: int, constants: TwoStepConstants
) -> Float64[Tensor, "batch lag"]:
    """Weights softmax(c₁·Γ + c₂·Γ²) of the two-step construction."""
    values = torch.tensor(constants, dtype=torch.float64)
    return reweight(responsibilities(transition, tokens, order), values)


def reweight(
    gamma: Float64[Tensor, "batch step lag"], constants: Float64[Tensor, "4"]
) -> Float64[Tensor, "batch lag"]:
    """The same from the responsibilities, differentiable in the constants."""
    beta_first, sharpness, beta_mean, beta_reweighted = constants
    mean = gamma.mean(1)
    first_weights = (beta_first * mean).softmax(-1)
    explained = torch.einsum("btg,bg->bt", gamma, first_weights)
    reweighted = torch.einsum("bt,btg->bg", (-sharpness * explained).softmax(-1), gamma)
    return (beta_mean * mean + beta_reweighted * reweighted).softmax(-1)
