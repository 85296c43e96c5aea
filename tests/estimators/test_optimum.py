"""A tuned constant has an interval of one standard error, and is flat where the data cannot say."""

import math

import numpy as np
import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.errors import NothingToTune, OptimumAtEdge
from mtdinterp.estimators import tune_learning_rate
from mtdinterp.estimators.optimum import Interval
from mtdinterp.estimators.tuning import AtEdge, find_optimum

GRID = np.geomspace(0.01, 100, 33)


def centres(n_sequences, seed, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(n_sequences, generator=generator, dtype=torch.float64)


def parabolas(centre):
    """Per sequence (log β - x)²: the best β is exp(mean of x), and log β has its standard error."""
    return lambda beta: (math.log(beta) - centre) ** 2


def test_the_interval_is_one_standard_error_wide_on_each_side():
    centre = centres(400, seed=0)
    found = find_optimum(parabolas(centre), GRID, "beta")
    stderr = centre.std().item() / math.sqrt(len(centre))
    assert math.log(found.best) == pytest.approx(centre.mean().item(), abs=1e-3)
    assert math.log(found.interval.high / found.best) == pytest.approx(stderr, rel=0.05)
    assert math.log(found.best / found.interval.low) == pytest.approx(stderr, rel=0.05)
    assert not found.flat
    assert not found.at_edge


def test_about_two_thirds_of_the_intervals_contain_the_true_optimum():
    hits = 0
    for seed in range(300):
        found = find_optimum(parabolas(centres(50, seed)), GRID, "beta")
        hits += found.interval.contains(1.0)
    # 68.3 % of 300 with a standard deviation of 2.7 %; four of them on either side.
    assert 0.575 < hits / 300 < 0.79


def test_the_standard_error_is_that_of_differences_within_a_sequence():
    # What all values of β have in common cancels, however much it varies between sequences.
    centre = centres(400, seed=0)
    common = 1000 * centres(400, seed=1)
    plain = find_optimum(parabolas(centre), GRID, "beta")
    shifted = find_optimum(lambda beta: parabolas(centre)(beta) + common, GRID, "beta")
    assert shifted.interval == pytest.approx(plain.interval, rel=1e-3)


def test_an_optimum_that_sequences_do_not_determine_is_flat():
    # The best values of single sequences are spread over far more than the searched range.
    found = find_optimum(parabolas(centres(20, seed=3, spread=30.0)), GRID, "beta")
    assert found.flat
    assert found.interval.text("β", found.best, found.flat).startswith("flat: ")


def test_a_clear_optimum_at_an_edge_is_refused_or_marked():
    def falling(beta):
        return parabolas(centres(400, seed=0))(beta / 1e6)

    with pytest.raises(OptimumAtEdge, match="lies on the edge of the grid"):
        find_optimum(falling, GRID, "beta")
    found = find_optimum(falling, GRID, "beta", at_edge=AtEdge.ACCEPT)
    assert found.at_edge
    assert not found.flat
    assert found.best == pytest.approx(100)


def test_an_interval_ends_where_the_objective_becomes_infinite():
    """Here that is 2 % above the optimum, less than one standard error."""
    centre = centres(400, seed=0)
    barrier = math.exp(centre.mean().item()) * 1.02

    def bounded(beta):
        return parabolas(centre)(beta) if beta < barrier else torch.full_like(centre, math.inf)

    unbounded = find_optimum(parabolas(centre), GRID, "beta")
    found = find_optimum(bounded, GRID, "beta")
    assert unbounded.interval.high > barrier
    assert found.interval.high == pytest.approx(barrier, rel=1e-3)
    assert found.interval.low == pytest.approx(unbounded.interval.low, rel=1e-3)


def test_a_constant_objective_leaves_nothing_to_tune():
    with pytest.raises(NothingToTune, match="beta: the objective does not depend on it"):
        find_optimum(lambda beta: torch.ones(5, dtype=torch.float64), GRID, "beta")


def test_one_sequence_decides_nothing():
    found = find_optimum(parabolas(centres(1, seed=0)), GRID, "beta")
    assert found.interval == Interval(None, None)
    assert found.flat


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_nearly_uniform_matrix_has_a_flat_optimum_whatever_the_seed(seed):
    rows = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    rows[0] += torch.tensor([1e-4, -1e-4, 0])
    tuned = tune_learning_rate(MTDTask(rows, 2), 16, seed=seed, n_sequences=500)
    assert tuned.flat
    assert tuned.beta_text().startswith("flat: ")


def test_an_ordinary_task_has_a_clear_optimum():
    tuned = tune_learning_rate(MTDTask.random(4, 3, seed=0), 32, n_sequences=500)
    assert not tuned.flat
    assert tuned.interval.low < tuned.beta < tuned.interval.high
    other = tune_learning_rate(MTDTask.random(4, 3, seed=0), 32, seed=1, n_sequences=500)
    # Two estimates with independent errors: five standard errors of their difference.
    width = tuned.interval.high - tuned.interval.low
    assert abs(tuned.beta - other.beta) < 5 * math.sqrt(2) * width / 2


@pytest.mark.parametrize(
    ("interval", "flat", "text"),
    [
        (Interval(15.92, 16.35), False, "16.13 (15.92 to 16.35)"),
        (Interval(2.13, None), True, "flat: every β ≥ 2.1 fits equally well"),
        (Interval(None, 300.0), True, "flat: every β ≤ 300 fits equally well"),
        (Interval(1.0, 90.0), True, "flat: every β from 1 to 90 fits equally well"),
        (Interval(None, None), True, "flat: every β fits equally well"),
        (Interval(None, 17.0), False, "16.1 (at the bound of its range)"),
    ],
)
def test_the_text_of_an_interval(interval, flat, text):
    assert interval.text("β", 16.13, flat) == text


def test_the_ends_of_an_interval():
    half = Interval(2.0, None)
    assert half.contains(2.0)
    assert half.contains(1e9)
    assert not half.contains(1.9)
    assert Interval(None, 3.0).contains(-1.0)
    assert not Interval(None, 3.0).contains(3.1)
    assert half.closed((0.5, 8.0)) == (2.0, 8.0)
    assert Interval(None, 3.0).closed((0.5, 8.0)) == (0.5, 3.0)
    assert half.middle((0.5, 8.0)) == pytest.approx(4.0)
    assert half.scaled(3.0) == Interval(6.0, None)
    assert Interval(None, 2.0).scaled(3.0) == Interval(None, 6.0)
