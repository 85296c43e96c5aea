"""EM climbs, and its limit is optimal."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from mtdinterp.estimators import (
    expectation_maximization,
    lag_likelihoods,
    log_likelihood,
    mean_responsibilities,
    uniform_weights,
)
from mtdinterp.tasks import MTDTask


@given(problems(max_steps=30), st.integers(0, 8))
def test_the_likelihood_never_falls_from_one_step_to_the_next(problem, steps):
    transition, tokens, _ = problem.arguments
    before = log_likelihood(
        transition, tokens, expectation_maximization(*problem.arguments, steps=steps)
    )
    after = log_likelihood(
        transition, tokens, expectation_maximization(*problem.arguments, steps=steps + 1)
    )
    assert (after >= before - 1e-12 * (1 + before.abs())).all()


@given(problems(max_steps=30))
def test_the_limit_satisfies_the_optimality_conditions(problem):
    """On the simplex the mean over t of c_tg/(w·c_t) is at most 1, and averages to 1 under w."""
    likelihoods = lag_likelihoods(*problem.arguments)
    weights = expectation_maximization(*problem.arguments)
    score = (likelihoods / (likelihoods * weights[:, None, :]).sum(-1, keepdim=True)).mean(1)
    assert (score < 1 + 1e-8).all()
    torch.testing.assert_close(
        (weights * score).sum(-1), torch.ones(len(weights), dtype=torch.float64), rtol=0, atol=1e-10
    )


@given(problems(max_steps=30), st.integers(0, 10_000))
def test_no_other_weights_are_likelier_than_the_limit(problem, seed):
    transition, tokens, order = problem.arguments
    others = torch.distributions.Dirichlet(torch.full((order,), 0.5, dtype=torch.float64))
    torch.manual_seed(seed)
    best = log_likelihood(transition, tokens, expectation_maximization(*problem.arguments))
    assert (log_likelihood(transition, tokens, others.sample((len(tokens),))) <= best + 1e-6).all()


def test_no_step_is_uniform_and_one_step_is_the_mean_responsibility():
    task = MTDTask.random(4, 3, seed=0)
    arguments = task.transition, task.sample(3, 20, seed=1).tokens, 3
    assert torch.equal(expectation_maximization(*arguments, steps=0), uniform_weights(*arguments))
    torch.testing.assert_close(
        expectation_maximization(*arguments, steps=1),
        mean_responsibilities(*arguments),
        rtol=0,
        atol=1e-15,
    )


def test_identical_rows_leave_the_weights_uniform():
    weights = expectation_maximization(torch.full((3, 3), 1 / 3), [[0, 1, 2, 1]], 2)
    torch.testing.assert_close(
        weights, torch.full((1, 2), 0.5, dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_the_last_allowed_cycle_counts():
    """Identical rows are optimal from the start, so one cycle is enough."""
    weights = expectation_maximization(torch.full((3, 3), 1 / 3), [[0, 1, 2, 1]], 2, max_cycles=1)
    torch.testing.assert_close(
        weights, torch.full((1, 2), 0.5, dtype=torch.float64), rtol=0, atol=1e-15
    )


def test_too_few_cycles_is_an_error_that_says_how_far_it_came():
    task = MTDTask.random(5, 3, seed=0)
    tokens = task.sample(4, 64, seed=1).tokens
    with pytest.raises(
        RuntimeError, match=r"\d of 4 sequences did not reach tolerance 1e-09 in 1 cycles"
    ):
        expectation_maximization(task.transition, tokens, 3, max_cycles=1)


def test_no_cycle_at_all_is_refused():
    with pytest.raises(ValueError, match="max_cycles: expected an integer ≥ 1, got 0"):
        expectation_maximization([[0.5, 0.5], [0.1, 0.9]], [[0, 1, 0]], 1, max_cycles=0)


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(ValueError, match="steps: expected an integer ≥ 0, got -1"):
        expectation_maximization(torch.eye(2), [[0, 1, 0, 1]], 2, steps=-1)
