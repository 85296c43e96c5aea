"""Estimators compared with predictions: which tie, and which cannot be computed."""

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.criteria import PRICE, TELLABLE
from mtdinterp.estimators.base import Fit
from mtdinterp.readings.comparison import not_told_apart, score_each, simplest

CONSTANTS = {"plain": 1, "rich": 3, "other": 1}


def constant(value):
    return torch.full((16,), value, dtype=torch.float64)


def test_only_what_is_clearly_farther_is_told_apart():
    near = {"plain": constant(0.01), "other": constant(0.0101)}
    assert not_told_apart(near, CONSTANTS) == ["plain", "other"]
    far = {"plain": constant(0.01), "other": constant(0.02 * TELLABLE)}
    assert not_told_apart(far, CONSTANTS) == ["plain"]


def test_every_constant_after_the_first_has_its_price():
    little = {"plain": constant(0.01), "rich": constant(0.01 / PRICE)}
    assert "plain" in not_told_apart(little, CONSTANTS)
    much = {"plain": constant(0.01), "rich": constant(0.001 / PRICE**2)}
    assert not_told_apart(much, CONSTANTS) == ["rich"]


def test_shifted_sequences_rule_out_what_is_farther_there():
    tied = ["plain", "rich", "other"]
    assert simplest(tied, CONSTANTS) == "plain"
    shifted = {"plain": constant(1.0), "other": constant(0.01)}
    assert simplest(tied, CONSTANTS, [shifted]) == "other"
    assert simplest(tied, CONSTANTS, [{"plain": constant(1.0)}]) == "plain"


@pytest.mark.parametrize("unusable", [float("nan"), float("inf")])
def test_what_is_not_finite_is_left_out_on_shifted_sequences_too(unusable):
    task = MTDTask.random(3, 2, seed=0)
    evidence = task.evidence(task.sample(8, 12, seed=0).tokens)
    predictions = torch.full((8, 3), unusable, dtype=torch.float64)
    fits = {"uniform": Fit({}, 0.0)}
    scores, left_out = score_each(fits, evidence, predictions)
    assert scores == {}
    assert left_out == {"uniform": "its predictions are not finite numbers here"}
