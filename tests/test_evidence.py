"""Evidence: every formula against a loop written out, and what holds at extreme weights."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from mtdinterp.estimators import expectation_maximization, mirror_descent
from mtdinterp.estimators.maximum_likelihood import maximise_likelihood, optimality_gap
from mtdinterp.evidence import (
    Evidence,
    evidence_of,
    gradient_at,
    log_likelihood_at,
    responsibilities_at,
)
from mtdinterp.metrics import kl_divergence
from mtdinterp.tasks import MTDTask


def evidence_and_weights(problem):
    evidence = problem.task.evidence(problem.data.tokens)
    return evidence, problem.data.weights.clamp_min(1e-6)


@given(problems())
def test_evidence_of_plain_arrays_is_that_of_the_task(problem):
    by_task = problem.task.evidence(problem.data.tokens)
    by_arrays = evidence_of(*problem.arguments)
    assert torch.equal(by_task.likelihoods, by_arrays.likelihoods)
    assert torch.equal(by_task.rows, by_arrays.rows)
    assert (by_task.n_steps, by_task.n_components) == (problem.steps, problem.order)
    assert len(by_task) == problem.batch_size


@given(problems())
def test_every_formula_is_its_loop(problem):
    evidence, weights = evidence_and_weights(problem)
    transition = problem.task.transition.numpy()
    for b in range(problem.batch_size):
        tokens = problem.data.tokens[b].tolist()
        w = weights[b].tolist()
        lags = range(1, problem.order + 1)
        log_likelihood = 0.0
        gradient = np.zeros(problem.order)
        uniform_mean = np.zeros(problem.order)
        for t in range(problem.order, len(tokens)):
            c = [transition[tokens[t - g], tokens[t]] for g in lags]
            mixed = sum(w[g - 1] * c[g - 1] for g in lags)
            log_likelihood += math.log(mixed)
            for g in lags:
                step = t - problem.order
                gamma = w[g - 1] * c[g - 1] / mixed
                gradient[g - 1] += c[g - 1] / mixed
                uniform_mean[g - 1] += c[g - 1] / sum(c) / problem.steps
                assert evidence.likelihoods[b, step, g - 1].item() == c[g - 1]
                at_weights = evidence.responsibilities(weights)[b, step, g - 1].item()
                assert at_weights == pytest.approx(gamma, abs=1e-12)
                at_uniform = evidence.responsibilities()[b, step, g - 1].item()
                assert at_uniform == pytest.approx(c[g - 1] / sum(c), abs=1e-12)
        prediction = np.zeros(problem.vocab_size)
        for g in lags:
            prediction += w[g - 1] * transition[tokens[-g]]
            np.testing.assert_array_equal(evidence.rows[b, g - 1], transition[tokens[-g]])
        assert evidence.log_likelihood(weights)[b].item() == pytest.approx(log_likelihood)
        np.testing.assert_allclose(evidence.gradient(weights)[b], gradient, rtol=1e-10)
        np.testing.assert_allclose(evidence.mean_responsibilities[b], uniform_mean, atol=1e-13)
        np.testing.assert_allclose(evidence.predict(weights)[b], prediction, atol=1e-14)


@given(problems())
def test_the_gradient_is_the_slope_of_the_log_likelihood(problem):
    evidence, weights = evidence_and_weights(problem)
    weights = 0.5 * weights + 0.5 * evidence.uniform
    step = 1e-6
    for g in range(problem.order):
        shift = step * torch.eye(problem.order, dtype=torch.float64)[g]
        above = evidence.log_likelihood(weights + shift)
        below = evidence.log_likelihood(weights - shift)
        slope = (above - below) / (2 * step)
        torch.testing.assert_close(slope, evidence.gradient(weights)[:, g], rtol=1e-5, atol=1e-6)


@given(problems())
def test_responsibilities_sum_to_one_at_any_weights(problem):
    evidence, weights = evidence_and_weights(problem)
    corner = torch.zeros_like(weights)
    corner[:, 0] = 1
    for some in (None, weights, corner):
        gamma = evidence.responsibilities(some)
        assert (gamma >= 0).all()
        assert (gamma.sum(-1) - 1).abs().max() < 1e-14


@given(problems())
def test_the_divergence_is_the_kl_of_the_prediction(problem):
    evidence, weights = evidence_and_weights(problem)
    target = evidence.predict(evidence.uniform)
    assert evidence.divergence(target, evidence.uniform).abs().max() < 1e-15
    divergence = evidence.divergence(target, weights)
    sides = []
    for side in (target, evidence.predict(weights)):
        clipped = side.clamp_min(1e-6)
        sides.append(clipped / clipped.sum(-1, keepdim=True))
    expected = kl_divergence(*sides)
    torch.testing.assert_close(divergence, expected, rtol=1e-9, atol=1e-12)


def test_raw_outputs_with_negative_entries_have_a_divergence():
    """A trained model's output is not a distribution."""
    task = MTDTask.random(3, 2, seed=0)
    evidence = task.evidence([[0, 1, 2, 0, 1]])
    raw = torch.tensor([[0.7, 0.4, -0.1]], dtype=torch.float64)
    clipped = torch.tensor([[0.7, 0.4, 1e-6]], dtype=torch.float64)
    clipped = clipped / clipped.sum()
    divergence = evidence.divergence(raw, evidence.uniform)
    expected = kl_divergence(clipped, evidence.predict(evidence.uniform))
    torch.testing.assert_close(divergence, expected, rtol=0, atol=1e-12)


