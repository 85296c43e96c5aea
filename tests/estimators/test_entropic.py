"""Entropy-regularised maximum likelihood: stationarity, its two limits, and which sign helps."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from mtdinterp.estimators import (
    entropic_map,
    entropic_path,
    exact_posterior_mean,
    expectation_maximization,
    lag_likelihoods,
    predict_next,
    uniform_weights,
)
from mtdinterp.metrics import kl_divergence
from mtdinterp.tasks import MTDTask


@given(problems(max_steps=30), st.sampled_from([0.3, 1.0, 5.0, 40.0]))
def test_the_gradient_of_the_objective_is_constant_over_lags(problem, strength):
    """∇ℓ_g - s·log w_g is one number for all lags (the constraint's multiplier)."""
    likelihoods = lag_likelihoods(*problem.arguments)
    weights = entropic_map(*problem.arguments, strength)
    gradient = (likelihoods / (likelihoods * weights[:, None, :]).sum(-1, keepdim=True)).sum(1)
    slope = gradient - strength * weights.log()
    residual = weights * (slope - (weights * slope).sum(-1, keepdim=True)) / problem.steps
    assert residual.abs().max() < 1e-7


def test_strength_zero_is_the_maximum_likelihood():
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(3, 64, seed=1).tokens, 3
    assert torch.equal(entropic_map(*arguments, 0.0), expectation_maximization(*arguments))
    torch.testing.assert_close(
        entropic_map(*arguments, 1e-6), expectation_maximization(*arguments), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("strength", [1e4, 1e7])
def test_large_strengths_tend_to_uniform_at_first_order(strength):
    """For s → ∞, w = 1/m + (g - mean g)/(m·s) with g the gradient at uniform weights."""
    task = MTDTask.random(5, 4, seed=0)
    arguments = task.transition, task.sample(3, 64, seed=1).tokens, 4
    likelihoods = lag_likelihoods(*arguments)
    gradient = (likelihoods / likelihoods.mean(-1, keepdim=True)).sum(1)
    expected = (gradient - gradient.mean(-1, keepdim=True)) / (4 * strength)
    deviation = entropic_map(*arguments, strength) - uniform_weights(*arguments)
    assert (deviation - expected).abs().max() < 0.05 * expected.abs().max() + 1e-9


def test_the_path_is_the_map_at_each_strength():
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(2, 64, seed=1).tokens, 3
    path = entropic_path(*arguments, [10.0, 1.0, 0.0])
    assert torch.equal(path, torch.stack([entropic_map(*arguments, s) for s in (10.0, 1.0, 0.0)]))


def test_positive_entropy_comes_close_to_bayes_and_the_papers_sign_is_worse_than_the_mle():
    task = MTDTask.random(5, 4, seed=0)
    data = task.sample(400, 64, seed=1)
    arguments = task.transition, data.tokens, 4

    def kl(weights):
        return (
            kl_divergence(data.next_probs, predict_next(task.transition, data.tokens, weights))
            .mean()
            .item()
        )

    bayes, likeliest = (
        kl(exact_posterior_mean(*arguments)),
        kl(expectation_maximization(*arguments)),
    )
    assert kl(entropic_map(*arguments, 5.0)) < bayes + 0.15 * (likeliest - bayes)
    assert kl(entropic_map(*arguments, -2.0)) > 1.2 * likeliest


def test_a_sequence_does_not_depend_on_its_batch():
    """With nearly deterministic rows, a full Newton step overshoots for some of the sequences."""
    transition = np.random.default_rng(7).dirichlet([0.3] * 4, size=4)
    tokens = MTDTask(transition, 4).sample(20, 10, seed=7).tokens
    together = entropic_map(transition, tokens, 4, 0.01)
    alone = torch.cat([entropic_map(transition, row[None], 4, 0.01) for row in tokens])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("tolerance", [0.0, -0.5])
def test_a_tolerance_must_be_positive(tolerance):
    message = f"tolerance: expected a number > 0, got {tolerance:g}"
    for strength in (1.0, 0.0, -1.0):
        with pytest.raises(ValueError, match=message):
            entropic_map([[0.5, 0.5], [0.1, 0.9]], [[0, 1, 0]], 1, strength, tolerance)
