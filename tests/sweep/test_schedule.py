"""Simulated schedules: known cases, bounds that hold for all inputs, and brute force."""

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtdinterp.sweep.directory import Entry, longest_first
from mtdinterp.sweep.schedule import remaining_chains, simulate

Work = tuple[dict[str, float], dict[str, str | None]]


@st.composite
def works(draw: st.DrawFn, most: int = 12) -> Work:
    """Cells with durations; some start from an earlier cell."""
    seconds = draw(st.lists(st.integers(1, 50).map(float), min_size=1, max_size=most))
    durations = {f"c{number}": value for number, value in enumerate(seconds)}
    parents: dict[str, str | None] = {}
    for number in range(len(seconds)):
        choice = draw(st.none() | st.integers(0, number - 1)) if number else None
        parents[f"c{number}"] = None if choice is None else f"c{choice}"
    return durations, parents


def longest_chain(durations: dict[str, float], parents: dict[str, str | None]) -> float:
    """The longest path to any cell, computed from its start instead of from its end."""
    ends: dict[str | None, float] = {None: 0.0}
    for name, seconds in durations.items():
        ends[name] = ends[parents[name]] + seconds
    return max(ends.values())


def best_makespan(
    durations: dict[str, float], parents: dict[str, str | None], n_workers: int
) -> float:
    """The shortest schedule over all orders in which cells could be started."""
    best = math.inf
    for order in permutations(durations):
        free = [0.0] * n_workers
        ends: dict[str | None, float] = {None: 0.0}
        for name in order:
            if parents[name] not in ends:
                break
            worker = free.index(min(free))
            ends[name] = max(free[worker], ends[parents[name]]) + durations[name]
            free[worker] = ends[name]
        else:
            best = min(best, max(ends.values()))
    return best


def test_one_chain_takes_its_sum_on_any_number_of_workers() -> None:
    durations = {"a": 3.0, "b": 4.0, "c": 5.0}
    parents = {"a": None, "b": "a", "c": "b"}
    found = simulate(durations, parents, 4)
    assert found.makespan == 12
    assert found.busy == pytest.approx(0.25)


def test_the_longest_chain_starts_first() -> None:
    # In the order of the grid, the chain would start at 2 and end at 8.
    durations = {"x": 2.0, "y": 2.0, "a": 3.0, "b": 3.0}
    parents = {"x": None, "y": None, "a": None, "b": "a"}
    assert simulate(durations, parents, 2).makespan == 6
    assert simulate(durations, parents, 1).makespan == 10


def test_grahams_anomaly_for_the_longest_first_rule() -> None:
    # The rule is not optimal: 5 + 4 | 5 + 4 | 3 + 3 + 3 would end at 9.
    durations = {
        name: float(value) for name, value in zip("abcdefg", (5, 5, 4, 4, 3, 3, 3), strict=True)
    }
    assert simulate(durations, {}, 3).makespan == 11


def test_no_cells_take_no_time() -> None:
    assert simulate({}, {}, 8).makespan == 0


@given(works(), st.integers(1, 16))
def test_bounds_that_hold_for_every_schedule(work: Work, n_workers: int) -> None:
    durations, parents = work
    total = sum(durations.values())
    chain = longest_chain(durations, parents)
    found = simulate(durations, parents, n_workers)
    assert found.makespan >= max(total / n_workers, chain) - 1e-9
    # Graham's bound for list scheduling with precedences.
    assert found.makespan <= total / n_workers + (1 - 1 / n_workers) * chain + 1e-9
    assert found.busy == pytest.approx(total / (n_workers * found.makespan))
    assert max(remaining_chains(durations, parents).values()) == chain


@given(works())
def test_one_worker_takes_the_total_and_enough_workers_the_longest_chain(work: Work) -> None:
    durations, parents = work
    assert simulate(durations, parents, 1).makespan == pytest.approx(sum(durations.values()))
    many = simulate(durations, parents, len(durations))
    assert many.makespan == pytest.approx(longest_chain(durations, parents))


@given(works(most=6), st.integers(1, 3))
def test_no_schedule_is_shorter_than_the_best_one(work: Work, n_workers: int) -> None:
    durations, parents = work
    best = best_makespan(durations, parents, n_workers)
    found = simulate(durations, parents, n_workers).makespan
    assert best - 1e-9 <= found <= (2 - 1 / n_workers) * best + 1e-9


@given(works())
def test_the_driver_starts_cells_in_the_same_order(work: Work) -> None:
    durations, parents = work
    entries = [Entry(name, parents[name], {}, seconds) for name, seconds in durations.items()]
    remaining = remaining_chains(durations, parents)
    order = [remaining[entry.name] for entry in longest_first(entries)]
    assert order == sorted(remaining.values(), reverse=True)