def test_no_prediction_is_infinitely_far():
    evidence = Evidence(
        torch.ones(1, 1, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)[None]
    )
    corner = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    target = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    assert torch.isfinite(evidence.divergence(target, corner)).all()


def test_a_slice_is_the_evidence_of_some_of_the_sequences():
    task = MTDTask.random(4, 3, seed=0, concentration=(1.0, 2.0, 3.0))
    tokens = task.sample(10, 20, seed=1).tokens
    evidence = task.evidence(tokens)
    for some in (slice(2, 7), torch.tensor([8, 0, 3])):
        part = evidence[some]
        alone = task.evidence(tokens[some])
        assert len(part) == len(alone)
        assert torch.equal(part.likelihoods, alone.likelihoods)
        assert torch.equal(part.rows, alone.rows)
        assert torch.equal(part.mean_responsibilities, alone.mean_responsibilities)
        assert part.concentration == (1.0, 2.0, 3.0)


def test_weights_matter_unless_all_components_predict_alike():
    tokens = [[0, 1, 2, 0, 1]]
    assert evidence_of(MTDTask.random(3, 2, seed=0).transition, tokens, 2).weights_matter
    assert not evidence_of(np.full((3, 3), 1 / 3), tokens, 2).weights_matter
    assert not evidence_of(MTDTask.random(3, 2, seed=0).transition, tokens, 1).weights_matter


# Extreme weights ----------------------------------------------------------------------------------

CYCLE = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
"""A permutation: exactly one successor per token, so that most lags explain nothing."""


@pytest.mark.parametrize("rate", [1.0, 50.0, 1e4])
@pytest.mark.parametrize("steps", [2, 5])
def test_descent_on_a_permutation_stays_on_the_simplex_at_any_rate(rate, steps):
    """After a long step a weight is exactly zero, and still the only one to explain a token."""
    tokens = MTDTask(CYCLE, 2).sample(50, 40, seed=0).tokens
    weights = mirror_descent(CYCLE, tokens, 2, rate, steps=steps)
    assert (weights == 0).any()
    assert torch.isfinite(weights).all()
    assert (weights.sum(-1) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("least", [1.0, 1e-12, 1e-90])
def test_formulas_stay_finite_if_a_weight_of_zero_alone_explains_a_token(least):
    likelihoods = torch.tensor([[[0.5, 0.0], [0.0, least]]], dtype=torch.float64)
    weights = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    gamma = responsibilities_at(likelihoods, weights)
    assert gamma.tolist() == [[[1.0, 0.0], [0.0, 1.0]]]
    gradient = gradient_at(likelihoods, weights)
    assert torch.isfinite(gradient).all()
    assert gradient[0, 0].item() == 1.0
    assert gradient[0, 1] > 1e100
    assert torch.isfinite(log_likelihood_at(likelihoods, weights)).all()


# Maximum likelihood -------------------------------------------------------------------------------


def test_maximum_likelihood_needs_few_cycles():
    """An extrapolation that sends weights near zero would take thousands to come back."""
    task = MTDTask.random(5, 3, seed=1)
    tokens = task.sample(300, 64, seed=1).tokens
    weights = expectation_maximization(task.transition, tokens, 3, max_cycles=200)
    assert (weights.sum(-1) - 1).abs().max() < 1e-12


@given(problems(max_steps=30), st.integers(0, 100))
def test_the_gap_bounds_every_violation_of_the_optimality_conditions(problem, seed):
    """|w·(v - 1)| is never larger than the excess of v over 1, with v the mean gradient."""
    likelihoods = problem.task.evidence(problem.data.tokens).likelihoods
    prior = np.random.default_rng(seed).dirichlet(np.ones(problem.order), problem.batch_size)
    weights = torch.from_numpy(prior)
    gap = optimality_gap(likelihoods, weights)
    excess = gradient_at(likelihoods, weights) / problem.steps - 1
    assert ((weights * excess).abs() <= gap[:, None] + 1e-12).all()
    assert (excess <= gap[:, None]).all()


@given(problems(max_steps=30))
def test_the_gap_bounds_how_much_likelihood_is_left(problem):
    """ℓ is concave, so that its maximum exceeds ℓ(w) by at most steps·gap."""
    evidence = problem.task.evidence(problem.data.tokens)
    best = evidence.log_likelihood(maximise_likelihood(evidence.likelihoods))
    left = best - evidence.log_likelihood(evidence.uniform)
    bound = problem.steps * optimality_gap(evidence.likelihoods, evidence.uniform)
    assert (left <= bound + 1e-9).all()
