"""Likelihoods, responsibilities and predictions against loops written out by hand."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_posterior import likelihoods_by_loop
from strategies import problems

from mtdinterp.estimators import (
    lag_likelihoods,
    log_likelihood,
    mean_responsibilities,
    predict_next,
    responsibilities,
    uniform_weights,
)
from mtdinterp.estimators.maximum_likelihood import em_step
from mtdinterp.estimators.mirror_descent import descend
from mtdinterp.evidence import gradient_at, log_likelihood_at, responsibilities_at
from mtdinterp.tasks import MTDTask

TRANSITION = [[0.2, 0.8], [0.6, 0.4]]


def test_a_case_worked_by_hand():
    """Tokens 0 1 1 0, two lags: step 0 is 1 after (1, 0), step 1 is 0 after (1, 1)."""
    tokens = [[0, 1, 1, 0]]
    assert lag_likelihoods(TRANSITION, tokens, 2).tolist() == [[[0.4, 0.8], [0.6, 0.6]]]
    expected = torch.tensor([[[1 / 3, 2 / 3], [1 / 2, 1 / 2]]], dtype=torch.float64)
    torch.testing.assert_close(
        responsibilities(TRANSITION, tokens, 2), expected, rtol=0, atol=1e-15
    )
    expected = torch.tensor([[5 / 12, 7 / 12]], dtype=torch.float64)
    torch.testing.assert_close(
        mean_responsibilities(TRANSITION, tokens, 2), expected, rtol=0, atol=1e-15
    )
    value = log_likelihood(TRANSITION, tokens, torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    assert value.item() == pytest.approx(np.log(0.7) + np.log(0.6), abs=1e-15)


def test_the_prediction_is_for_the_token_after_the_last():
    """After 1 1 0, lag 1 is the last token 0 and lag 2 is the 1 before it."""
    prediction = predict_next(TRANSITION, [[1, 1, 0]], [[0.9, 0.1]])
    assert prediction[0].tolist() == pytest.approx(
        [0.9 * 0.2 + 0.1 * 0.6, 0.9 * 0.8 + 0.1 * 0.4], abs=1e-15
    )


@given(problems())
def test_likelihoods_are_the_loop_written_out(problem):
    transition, tokens, order = problem.arguments
    by_loop = np.stack([likelihoods_by_loop(transition, row, order) for row in tokens])
    assert np.abs(lag_likelihoods(transition, tokens, order).numpy() - by_loop).max() < 1e-15


@given(problems())
def test_predictions_are_mixtures_of_the_rows_of_the_last_tokens(problem):
    transition, tokens, order = problem.arguments
    prediction = predict_next(transition, tokens, problem.data.weights)
    mixed = sum(
        problem.data.weights[:, g - 1, None] * transition[tokens[:, -g]]
        for g in range(1, order + 1)
    )
    torch.testing.assert_close(prediction, mixed, rtol=0, atol=1e-14)
    torch.testing.assert_close(
        prediction.sum(-1), torch.ones(len(tokens), dtype=torch.float64), rtol=0, atol=1e-14
    )


@given(problems(), st.floats(1e-3, 1e3))
def test_scaling_a_step_changes_no_estimate_and_shifts_the_likelihood(problem, scale):
    """Only ratios of a step's likelihoods carry evidence."""
    likelihoods = lag_likelihoods(*problem.arguments)
    factors = scale ** torch.linspace(-1, 1, problem.steps, dtype=torch.float64)
    scaled = likelihoods * factors[None, :, None]
    weights = problem.data.weights.clamp_min(1e-6)
    near = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(
        gradient_at(scaled, weights), gradient_at(likelihoods, weights), **near
    )
    torch.testing.assert_close(em_step(scaled, weights), em_step(likelihoods, weights), **near)
    torch.testing.assert_close(descend(scaled, 0.1, 3), descend(likelihoods, 0.1, 3), **near)
    shift = log_likelihood_at(scaled, weights) - log_likelihood_at(likelihoods, weights)
    torch.testing.assert_close(shift, factors.log().sum().expand(len(weights)), rtol=0, atol=1e-9)


@given(problems())
def test_responsibilities_are_distributions_and_their_gradient_is_consistent(problem):
    """γ at w sums to one at each step, and Σ_t γ_t(g) = w_g·∇ℓ_g."""
    likelihoods = lag_likelihoods(*problem.arguments)
    weights = problem.data.weights.clamp_min(1e-6)
    gamma = responsibilities_at(likelihoods, weights)
    torch.testing.assert_close(gamma.sum(-1), torch.ones_like(gamma[..., 0]), rtol=0, atol=1e-14)
    torch.testing.assert_close(
        gamma.sum(1), weights * gradient_at(likelihoods, weights), rtol=1e-10, atol=1e-12
    )


def test_log_likelihood_takes_numpy_weights_too():
    weights = np.array([[0.25, 0.75]])
    result = log_likelihood(np.array(TRANSITION), np.array([[0, 1, 1, 0]]), weights)
    assert result.item() == pytest.approx(np.log(0.7) + np.log(0.6), abs=1e-15)


@pytest.mark.parametrize("weights", [[[0.5, 0.6]], [[0.5, 0.5], [0.5, 0.5]], [[1.5, -0.5]]])
def test_log_likelihood_refuses_weights_that_are_not_one_distribution_a_sequence(weights):
    with pytest.raises(ValueError, match="weights: expected"):
        log_likelihood(TRANSITION, [[0, 1, 1, 0]], torch.tensor(weights, dtype=torch.float64))


def test_uniform_weights_are_one_over_order():
    task = MTDTask.random(3, 4, seed=0)
    assert (
        uniform_weights(task.transition, [[0, 1, 2, 0], [1, 1, 1, 1]], 4).tolist()
        == [[0.25] * 4] * 2
    )


@pytest.mark.parametrize("weights", [[[0.5, 0.6]], [[0.5, 0.5], [0.5, 0.5]], [[1.5, -0.5]]])
def test_predictions_refuse_weights_that_are_not_one_distribution_per_sequence(weights):
    with pytest.raises(ValueError, match="weights: expected"):
        predict_next(TRANSITION, [[0, 1, 1, 0]], torch.tensor(weights, dtype=torch.float64))


def test_the_message_about_weights_for_another_batch_has_both_shapes():
    message = r"weights: expected shape \[1, lag\], got \(2, 2\)"
    for function in (log_likelihood, predict_next):
        with pytest.raises(ValueError, match=message):
            function(TRANSITION, [[0, 1, 1, 0]], [[0.5, 0.5], [0.5, 0.5]])


def test_predictions_need_as_many_tokens_as_lags_and_no_more():
    prediction = predict_next(TRANSITION, [[1, 0]], [[0.9, 0.1]])
    expected = [0.9 * 0.2 + 0.1 * 0.6, 0.9 * 0.8 + 0.1 * 0.4]
    assert prediction[0].tolist() == pytest.approx(expected, abs=1e-15)
    with pytest.raises(ValueError, match="weights: 2 lags need at least as many tokens, got 1"):
        predict_next(TRANSITION, [[1]], [[0.9, 0.1]])
