"""The names of the package `mtdinterp.estimators`, two of which are imported on first use."""

import pytest

from mtdinterp import estimators
from mtdinterp.algorithms import two_step


@pytest.mark.parametrize("name", estimators.__all__)
def test_every_public_name_is_found(name):
    assert hasattr(estimators, name)


def test_names_of_algorithms_are_those_of_their_module():
    assert estimators.TwoStepConstants is two_step.TwoStepConstants
    assert estimators.reweighted_two_step is two_step.reweighted_two_step


def test_an_unknown_name_is_an_attribute_error():
    message = "module 'mtdinterp.estimators' has no attribute 'two_step_constants'"
    with pytest.raises(AttributeError, match=message):
        _ = estimators.two_step_constants
    assert not hasattr(estimators, "learning_rate")
