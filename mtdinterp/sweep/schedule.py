"""When cells would run on any number of workers: list scheduling, the longest chain first.

The driver starts cells in this order, so a simulated schedule is what it would do if every cell
took exactly its estimated time.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Schedule:
    """How long a number of workers take for all cells."""

    makespan: float
    """Seconds from the first start to the last end."""
    busy: float
    """Share of the workers' time in which they run a cell."""


def simulate(
    durations: Mapping[str, float], parents: Mapping[str, str | None], n_workers: int
) -> Schedule:
    """Run all cells on some workers; a free worker takes the cell with the longest chain behind it.

    Args:
        durations: seconds per cell; a parent precedes its children.
        parents: the cell that must end before a cell can start, or None.
        n_workers: how many cells can run at once.

    Returns:
        The schedule.
    """
    remaining = remaining_chains(durations, parents)
    children: dict[str | None, list[str]] = {}
    for name in durations:
        children.setdefault(parents.get(name), []).append(name)
    places = {name: place for place, name in enumerate(durations)}
    # Heaps give the smallest entry first; the place breaks ties in the order of the grid.
    ready = [(-remaining[name], places[name], name) for name in children.get(None, [])]
    heapq.heapify(ready)
    running: list[tuple[float, int, str]] = []
    now = 0.0
    while ready or running:
        while ready and len(running) < n_workers:
            _, place, name = heapq.heappop(ready)
            heapq.heappush(running, (now + durations[name], place, name))
        now, _, ended = heapq.heappop(running)
        for name in children.get(ended, []):
            heapq.heappush(ready, (-remaining[name], places[name], name))
    available = now * n_workers
    return Schedule(now, sum(durations.values()) / available if available else 1.0)


def remaining_chains(
    durations: Mapping[str, float], parents: Mapping[str, str | None]
) -> dict[str, float]:
    """The time of each cell and of the longest chain of cells that start from it.

    Args:
        durations: time per cell, in any unit; a parent precedes its children.
        parents: the cell that a cell starts from, or None.

    Returns:
        The times, in the same order.
    """
    remaining = dict(durations)
    for name in reversed(list(durations)):
        parent = parents.get(name)
        if parent is not None:
            remaining[parent] = max(remaining[parent], durations[parent] + remaining[name])
    return remaining
