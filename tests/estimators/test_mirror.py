"""Mirror descent: its closed form, its fixed points, and the translation between η and β."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from mtdinterp.estimators import (
    TwoStepConstants,
    beta_from_learning_rate,
    expectation_maximization,
    learning_rate_from_beta,
    mean_responsibilities,
    mirror_descent,
    responsibilities,
    reweighted_two_step,
    uniform_weights,
)
from mtdinterp.tasks import MTDTask


@given(problems(), st.floats(0.0, 2.0))
def test_one_step_is_softmax_of_beta_times_the_mean_responsibilities(problem, learning_rate):
    beta = learning_rate * problem.order * problem.steps
    closed_form = (beta * mean_responsibilities(*problem.arguments)).softmax(-1)
    result = mirror_descent(*problem.arguments, learning_rate)
    torch.testing.assert_close(result, closed_form, rtol=1e-11, atol=1e-13)


@given(problems(), st.floats(0.01, 0.5), st.integers(1, 4))
def test_steps_are_the_exponentiated_gradient_written_out(problem, learning_rate, steps):
    gamma = responsibilities(*problem.arguments)
    weights = uniform_weights(*problem.arguments)
    for _ in range(steps):
        gradient = (gamma / (gamma * weights[:, None, :]).sum(-1, keepdim=True)).sum(1)
        weights = (
            weights * (learning_rate * (gradient - gradient.max(-1, keepdim=True).values)).exp()
        )
        weights = weights / weights.sum(-1, keepdim=True)
    result = mirror_descent(*problem.arguments, learning_rate, steps)
    torch.testing.assert_close(result, weights, rtol=1e-8, atol=1e-11)


def test_no_step_and_no_rate_leave_uniform_weights():
    task = MTDTask.random(4, 3, seed=0)
    arguments = task.transition, task.sample(3, 20, seed=1).tokens, 3
    assert torch.equal(mirror_descent(*arguments, 0.5, steps=0), uniform_weights(*arguments))
    assert torch.equal(mirror_descent(*arguments, 0.0), uniform_weights(*arguments))


def test_many_small_steps_reach_the_maximum_likelihood():
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(3, 64, seed=1).tokens, 3
    limit = mirror_descent(*arguments, 0.05, steps=1000)
    torch.testing.assert_close(limit, expectation_maximization(*arguments), rtol=0, atol=1e-4)


def test_a_huge_rate_picks_the_best_lag_without_overflow():
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(3, 64, seed=1).tokens, 3
    weights = mirror_descent(*arguments, 1e6)
    best = mean_responsibilities(*arguments).argmax(-1)
    assert torch.equal(weights, torch.nn.functional.one_hot(best, 3).double())


def test_beta_and_learning_rate_are_each_others_inverse():
    assert beta_from_learning_rate(0.05, order=4, length=64) == pytest.approx(12.0)
    assert learning_rate_from_beta(12.0, order=4, length=64) == pytest.approx(0.05)


@pytest.mark.parametrize("convert", [beta_from_learning_rate, learning_rate_from_beta])
@pytest.mark.parametrize("length", [3, 2])
def test_beta_needs_a_length_above_the_order(convert, length):
    with pytest.raises(ValueError, match=f"order: expected less than the length {length}, got 3"):
        convert(0.5, 3, length)


def test_two_step_estimator_without_its_second_term_is_one_step_mirror_descent():
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(3, 64, seed=1).tokens, 3
    weights = reweighted_two_step(*arguments, TwoStepConstants(3.0, 5.0, 15.0, 0.0))
    torch.testing.assert_close(
        weights, mirror_descent(*arguments, 15 / (3 * 61)), rtol=0, atol=1e-13
    )


def test_two_step_estimator_without_sharpness_averages_like_the_first():
    """With a = 0 every position counts the same, so Γ² = Γ and only c₁ + c₂ matters."""
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(3, 64, seed=1).tokens, 3
    split = reweighted_two_step(*arguments, TwoStepConstants(3.0, 0.0, 5.0, 10.0))
    torch.testing.assert_close(split, mirror_descent(*arguments, 15 / (3 * 61)), rtol=0, atol=1e-13)


def test_two_step_estimator_is_its_formula_position_by_position():
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(2, 20, seed=1).tokens, 3
    result = reweighted_two_step(*arguments, TwoStepConstants(9.0, 4.0, 2.0, 7.0))
    for row, gamma in zip(result, responsibilities(*arguments), strict=True):
        first = (9.0 * gamma.mean(0)).softmax(0)
        share = torch.stack([(-4.0 * (first @ step)).exp() for step in gamma])
        second = sum(s * step for s, step in zip(share / share.sum(), gamma, strict=True))
        torch.testing.assert_close(
            row, (2.0 * gamma.mean(0) + 7.0 * second).softmax(0), rtol=0, atol=1e-13
        )


def test_many_steps_at_a_huge_rate_do_not_overflow():
    """The sum of so many gradients is no finite number; their differences decide."""
    task = MTDTask.random(5, 3, seed=0)
    arguments = task.transition, task.sample(3, 64, seed=1).tokens, 3
    weights = mirror_descent(*arguments, 1e304, steps=400)
    assert torch.equal(weights.max(-1).values, torch.ones(3, dtype=torch.float64))
    assert torch.equal(weights.sum(-1), torch.ones(3, dtype=torch.float64))


def test_a_negative_rate_is_refused():
    with pytest.raises(ValueError, match=r"learning_rate: expected a number ≥ 0, got -0\.5"):
        mirror_descent([[0.5, 0.5], [0.1, 0.9]], [[0, 1, 0]], 1, -0.5)
