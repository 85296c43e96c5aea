"""How far a prediction is from the truth.

A trained model's raw output is not a distribution: it is clipped from below and renormalised first,
and how much that changed is reported next to the score.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

CLIP = 1e-6
NO_LEVEL = 1e-9
"""A mean KL below this is rounding error; ratios to it are not computed."""
ROW_CLIP = 1e-9
"""For an estimate of a matrix: small enough to keep small entries that are real, and large enough
to avoid division by zero.
"""


def kl_divergence(
    truth: Float[Tensor, "*batch vocab"], prediction: Float[Tensor, "*batch vocab"]
) -> Float64[Tensor, "*batch"]:
    """KL(truth ‖ prediction) of each row; infinite where the prediction misses what can happen."""
    p, q = truth.double(), prediction.double()
    return (torch.special.xlogy(p, p) - torch.special.xlogy(p, q)).sum(-1)


def total_variation(
    first: Float[Tensor, "*#batch vocab"], second: Float[Tensor, "*#batch vocab"]
) -> Float[Tensor, "*batch"]:
    """Half of the absolute difference of each row."""
    return 0.5 * (first - second).abs().sum(-1)


def to_distribution(
    raw: Float[Tensor, "*batch vocab"], floor: float = CLIP
) -> Float64[Tensor, "*batch vocab"]:
    """A raw output clipped from below and normalised."""
    clipped = raw.double().clamp_min(floor)
    return clipped / clipped.sum(-1, keepdim=True)


def clip_to_distribution(
    raw: Float[Tensor, "*batch vocab"], floor: float = CLIP
) -> tuple[Float64[Tensor, "*batch vocab"], Float64[Tensor, "*batch"]]:
    """A raw output as a distribution, and the total variation between the two."""
    clipped = to_distribution(raw, floor)
    return clipped, total_variation(clipped, raw.double())


def row_kl(
    transition: Float[Tensor, "vocab vocab"],
    estimate: Float[Tensor, "vocab vocab"],
    floor: float = ROW_CLIP,
) -> float:
    """Mean over rows a of KL(transition[a] ‖ estimate[a]).

    Args:
        transition: the true matrix.
        estimate: clipped to distributions first.
        floor: entries of the estimate are clipped here.

    Returns:
        The mean; if some entry is clipped, it depends on the floor.
    """
    return kl_divergence(transition, to_distribution(estimate, floor)).mean().item()


@dataclass(frozen=True)
class Score:
    """Mean KL(truth ‖ prediction) over sequences, its standard error, and the mean clipped mass."""

    kl: float
    stderr: float
    clipped: float


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: float
    stderr: float


def paired_ratio(above: Float64[Tensor, " batch"], below: Float64[Tensor, " batch"]) -> Estimate:
    """Ratio of the means of two scores on the same sequences, with its standard error.

    Pairing removes the variance that both scores share, because some sequences are hard for both.
    """
    level = below.mean().item()
    if not level > NO_LEVEL:
        return Estimate(float("nan"), float("nan"))
    value = above.mean().item() / level
    return Estimate(value, (above - value * below).std().item() / len(above) ** 0.5 / level)


def mean_stderr(values: Float64[Tensor, " batch"]) -> float:
    """Standard error of the mean over sequences; NaN for a single one."""
    if len(values) < 2:
        return float("nan")
    return values.std().item() / len(values) ** 0.5


def share_explained(left: Float64[Tensor, " batch"], control: Float64[Tensor, " batch"]) -> float:
    """1 - mean(left)/mean(control): how much of the control's divergence is explained.

    0 if the control leaves nothing to explain.
    """
    total = control.mean().item()
    if not total > NO_LEVEL:
        return 0.0
    return 1 - left.mean().item() / total


def r_squared(
    moved: Float[Tensor, "*shape"], expected: Float[Tensor, "*shape"], least: float = 0.0
) -> float:
    """1 - Σ(moved - expected)² / Σ expected²; NaN if nothing is expected to move.

    Args:
        moved: the change that was measured.
        expected: the change that was expected.
        least: a sum of squares below which nothing counts as expected.

    Returns:
        R² around zero, not around the mean.
    """
    total = expected.double().square().sum().item()
    if not total > least:
        return float("nan")
    return 1 - (moved.double() - expected.double()).square().sum().item() / total


def divergences(
    truth: Float[Tensor, "batch vocab"], raw: Float[Tensor, "batch vocab"]
) -> Float64[Tensor, " batch"]:
    """KL(truth ‖ raw output, clipped to a distribution) for every sequence."""
    return kl_divergence(truth, to_distribution(raw))


def score(truth: Float[Tensor, "batch vocab"], raw: Float[Tensor, "batch vocab"]) -> Score:
    """Score a raw output against the true next-token distribution."""
    prediction, clipped = clip_to_distribution(raw)
    divergence = kl_divergence(truth, prediction)
    return Score(divergence.mean().item(), mean_stderr(divergence), clipped.mean().item())


def bootstrap_interval(
    values: Float64[Tensor, " batch"], level: float = 0.95, n_resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean under resampling of sequences.

    Args:
        values: one value per sequence.
        level: probability that the interval covers the mean.
        n_resamples: how many times sequences are drawn with replacement.
        seed: seed of the draws.

    Returns:
        Lower and upper end.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(values), (n_resamples, len(values)), generator=generator)
    low, high = (
        values[drawn]
        .mean(1)
        .quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64))
    )
    return low.item(), high.item()
