"""Windows: for every fraction of a stick, the interval that holds the mass of a posterior."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64

Rows = Float64[np.ndarray, "row stick"]
Rowset = Int64[np.ndarray, " some"]


@dataclass(frozen=True, eq=False)
class Windows:
    """An interval for every fraction of every sequence."""

    low: Rows
    high: Rows

    @property
    def width(self) -> Rows:
        """The lengths of the intervals."""
        return self.high - self.low

    def of(self, rows: Rowset) -> "Windows":
        """The windows of some sequences."""
        return Windows(self.low[rows], self.high[rows])


@dataclass(frozen=True, eq=False)
class Edges:
    """The share of the mass beyond each edge of the windows."""

    low: Rows
    high: Rows

    @property
    def total(self) -> Float64[np.ndarray, " row"]:
        """The share of the mass outside of a sequence's windows."""
        return (self.low + self.high).sum(1)

    def of(self, rows: Bool[np.ndarray, " row"]) -> "Edges":
        """The edges of some sequences."""
        return Edges(self.low[rows], self.high[rows])


def edge_of(
    nodes: Float64[np.ndarray, "row stick node"],
    density: Float64[np.ndarray, "row stick node"],
    drop: float,
) -> Rows:
    """Where a density has fallen far enough above its peak.

    Args:
        nodes: increasing.
        density: the logarithm of a concave-looking density at the nodes.
        drop: how far its logarithm must fall.

    Returns:
        A point above the peak; 1 if the density does not fall that far.
    """
    relative = density - density.max(2, keepdims=True) + drop
    above = np.arange(nodes.shape[2]) > density.argmax(2)[..., None]
    fallen = above & (relative < 0)
    outer = np.where(fallen.any(2), fallen.argmax(2), nodes.shape[2] - 1)[..., None]
    outer = np.maximum(outer, 1)
    x = [np.take_along_axis(nodes, outer - back, 2)[..., 0] for back in (0, 1)]
    y = [np.take_along_axis(relative, outer - back, 2)[..., 0] for back in (0, 1)]
    with np.errstate(invalid="ignore", divide="ignore"):
        crossing = x[1] + (x[0] - x[1]) * y[1] / (y[1] - y[0])
    # A concave function crosses zero beyond its chord, and before the node at which it is negative.
    inside = np.where(np.isfinite(y[0]), (crossing + x[0]) / 2, x[0])
    beyond = np.where(y[0] < y[1], crossing, 1.0)
    return np.where(fallen.any(2), inside, np.minimum(beyond, 1.0))


def mass_beyond(gap: Rows, spacing: Rows, last: Rows, before: Rows) -> Rows:
    """The mass beyond an edge if a log-concave density falls towards it.

    Args:
        gap: from the last node to the edge.
        spacing: between the last node and the one before.
        last: the logarithm of the density at the last node.
        before: the same at the node before.

    Returns:
        At most this mass; infinity if the density does not fall.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        slope = (before - last) / spacing
        mass = np.exp(last - slope * gap) / slope
    mass = np.where(slope > 0, mass, np.inf)
    # A node that was skipped holds nothing that matters.
    return np.where(np.isfinite(last), mass, 0.0)
