"""Probes that need predictions alone take any function, and say what is missing."""

import numpy as np
import pytest
import torch

from mtdinterp import load_checkpoint
from mtdinterp.construction import one_step
from mtdinterp.errors import NotApplicable
from mtdinterp.readings import Predictions
from mtdinterp.readings.transition import behaviour, shown_transition
from mtdinterp.registry import ESTIMATORS, PROBES
from mtdinterp.tasks import MTDTask
from mtdinterp.tasks.lag_specific import LagSpecificMTDTask
from probes import identify_algorithm

LENGTH = 40
TASK = MTDTask.random(5, 3, seed=2)
COMPARED = ("uniform", "one_step", "mirror_descent_2", "exact_bayes")


def bayes(tokens):
    """Exact Bayes as a plain function."""
    return ESTIMATORS["exact_bayes"].predict(TASK.evidence(tokens))


def identified(model, task=TASK, **settings):
    return identify_algorithm(
        model, task, **{"names": COMPARED, "n_sequences": 300, "length": LENGTH, **settings}
    )


def off_by(share, seed=0):
    """The task's matrix, with a share of it replaced by another random one."""
    other = MTDTask.random(5, 3, seed=100 + seed).transition
    return (1 - share) * TASK.transition + share * other


def test_a_function_is_identified():
    found = identified(bayes)
    assert found.best == "exact_bayes"
    assert found.decided
    assert found.candidates == ("exact_bayes",)
    assert found.divergences["exact_bayes"] < 1e-12
    assert found.n_sequences == 300


def test_a_function_may_return_an_array():
    found = identified(lambda tokens: TASK.transition.numpy()[tokens[:, -3:].numpy()].mean(1))
    assert found.best == "uniform"
    listed = identified(lambda tokens: bayes(tokens).tolist(), n_sequences=64)
    assert listed.divergences["exact_bayes"] < 1e-12


def test_a_function_of_a_model_is_that_model():
    checkpoint = load_checkpoint("disentangled-m4-T64")
    model = checkpoint.model
    settings = {"names": COMPARED, "n_sequences": 64}
    by_model = identify_algorithm(model, checkpoint.task, **settings)
    by_function = identify_algorithm(
        lambda tokens: model(tokens, last_only=True), checkpoint.task, length=64, **settings
    )
    assert by_function == by_model
    assert identify_algorithm(Predictions(model), checkpoint.task, **settings) == by_model


def test_a_torch_module_is_a_function():
    class Net(torch.nn.Module):
        def forward(self, tokens):
            return bayes(tokens)

    assert identified(Net(), n_sequences=64).best == "exact_bayes"


def test_length_or_tokens():
    tokens = TASK.sample(64, 30, seed=1).tokens
    assert identified(bayes, tokens=tokens, length=None).seed is None
    with pytest.raises(
        ValueError,
        match=r"^length: a function does not determine the length .* "
        "length=",
    ):
        identified(bayes, length=None)
    with pytest.raises(ValueError, match="not both"):
        identified(bayes, tokens=tokens)


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda tokens: torch.ones(len(tokens), 7, 5) / 5, r"got shape \(64, 7, 5\)"),
        (lambda tokens: torch.ones(3, 5) / 5, r"got shape \(3, 5\)"),
        (lambda tokens: torch.ones(len(tokens), 4) / 4, "over the task's 5 tokens, got 4"),
        (lambda tokens: 9 * bayes(tokens).log(), "if these are logits, apply a softmax"),
        (lambda tokens: bayes(tokens) / 0, "expected finite entries"),
        (lambda tokens: [["a"]], "expected numbers"),
    ],
)
def test_predictions_that_are_none(function, sentence):
    with pytest.raises(ValueError, match=sentence):
        identified(function, n_sequences=64)


@pytest.mark.parametrize("as_function", [False, True], ids=["model", "function"])
def test_an_algorithm_on_the_models_own_matrix_is_recognised(as_function):
    own = off_by(0.3)
    hooked = one_step(own, TASK.order, LENGTH, beta=12.0)
    model = (lambda tokens: hooked(tokens, last_only=True)) if as_function else hooked
    on_task = identified(model)
    on_own = identified(model, transition="model")
    assert on_task.divergences["one_step"] > 1e-3
    assert on_own.best == "one_step"
    assert on_own.divergences["one_step"] < 1e-11
    assert on_own.parameters["one_step"]["beta"] == pytest.approx(12, rel=1e-3)
    for found in on_own.shifted.values():
        assert found["one_step"] < 1e-11
    assert on_own.compared_on == "model"
    assert np.array(on_own.transition) == pytest.approx(own.numpy(), abs=1e-5)
    assert "Estimators use the transition matrix read from the model, not" in on_own.summary()
    assert on_task.compared_on == "task"
    assert on_task.transition is None


def test_a_given_matrix():
    own = off_by(0.3)
    model = one_step(own, TASK.order, LENGTH, beta=12.0)
    found = identified(model, transition=own.numpy())
    assert found.divergences["one_step"] < 1e-11
    assert found.compared_on == "given"
    with pytest.raises(ValueError, match="transition: expected a 5 × 5 matrix, like the task's"):
        identified(model, transition=torch.ones(4, 4) / 4)
    with pytest.raises(ValueError, match="transition: expected one of task, model; got 'modle'"):
        identified(model, transition="modle")


def test_no_matrix_to_compare_on():
    with pytest.raises(NotApplicable, match="its predictions after m equal tokens hardly depend"):
        identified(lambda tokens: torch.full((len(tokens), 5), 0.2), transition="model")
    lag_specific = LagSpecificMTDTask.random(5, 3, seed=0)
    with pytest.raises(NotApplicable):
        identified(bayes, lag_specific, transition="model")
    with pytest.raises(NotApplicable):
        identified(bayes, lag_specific, transition=TASK.transition)


def test_behaviour_of_a_function_is_the_matrix():
    tokens = TASK.sample(16, LENGTH, seed=0).tokens
    assert torch.allclose(behaviour(bayes, TASK, tokens), TASK.transition, atol=1e-12)
    assert torch.allclose(shown_transition(bayes, TASK, tokens), TASK.transition, atol=1e-8)


def test_registered_as_needing_predictions():
    assert PROBES["identify_algorithm"].needs == "predictions"
