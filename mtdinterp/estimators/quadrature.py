"""Gauss quadrature on the probability simplex against a Dirichlet density.

Break the stick: w_1 = b_1, w_2 = (1-b_1)·b_2, …; under Dirichlet(α) the b_j are independent
Beta(α_j, α_{j+1} + … + α_m). A product of one-dimensional Gauss-Jacobi rules in the b_j (the conical
product rule) integrates every polynomial in w of degree up to 2n-1 exactly with n nodes a dimension.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Float64
from scipy.special import roots_jacobi
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SimplexRule:
    """Points on the simplex and the logarithm of their weights, which sum to one."""

    points: Float64[Tensor, "node lag"]
    log_weights: Float64[Tensor, " node"]


@lru_cache(maxsize=64)
def simplex_rule(concentration: tuple[float, ...], nodes: int) -> SimplexRule:
    """The conical product rule with `nodes` nodes a dimension, nodes^(order-1) in all."""
    points = torch.ones(1, 0, dtype=torch.float64)
    remaining = torch.ones(1, dtype=torch.float64)
    log_weights = torch.zeros(1, dtype=torch.float64)
    for lag, alpha in enumerate(concentration[:-1]):
        rest = sum(concentration[lag + 1 :])
        # Jacobi's weight is (1-x)^(rest-1)·(1+x)^(alpha-1) on [-1, 1], and b = (1+x)/2.
        x, weight = (torch.from_numpy(part) for part in roots_jacobi(nodes, rest - 1, alpha - 1))
        pieces = (1 + x) / 2
        share = (remaining[:, None] * pieces).reshape(-1, 1)
        points = torch.cat([points.repeat_interleave(nodes, 0), share], dim=1)
        remaining = (remaining[:, None] * ((1 - x) / 2)).reshape(-1)
        log_weights = (log_weights[:, None] + (weight / weight.sum()).log()).reshape(-1)
    return SimplexRule(torch.cat([points, remaining[:, None]], dim=1), log_weights)
