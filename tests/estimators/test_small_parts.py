"""Small parts of estimators that only show in special cases."""

import torch

from mtdinterp.estimators.exact_bayes import _error_estimate
from mtdinterp.estimators.mirror_descent import MirrorDescent
from mtdinterp.registry import ESTIMATORS
from mtdinterp.style import Style


def test_estimates_that_agree_in_all_bits_have_no_error():
    estimate = torch.tensor([[0.25, 0.75], [0.5, 0.5]], dtype=torch.float64)
    error = _error_estimate([estimate, estimate, estimate])
    assert error.tolist() == [0.0, 0.0]


def test_steps_of_mirror_descent_are_listed_in_order_after_one_step():
    order = list(ESTIMATORS)
    places = [order.index(f"mirror_descent_{steps}") for steps in (2, 3, 4, 5)]
    assert places == list(range(places[0], places[0] + 4))
    assert order.index("one_step") < places[0]


def test_mirror_descent_is_drawn_as_it_is_told():
    style = Style("#123456", "o", "--")
    assert MirrorDescent(7, style).style == style
    assert MirrorDescent(7, style).rank > MirrorDescent(6, style).rank
