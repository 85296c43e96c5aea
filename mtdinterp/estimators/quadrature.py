"""Gauss quadrature on the probability simplex against a Dirichlet density.

Break the stick: w_1 = b_1, w_2 = (1-b_1)·b_2, …; under Dirichlet(α) the b_j are independent
Beta(α_j, α_{j+1} + … + α_m). A product of one-dimensional Gauss-Jacobi rules in the b_j (the
conical product rule) integrates every polynomial in w of degree up to 2n-1 exactly with n nodes per
dimension.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float64
from scipy.linalg import eigvalsh_tridiagonal
from torch import Tensor

from mtdinterp.errors import CannotCompute


@dataclass(frozen=True, eq=False)
class SimplexRule:
    """Points on the simplex and the logarithm of their weights, which sum to one."""

    points: Float64[Tensor, "node lag"]
    log_weights: Float64[Tensor, " node"]


def simplex_rule(concentration: tuple[float, ...], nodes: int) -> SimplexRule:
    """The conical product rule with `nodes` nodes per dimension, nodes^(order-1) in all."""
    small = nodes ** (len(concentration) - 1) <= 100_000
    return _small_rule(concentration, nodes) if small else _product_rule(concentration, nodes)


def _product_rule(concentration: tuple[float, ...], nodes: int) -> SimplexRule:
    points = torch.ones(1, 0, dtype=torch.float64)
    remaining = torch.ones(1, dtype=torch.float64)
    log_weights = torch.zeros(1, dtype=torch.float64)
    for lag, alpha in enumerate(concentration[:-1]):
        # Jacobi's weight is (1-x)^(rest-1)·(1+x)^(alpha-1) on [-1, 1], and b = (1+x)/2.
        rest = sum(concentration[lag + 1 :])
        x, weight = (torch.from_numpy(part) for part in gauss_jacobi(nodes, rest - 1, alpha - 1))
        if not torch.isfinite(weight).all() or (weight <= 0).any():
            raise CannotCompute(
                f"concentration: there is no Gauss rule with {nodes} nodes in double precision for "
                f"{concentration}"
            )
        share = (remaining[:, None] * (1 + x) / 2).reshape(-1, 1)
        points = torch.cat([points.repeat_interleave(nodes, 0), share], dim=1)
        remaining = (remaining[:, None] * (1 - x) / 2).reshape(-1)
        log_weights = (log_weights[:, None] + (weight / weight.sum()).log()).reshape(-1)
    return SimplexRule(torch.cat([points, remaining[:, None]], dim=1), log_weights)


_small_rule = lru_cache(maxsize=64)(_product_rule)


def gauss_jacobi(
    nodes: int, a: float, b: float
) -> tuple[Float64[np.ndarray, " node"], Float64[np.ndarray, " node"]]:
    """Nodes and weights against (1-x)^a (1+x)^b on [-1, 1], normalised to total mass one.

    Nodes are the eigenvalues of the Jacobi matrix of the three-term recurrence. Weights are
    Christoffel numbers, 1/Σ_k p_k(x)² over the orthonormal polynomials: a sum of positive terms,
    and so accurate for exponents and sizes where the weights from eigenvectors or from library
    routines are not.

    Args:
        nodes: number of nodes.
        a: exponent of 1-x, above -1.
        b: exponent of 1+x, above -1.

    Returns:
        Nodes in increasing order, and their weights.
    """
    k = np.arange(1, nodes, dtype=np.float64)
    s = 2 * k + a + b
    # k = 1 is 0/0 if a + b = -1; it is replaced below.
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = np.concatenate([[(b - a) / (a + b + 2)], (b * b - a * a) / (s * (s + 2))])
        coupling = 4 * k * (k + a) * (k + b) * (k + a + b) / (s * s * (s * s - 1))
    if nodes == 1:
        return centre, np.ones(1)
    coupling[0] = 4 * (a + 1) * (b + 1) / ((a + b + 2) ** 2 * (a + b + 3))
    coupling = np.sqrt(coupling)
    x = eigvalsh_tridiagonal(centre, coupling)
    before, now, total = np.zeros(nodes), np.ones(nodes), np.ones(nodes)
    for j in range(nodes - 1):
        after = ((x - centre[j]) * now - (coupling[j - 1] * before if j else 0)) / coupling[j]
        before, now = now, after
        total += now * now
    return x, 1 / total
