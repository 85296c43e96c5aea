"""Sums of a likelihood over product grids in stick fractions, compiled and in torch.

A stick is broken again and again: w_1 = v_1, w_2 = (1-v_1)·v_2, …, and the last weight is what is
left. A grid has its own nodes and quadrature weights for every sequence and every fraction.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from mtdinterp.native import kernels, use_kernels

STEPS_AT_ONCE = 64
"""Factors that are multiplied before a logarithm is taken, in torch."""
VALUES_AT_ONCE = 1 << 22
"""Factors that are held in memory together, in torch."""


@dataclass(frozen=True, eq=False)
class StickGrid:
    """A product grid for each sequence, in the fractions of a stick."""

    nodes: Float64[np.ndarray, "row stick node"]
    """Fractions in (0, 1), increasing."""
    weights: Float64[np.ndarray, "row stick node"]
    """Quadrature weights, with the prior density."""
    counts: Int64[np.ndarray, "row stick"]
    """How many of the nodes are used; the weights of the others are zero."""
    starts: Int64[np.ndarray, "row stick"]
    """A node of every fraction near the peak."""


@dataclass(frozen=True, eq=False)
class GridSums:
    """Sums over a grid, of quadrature weight times likelihood."""

    mass: Float64[np.ndarray, " row"]
    mean: Float64[np.ndarray, "row lag"]
    """The mean of the mixture weights."""
    marginals: Float64[np.ndarray, "row stick node"]
    """The mass at every node of every fraction."""


def sum_over_grid(
    likelihoods: Float64[np.ndarray, "row lag step"],
    grid: StickGrid,
    negligible: Float64[np.ndarray, " row"],
) -> GridSums:
    """The mass, the mean weights and the marginals of a likelihood on a grid.

    Args:
        likelihoods: c[g, t] of every sequence, scaled so that the likelihood is about 1 at its
            peak.
        grid: the grid of every sequence.
        negligible: the mass that may be missing in all; parts of the grid with less are skipped.

    Returns:
        The sums of every sequence.
    """
    add_up = _compiled_sums if use_kernels() else _eager_sums
    return add_up(likelihoods, grid, negligible)


def fractions_of(weights: Float64[np.ndarray, "row lag"]) -> Float64[np.ndarray, "row stick"]:
    """The stick fractions of mixture weights."""
    rest = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]
    return weights[:, :-1] / rest[:, :-1]


def _compiled_sums(
    likelihoods: Float64[np.ndarray, "row lag step"],
    grid: StickGrid,
    negligible: Float64[np.ndarray, " row"],
) -> GridSums:
    # A walk along a fraction is begun for each node of the fractions before, at most, and is cut
    # off at most twice.
    n_sticks = grid.nodes.shape[1]
    walks = np.cumprod(grid.counts, axis=1, dtype=np.float64) / grid.counts
    moments, marginals = kernels.stick_grid_moments(
        likelihoods,
        grid.nodes,
        grid.weights,
        grid.counts,
        grid.starts,
        negligible[:, None] / (2 * n_sticks * walks),
    )
    mass = moments[:, 0]
    return GridSums(mass, moments[:, 1:] / mass[:, None], marginals)


def _eager_sums(
    likelihoods: Float64[np.ndarray, "row lag step"],
    grid: StickGrid,
    negligible: Float64[np.ndarray, " row"],
) -> GridSums:
    parts = [
        _sums_of_one(*map(torch.from_numpy, one))
        for one in zip(likelihoods, grid.nodes, grid.weights, strict=True)
    ]
    mass, mean, marginals = (
        np.stack([part[place].numpy() for part in parts]) for place in range(3)
    )
    return GridSums(mass, mean, marginals)


def _sums_of_one(
    likelihoods: Float64[Tensor, "lag step"],
    nodes: Float64[Tensor, "stick node"],
    weights: Float64[Tensor, "stick node"],
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums of one sequence, over all nodes."""
    n_sticks, n_nodes = nodes.shape
    rest = torch.ones(1, dtype=torch.float64)
    log_weight = torch.zeros(1, dtype=torch.float64)
    points = torch.ones(1, 0, dtype=torch.float64)
    for stick in range(n_sticks):
        taken = (rest[:, None] * nodes[stick]).reshape(-1, 1)
        points = torch.cat([points.repeat_interleave(n_nodes, 0), taken], dim=1)
        rest = (rest[:, None] * (1 - nodes[stick])).reshape(-1)
        log_weight = (log_weight[:, None] + weights[stick].log()).reshape(-1)
    points = torch.cat([points, rest[:, None]], dim=1)
    n_steps = likelihoods.shape[1]
    log_mass = log_weight
    for some in torch.arange(n_steps).split(STEPS_AT_ONCE):
        parts = points.split(max(1, VALUES_AT_ONCE // len(some)))
        products = [(part @ likelihoods[:, some]).prod(-1) for part in parts]
        log_mass = log_mass + torch.cat(products).log()
    masses = log_mass.exp()
    total = masses.sum()
    marginals = []
    for stick in range(n_sticks):
        before = n_nodes**stick
        marginals.append(masses.view(before, n_nodes, -1).sum((0, 2)))
    return total, masses @ points / total, torch.stack(marginals)
