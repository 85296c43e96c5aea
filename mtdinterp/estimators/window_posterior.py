"""The posterior of a batch of sequences in the fractions of a stick, and rules that fit it.

Each fraction has a window, an interval outside of which the posterior has no mass that matters. On
the window, a Gauss rule or the midpoint rule converges fast, however narrow the posterior is.

1. `peak_weights` finds the peak. The lags are ordered by their weights there, the largest last:
   then no fraction depends on a remainder that is nearly used up.
2. The windows start from the width of the likelihood along each fraction, and are then set to where
   the marginals of a coarse grid have fallen far enough.
3. The mass outside of the windows is bounded by the slopes of the marginals at their edges
   (`WindowPosterior.outside`), and windows that leave out too much can be widened.
"""

import math

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.special import betaln
from torch import Tensor

from mtdinterp.estimators.peak import peak_weights
from mtdinterp.estimators.quadrature import gauss_jacobi
from mtdinterp.estimators.stick_grid import GridSums, StickGrid, fractions_of, sum_over_grid
from mtdinterp.estimators.windows import Edges, Rows, Rowset, Windows, edge_of, mass_beyond

COARSE_NODES = 10
"""Nodes per fraction of the grids that find the windows."""
MOST_COARSE = 5
"""Coarse grids at the most."""
SETTLED = 0.7
"""Windows that change by less than this factor have settled."""
MARGIN = 1.5
"""Logarithm of how far below the tolerance the density falls at the edges of a window."""
WIDER = 1.3
"""How much a window that leaves out too much mass grows at that edge."""
SNAP = 0.05
"""An edge this close to 0 or 1, as a share of the window, moves there."""
MIDPOINTS = 2 / 3
"""Nodes of a midpoint rule over those of a Gauss rule of the same accuracy."""
SCANNED = 24
"""Points on either side of the peak at which the likelihood along a fraction is looked at."""
SMALLEST, LARGEST = 1e-300, 1 - 1e-16
"""Fractions at which it is looked at, at least and at most."""
MOST_STRETCH = 30.0
"""The largest factor between the width of a marginal and that of the density along its fraction."""
NEGLIGIBLE = 0.1
"""The share of the tolerance that may be lost by skipping parts of a grid."""


