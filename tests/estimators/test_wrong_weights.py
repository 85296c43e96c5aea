"""Estimators are written by users: weights that cannot be mixture weights are refused by name."""

import re

import pytest

from mtdinterp.estimators import Constant, Estimator
from mtdinterp.estimators.fitting import Fit
from mtdinterp.estimators.optimum import Interval
from mtdinterp.tasks import MTDTask

TASK = MTDTask.random(3, 2, seed=0)
EVIDENCE = TASK.evidence(TASK.sample(4, 10, seed=1).tokens)


class Wrong(Estimator):
    """Returns what it was given."""

    name, label = "wrong", "whatever it was given"

    def __init__(self, returned):
        self.returned = returned

    def weights(self, evidence, **constants):
        return self.returned


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            EVIDENCE.uniform.numpy(),
            "estimator 'wrong': expected weights as a torch tensor, got ndarray",
        ),
        (
            EVIDENCE.uniform[:, :1],
            "estimator 'wrong': expected float64 weights of shape [4, 2], got torch.float64 of "
            "shape [4, 1]",
        ),
        (
            EVIDENCE.uniform.float(),
            "estimator 'wrong': expected float64 weights of shape [4, 2], got torch.float32 of "
            "shape [4, 2]",
        ),
        (
            EVIDENCE.uniform * 1.001,
            "estimator 'wrong': expected weights that sum to 1 for every sequence",
        ),
        (
            EVIDENCE.uniform * 0.999,
            "estimator 'wrong': expected weights that sum to 1 for every sequence",
        ),
    ],
    ids=["array", "shape", "dtype", "above", "below"],
)
def test_wrong_weights_are_refused_wherever_they_are_used(returned, message):
    estimator = Wrong(returned)
    wanted = EVIDENCE.predict(EVIDENCE.uniform)
    sentence = f"^{re.escape(message)}$"
    with pytest.raises(ValueError, match=sentence):
        estimator.predict(EVIDENCE)
    with pytest.raises(ValueError, match=sentence):
        estimator.fit(EVIDENCE, wanted)


def test_weights_that_sum_to_1_within_rounding_are_accepted():
    rounded = EVIDENCE.uniform * (1 + 1e-9)
    prediction = Wrong(rounded).predict(EVIDENCE)
    assert (prediction - EVIDENCE.predict(EVIDENCE.uniform)).abs().max() < 2e-9


class WrongAtFlatOptimum(Estimator):
    """Has a flat optimum, in whose middle the weights are wrong."""

    name, label = "wrong", "wrong at its optimum"
    constants = (Constant("beta", "β", 1.0, 100.0),)

    def weights(self, evidence, *, beta):
        return evidence.uniform * 1.001

    def fit(self, evidence, predictions):
        interval = Interval(2.0, 50.0)
        return Fit({"beta": 3.0}, 0.0, intervals={"beta": interval}, flat=("beta",))


def test_weights_at_a_flat_optimum_are_checked_too():
    with pytest.raises(ValueError, match="expected weights that sum to 1"):
        WrongAtFlatOptimum().tune(TASK, 10, n_sequences=4)
