"""Slow, independent ways to the posterior of the mixture weights, to check the fast one against.

Each takes one sequence's likelihoods c [step, lag] and a Dirichlet concentration [lag], as NumPy
arrays.
"""

from itertools import product

import numpy as np
from scipy.special import gammaln, roots_jacobi


def likelihoods_by_loop(transition, tokens, order):
    """c[t - order, g - 1] = π[y_{t-g}, y_t], one entry at a time."""
    return np.array(
        [
            [float(transition[tokens[t - g]][tokens[t]]) for g in range(1, order + 1)]
            for t in range(order, len(tokens))
        ]
    )


def mean_by_paths(c, alpha):
    """Enumerate every assignment of a lag to every step: Dirichlet-multinomial mass times
    likelihood."""
    steps, order = c.shape
    total, mean = 0.0, np.zeros(order)
    for path in product(range(order), repeat=steps):
        counts = np.bincount(path, minlength=order)
        mass = np.exp(gammaln(alpha + counts).sum()) * np.prod(c[range(steps), path])
        total += mass
        mean += mass * (alpha + counts) / (alpha.sum() + steps)
    return mean / total


def mean_by_counts(c, alpha):
    """Expand Π_t Σ_g w_g c[t, g] into monomials (a cell holds the counts of all lags but the last).

    The Dirichlet moment of w^n is proportional to Π_g Γ(α_g + n_g). All terms are positive: nothing
    cancels.
    """
    steps, order = c.shape
    cells = np.zeros((steps + 1,) * (order - 1))
    cells[(0,) * (order - 1)] = 1.0
    for factors in c / c.max(axis=1, keepdims=True):
        longer = factors[-1] * cells
        for lag in range(order - 1):
            longer += factors[lag] * np.roll(cells, 1, axis=lag)
        cells = longer / longer.max()
    counts = np.moveaxis(np.indices(cells.shape), 0, -1)
    counts = np.concatenate([counts, steps - counts.sum(-1, keepdims=True)], axis=-1)
    cells, counts = cells[cells > 0], counts[cells > 0]
    log_mass = np.log(cells) + gammaln(alpha + counts).sum(-1)
    mass = np.exp(log_mass - log_mass.max())
    return mass @ (alpha + counts) / (alpha.sum() + steps) / mass.sum()


def expected_counts(c, alpha):
    """E[number of steps that lag g produced] = Σ_t E[w_g c[t, g] / (w·c[t])] under the posterior.

    Each expectation is the integral of a polynomial of degree `steps`, which a Gauss rule with more
    than half as many nodes takes exactly. The stick is broken from the last lag, unlike in the
    package.
    """
    steps, order = c.shape
    nodes = steps // 2 + 2
    points, remaining, mass = np.ones((1, 0)), np.ones(1), np.ones(1)
    for lag in range(order - 1, 0, -1):
        x, weight = roots_jacobi(nodes, alpha[:lag].sum() - 1, alpha[lag] - 1)
        points = np.column_stack(
            [(remaining[:, None] * (1 + x) / 2).ravel(), np.repeat(points, nodes, axis=0)]
        )
        remaining = (remaining[:, None] * (1 - x) / 2).ravel()
        mass = (mass[:, None] * weight).ravel()
    points = np.column_stack([remaining, points])
    mixed = points @ c.T
    log_likelihood = np.log(mixed).sum(1)
    posterior = mass * np.exp(log_likelihood - log_likelihood.max())
    posterior /= posterior.sum()
    return np.einsum("n,ng,nt,tg->g", posterior, points, 1 / mixed, c, optimize=True)
