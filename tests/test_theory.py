"""The paper's theorems about one-step mirror descent, measured."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems
from torch.autograd.functional import hessian, jacobian, jvp

from mtdinterp.estimators import exact_posterior_mean, lag_likelihoods, mirror_descent
from mtdinterp.evidence import gradient_at
from mtdinterp.tasks import MTDTask
from mtdinterp.theory import (
    equivalent_learning_rate,
    first_order_mirror_descent,
    first_order_posterior_mean,
    gradient_at_uniform,
    gradient_growth,
    hessian_at,
    smoothness_at_uniform,
    theory_beta,
)

EPSILONS = np.geomspace(1e-3, 1e-2, 4)


def weak_evidence(epsilon, order, seed=0):
    """(1-ε)·1pᵀ + ε·π with tokens fixed: at ε = 0 nothing can be learned, and the gradient is
    linear in ε."""
    task = MTDTask.random(4, order, seed=seed)
    transition = (1 - epsilon) * task.stationary.expand(4, 4) + epsilon * task.transition
    return transition, task.sample(1, 30, seed=seed + 1).tokens, order


def centred_gradient(arguments):
    gradient = gradient_at_uniform(*arguments)
    return gradient - gradient.mean(-1, keepdim=True)


def error_slope(order, concentration, learning_rate):
    """Slope, on log axes, of the distance between both estimators in the centred gradient's
    norm."""
    norms, errors = [], []
    for epsilon in EPSILONS:
        arguments = weak_evidence(epsilon, order)
        exact = exact_posterior_mean(*arguments, concentration=concentration, tolerance=1e-12)
        norms.append(centred_gradient(arguments).norm().item())
        errors.append((mirror_descent(*arguments, learning_rate) - exact).norm().item())
    return np.polyfit(np.log(norms), np.log(errors), 1)[0]


@pytest.mark.parametrize("concentration", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("order", [3, 4])
def test_mirror_descent_and_posterior_mean_differ_at_second_order_at_one_rate_only(
    order, concentration
):
    rate = equivalent_learning_rate(order, concentration)
    assert error_slope(order, concentration, rate) == pytest.approx(2, abs=0.15)
    assert error_slope(order, concentration, 1.5 * rate) == pytest.approx(1, abs=0.15)


def test_the_equivalent_rate_and_beta_are_the_papers_for_a_flat_prior():
    assert equivalent_learning_rate(4) == pytest.approx(1 / 5)
    assert equivalent_learning_rate(4, 0.5) == pytest.approx(1 / 3)
    assert theory_beta(4, 64) == pytest.approx(4 * 60 / 5)


@pytest.mark.parametrize("length", [3, 4])
def test_theory_beta_needs_a_length_above_the_order(length):
    with pytest.raises(ValueError, match=f"order: expected less than the length {length}, got 4"):
        theory_beta(4, length)


def test_first_order_mirror_descent_is_the_derivative_of_the_softmax():
    gradient = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    zero = torch.zeros(1, 3, dtype=torch.float64)
    value, slope = jvp(lambda g: (0.3 * g).softmax(-1), zero, gradient)
    torch.testing.assert_close(
        first_order_mirror_descent(gradient, 0.3), value + slope, rtol=0, atol=1e-15
    )


@pytest.mark.parametrize("concentration", [0.5, 1.0, (0.5, 1.0, 3.0)])
def test_first_order_posterior_mean_is_the_limit_of_weak_evidence(concentration):
    """What is left after the first order shrinks as the square of the evidence."""

    def rest(epsilon):
        arguments = weak_evidence(epsilon, 3)
        exact = exact_posterior_mean(*arguments, concentration=concentration, tolerance=1e-12)
        prior = first_order_posterior_mean(torch.zeros(1, 3), concentration)
        linear = first_order_posterior_mean(centred_gradient(arguments), concentration)
        return (exact - linear).norm() / (exact - prior).norm()

    assert rest(1e-2) < 0.05
    assert rest(1e-3).item() == pytest.approx(rest(1e-2).item() / 10, rel=0.2)


def test_first_order_forms_agree_at_the_equivalent_rate():
    gradient = torch.tensor([[1.0, -2.0, 0.5, 4.0]], dtype=torch.float64)
    for alpha in (0.3, 1.0, 2.0):
        descent = first_order_mirror_descent(gradient, equivalent_learning_rate(4, alpha))
        torch.testing.assert_close(
            descent, first_order_posterior_mean(gradient, alpha), rtol=0, atol=1e-15
        )


@given(problems(max_batch=1), st.integers(0, 1000))
def test_gradient_and_hessian_are_those_of_automatic_differentiation(problem, seed):
    likelihoods = lag_likelihoods(*problem.arguments)
    weights = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(problem.order)) + 0.01)

    def loss(w):
        return -(likelihoods[0] @ w).log().sum()

    def assert_near(result, expected):
        torch.testing.assert_close(result[0], expected, rtol=1e-9, atol=1e-9)

    uniform = torch.full((problem.order,), 1 / problem.order, dtype=torch.float64)
    assert_near(gradient_at(likelihoods, weights[None]), -jacobian(loss, weights))
    assert_near(gradient_at_uniform(*problem.arguments), -jacobian(loss, uniform))
    assert_near(hessian_at(likelihoods, weights[None]), hessian(loss, weights))


@given(problems(max_steps=30))
def test_smoothness_bounds_hold_and_are_ordered(problem):
    smoothness = smoothness_at_uniform(*problem.arguments)
    order, steps = problem.order, problem.steps
    bounds = (smoothness.tangent_bound, smoothness.full_bound, smoothness.paper_bound)
    assert bounds == (steps * (order - 1), steps * order, steps * order**2)
    slack = 1e-9 * steps
    assert (smoothness.tangent <= smoothness.full + slack).all()
    assert (smoothness.tangent <= smoothness.tangent_bound + slack).all()
    assert (smoothness.full <= smoothness.full_bound + slack).all()
    assert (smoothness.full >= steps / order - slack).all()


def test_smoothness_bounds_are_reached_when_one_lag_explains_every_token():
    """Under the identity 0 1 0 1 .. can only copy lag 2: c = (0, 1) at every step."""
    smoothness = smoothness_at_uniform(torch.eye(2), [[0, 1] * 5], 2)
    assert smoothness.full.item() == pytest.approx(smoothness.full_bound)
    assert smoothness.tangent.item() == pytest.approx(smoothness.tangent_bound)
    assert smoothness.hessian_bound.item() == float("inf")


@given(problems(max_steps=30), st.integers(0, 1000))
def test_the_hessian_is_bounded_over_the_whole_simplex(problem, seed):
    likelihoods = lag_likelihoods(*problem.arguments)
    drawn = np.random.default_rng(seed).dirichlet(
        np.full(problem.order, 0.3), size=problem.batch_size
    )
    norm = torch.linalg.matrix_norm(hessian_at(likelihoods, torch.from_numpy(drawn)), ord=2)
    assert (norm <= smoothness_at_uniform(*problem.arguments).hessian_bound * (1 + 1e-9)).all()


def test_the_expected_gradient_grows_linearly_and_fastest_for_the_heaviest_lag():
    task = MTDTask.random(5, 3, seed=0)
    growth = gradient_growth(task, [0.1, 0.7, 0.2], [16, 32, 64, 128, 256])
    assert growth.steps.tolist() == [13, 29, 61, 125, 253]
    assert (growth.r_squared > 0.99).all()
    assert growth.slope.argmax() == 1
    # Responsibilities sum to one at each step, so the gradients of the lags average to N, with
    # slope 1.
    torch.testing.assert_close(growth.gradient.mean(-1), growth.steps, rtol=1e-12, atol=0)
    assert growth.slope.mean().item() == pytest.approx(1, abs=1e-12)
    assert (growth.stderr > 0).all()