class WindowPosterior:
    """The posterior of a batch of sequences in the fractions of a stick.

    Densities are relative to the peak, where likelihood and prior count as 1.
    """

    def __init__(
        self,
        likelihoods: Float64[Tensor, "batch step lag"],
        alpha: tuple[float, ...],
        tolerance: float,
    ) -> None:
        """
        Args:
            likelihoods: c[t, g] of every sequence, with at least two lags.
            alpha: the Dirichlet prior.
            tolerance: accuracy of the posterior means.
        """
        self.tolerance = tolerance
        self.drop = MARGIN - math.log(tolerance)
        peak = peak_weights(likelihoods, torch.tensor(alpha, dtype=torch.float64)).numpy()
        self.order = np.argsort(peak, axis=1)
        self.peak = np.take_along_axis(peak, self.order, 1)
        self.fractions = fractions_of(self.peak)
        prior = np.array(alpha)[self.order]
        # The prior density is a product of powers of v_j and of 1 - v_j.
        self.first_power = prior[:, :-1] - 1
        self.last_power = np.cumsum(prior[:, ::-1], axis=1)[:, ::-1][:, 1:] - 1
        by_lag = np.take_along_axis(likelihoods.numpy(), self.order[:, None, :], 2)
        at_peak = np.einsum("btg,bg->bt", by_lag, self.peak)
        self.scaled = np.ascontiguousarray((by_lag / at_peak[..., None]).transpose(0, 2, 1))
        self.windows = self._first_windows()
        self.mass = np.zeros(len(peak))
        for _ in range(MOST_COARSE):
            if self._narrow():
                break

    def means(self, sums: GridSums, rows: Rowset) -> Float64[Tensor, "some lag"]:
        """The mean weights of some sequences, in the lags' own order."""
        means = np.empty_like(sums.mean)
        np.put_along_axis(means, self.order[rows], sums.mean, 1)
        return torch.from_numpy(means)

    def sums(self, grid: StickGrid, rows: Rowset) -> GridSums:
        """Sums over the grids of some sequences; parts that hold nothing are skipped."""
        share = NEGLIGIBLE * self.tolerance
        sums = sum_over_grid(self.scaled[rows], grid, share * self.mass[rows])
        self.mass[rows] = sums.mass
        return sums

    def grid(
        self, n_nodes: Int64[np.ndarray, " some"], rows: Rowset, midpoints: bool = True
    ) -> StickGrid:
        """Rules on the windows of some sequences.

        Where a window ends at 0 or 1, it has a Gauss rule that includes the power of the prior at
        that edge. Elsewhere the density vanishes at both edges, and the midpoint rule converges as
        fast with two thirds of the nodes.

        Args:
            n_nodes: nodes per fraction of every sequence.
            rows: the sequences.
            midpoints: whether to use midpoint rules.

        Returns:
            The grids.
        """
        windows = self.windows.of(rows)
        low, high = windows.low, windows.high
        first, last = self.first_power[rows], self.last_power[rows]
        inside = (low > 0) & (high < 1) & midpoints
        counts = np.where(inside, np.ceil(MIDPOINTS * n_nodes)[:, None], n_nodes[:, None])
        counts = counts.astype(np.int64)
        at_low = np.where((low == 0) & ~inside, first, 0.0)
        at_high = np.where((high == 1) & ~inside, last, 0.0)
        nodes = np.full((*low.shape, counts.max()), 0.5)
        log_weights = np.full_like(nodes, -np.inf)
        described = np.stack([counts, inside, at_low, at_high], -1).reshape(-1, 4)
        rules, which = np.unique(described, axis=0, return_inverse=True)
        for place, (count, is_midpoint, low_power, high_power) in enumerate(rules):
            chosen = which.reshape(low.shape) == place
            if is_midpoint:
                share = (np.arange(count) + 0.5) / count
                log_weight = np.full(len(share), -math.log(count))
            else:
                x, weight = gauss_jacobi(int(count), high_power, low_power)
                share = (1 + x) / 2
                log_weight = np.log(weight) + betaln(1 + low_power, 1 + high_power)
            width = windows.width[chosen][:, None]
            rows_of, sticks_of = np.nonzero(chosen)
            place_of = (rows_of, sticks_of, slice(0, len(share)))
            nodes[place_of] = low[chosen][:, None] + width * share
            log_weights[place_of] = log_weight + (1 + low_power + high_power) * np.log(width)
        log_weights += (first - at_low)[..., None] * np.log(nodes)
        log_weights += (last - at_high)[..., None] * np.log1p(-nodes)
        log_weights -= self._log_prior(self.fractions[rows][..., None], rows)
        used = np.arange(nodes.shape[2]) < counts[..., None]
        distances = np.where(used, np.abs(nodes - self.fractions[rows][..., None]), np.inf)
        return StickGrid(nodes, np.exp(log_weights), counts, distances.argmin(2))

    def outside(self, grid: StickGrid, sums: GridSums, rows: Rowset) -> Edges:
        """The share of the mass beyond the edges of the windows.

        The posterior is log-concave along each fraction, so beyond the last node its logarithm
        falls at least as steeply as between the last two.
        """
        density = self._marginal_density(grid, sums, rows)
        density = density + self._log_prior(grid.nodes, rows)
        density -= self._log_prior(self.fractions[rows][..., None], rows)
        density -= np.log(sums.mass)[:, None, None]
        windows = self.windows.of(rows)

        def beyond(edge: Rows, last: np.ndarray, before: np.ndarray) -> Rows:
            places = [place[..., None] for place in (last, before)]
            x = [np.take_along_axis(grid.nodes, place, 2)[..., 0] for place in places]
            y = [np.take_along_axis(density, place, 2)[..., 0] for place in places]
            return mass_beyond(np.abs(edge - x[0]), np.abs(x[0] - x[1]), y[0], y[1])

        first = np.zeros_like(grid.counts)
        below = beyond(windows.low, first, first + 1)
        above = beyond(windows.high, grid.counts - 1, grid.counts - 2)
        return Edges(np.where(windows.low > 0, below, 0.0), np.where(windows.high < 1, above, 0.0))

    def widen(self, rows: Rowset, edges: Edges, most: float) -> None:
        """Move the edges beyond which there is more than a share of the mass."""
        windows = self.windows.of(rows)
        step = (WIDER - 1) * windows.width
        low = np.where(edges.low > most, windows.low - step, windows.low)
        high = np.where(edges.high > most, windows.high + step, windows.high)
        self._set_windows(low, high, rows)

    def _set_windows(self, low: Rows, high: Rows, rows: Rowset) -> None:
        """Set windows within [0, 1]; edges near 0 and 1 move there.

        The power of the prior just beyond an edge would spoil the convergence.
        """
        low = np.where(low < SNAP * high, 0.0, low)
        high = np.where(1 - high < SNAP * (1 - low), 1.0, high)
        self.windows.low[rows] = low
        self.windows.high[rows] = high

    def _log_prior(self, fractions: np.ndarray, rows: Rowset, shift: float = 0.0) -> np.ndarray:
        """The logarithm of the prior density; with a shift of 1, that in the logits."""
        first, last = self.first_power[rows][..., None], self.last_power[rows][..., None]
        return (first + shift) * np.log(fractions) + (last + shift) * np.log1p(-fractions)

    def _marginal_density(self, grid: StickGrid, sums: GridSums, rows: Rowset) -> np.ndarray:
        """The logarithm of the marginals at the nodes, without the fraction's own prior."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.log(sums.marginals) - np.log(grid.weights)

    def _first_windows(self) -> Windows:
        """Windows from the likelihood along each fraction, with the others at the peak.

        They are stretched by how much wider the posterior is if the others vary, too.
        """
        n_rows, n_sticks = self.fractions.shape
        rows = np.arange(n_rows)
        steps = 0.5 ** (np.arange(SCANNED) / 2)
        at = self.fractions[..., None]
        nodes = np.concatenate([at * (1 - steps), at + (1 - at) * steps[::-1]], 2)
        nodes = nodes.clip(SMALLEST, LARGEST)
        ends = self._along_fractions()
        scan = StickGrid(
            nodes.reshape(-1, 1, nodes.shape[2]),
            np.ones((n_rows * n_sticks, 1, nodes.shape[2])),
            np.full((n_rows * n_sticks, 1), nodes.shape[2]),
            np.full((n_rows * n_sticks, 1), SCANNED - 1),
        )
        sums = sum_over_grid(
            ends.reshape(n_rows * n_sticks, 2, -1), scan, np.zeros(n_rows * n_sticks)
        )
        with np.errstate(divide="ignore"):
            density = np.log(sums.marginals).reshape(nodes.shape)
        density += self._log_prior(nodes, rows, 1.0) - self._log_prior(at, rows, 1.0)
        low = 1 - edge_of(1 - nodes[..., ::-1], density[..., ::-1], self.drop)
        high = edge_of(nodes, density, self.drop)
        stretch = self._stretch(ends)
        low = self.fractions - stretch * (self.fractions - low)
        high = self.fractions + stretch * (high - self.fractions)
        self.windows = Windows(np.empty_like(low), np.empty_like(low))
        self._set_windows(low, high, rows)
        return self.windows

    def _along_fractions(self) -> Float64[np.ndarray, "row stick two step"]:
        """The factors of the likelihood at v_j = 1 and at v_j = 0, for every fraction."""
        joint = self.peak[..., None] * self.scaled
        before = np.cumsum(joint, axis=1) - joint
        rest = (self.peak[:, :-1] / self.fractions)[..., None]
        after = (joint.sum(1, keepdims=True) - before - joint)[:, :-1]
        left = (1 - self.fractions)[..., None]
        ends = [before[:, :-1] + rest * self.scaled[:, :-1], before[:, :-1] + after / left]
        return np.ascontiguousarray(np.stack(ends, 2))

    def _stretch(self, ends: Float64[np.ndarray, "row stick two step"]) -> Rows:
        """How much wider each fraction's marginal is than its density at the others' peak."""
        slopes = ends[:, :, 0] - ends[:, :, 1]
        curvature = slopes @ slopes.transpose(0, 2, 1)
        own = (self.first_power + 1) / self.fractions**2
        own += (self.last_power + 1) / (1 - self.fractions) ** 2
        curvature += own[:, None, :] * np.eye(own.shape[1])
        diagonal = np.einsum("bjj->bj", curvature)
        inverse = np.einsum("bjj->bj", np.linalg.inv(curvature))
        return np.sqrt(diagonal * inverse).clip(1.0, MOST_STRETCH)

    def _narrow(self) -> bool:
        """Set the windows to where the marginals of a coarse grid have fallen far enough.

        Returns:
            Whether the windows have settled.
        """
        rows = np.arange(len(self.peak))
        grid = self.grid(np.full(len(rows), COARSE_NODES), rows, midpoints=False)
        density = self._marginal_density(grid, self.sums(grid, rows), rows)
        density = density + self._log_prior(grid.nodes, rows, 1.0)
        low = 1 - edge_of(1 - grid.nodes[..., ::-1], density[..., ::-1], self.drop)
        high = edge_of(grid.nodes, density, self.drop)
        before = self.windows.width
        self._set_windows(low, high, rows)
        after = self.windows.width
        return bool(((after > SETTLED * before) & (after < before / SETTLED)).all())
