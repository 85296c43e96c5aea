"""The numbers of a cell say how well its tuned β is known."""

import pytest

from mtdinterp.estimators.mirror_descent import TunedRate
from mtdinterp.estimators.optimum import Interval
from mtdinterp.sweep.measuring import optimum_of


@pytest.mark.parametrize(
    ("interval", "is_flat"), [(Interval(15.9, 16.4), False), (Interval(2.1, None), True)]
)
def test_a_tuned_beta_has_the_ends_of_its_interval(interval, is_flat):
    tuned = TunedRate(16.1, 16.1, 0.1, 1, "truth", interval, is_flat)
    assert optimum_of(tuned) == {
        "optimal_beta": 16.1,
        "optimal_low": interval.low,
        "optimal_high": interval.high,
        "optimal_flat": is_flat,
    }


def test_without_an_optimum_its_columns_are_empty():
    found = optimum_of(None)
    assert set(found) == {"optimal_beta", "optimal_low", "optimal_high", "optimal_flat"}
    assert set(found.values()) == {None}
