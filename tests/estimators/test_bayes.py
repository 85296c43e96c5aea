"""The exact posterior mean against slow methods that share no code with it."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from reference_posterior import expected_counts, likelihoods_by_loop, mean_by_counts, mean_by_paths
from scipy.special import gammaln
from strategies import Problem, problems

from mtdinterp.errors import RuleTooLarge
from mtdinterp.estimators import exact_posterior_mean, lag_likelihoods
from mtdinterp.tasks import MTDTask

CONCENTRATIONS = [0.1, 0.5, 1.0, 3.0]
ONE_PER_LAG = (0.3, 2.0, 1.0, 3.0)


def one_sequence(order, length, vocab_size=5, seed=0):
    task = MTDTask.random(vocab_size, order, seed=seed)
    tokens = task.sample(1, length, seed=seed + 1).tokens
    return task.transition, tokens, order


def as_alpha(concentration, order):
    return (
        np.full(order, concentration)
        if np.isscalar(concentration)
        else np.array(concentration[:order])
    )


def error(arguments, concentration, reference, **options):
    """Largest difference between the package and a reference that takes (c, alpha)."""
    transition, tokens, order = arguments
    alpha = as_alpha(concentration, order)
    known = reference(likelihoods_by_loop(transition, tokens[0], order), alpha)
    result = exact_posterior_mean(transition, tokens, order, concentration=alpha, **options)
    return np.abs(result[0].numpy() - known).max()


@pytest.mark.parametrize("concentration", [*CONCENTRATIONS, ONE_PER_LAG])
@pytest.mark.parametrize(("order", "length"), [(1, 6), (2, 12), (3, 10), (4, 10)])
def test_agrees_with_every_lag_path_enumerated(order, length, concentration):
    assert error(one_sequence(order, length, vocab_size=3), concentration, mean_by_paths) < 1e-12


@pytest.mark.parametrize("concentration", [*CONCENTRATIONS, ONE_PER_LAG])
@pytest.mark.parametrize(("order", "length"), [(2, 200), (3, 64), (4, 40)])
def test_agrees_with_the_likelihood_polynomial_expanded(order, length, concentration):
    assert error(one_sequence(order, length), concentration, mean_by_counts) < 1e-10


def expected_count_mean(c, alpha):
    return (alpha + expected_counts(c, alpha)) / (alpha.sum() + len(c))


@pytest.mark.parametrize("concentration", [*CONCENTRATIONS, ONE_PER_LAG])
@pytest.mark.parametrize(("order", "length"), [(2, 128), (3, 64), (4, 32)])
def test_posterior_mean_is_prior_plus_expected_count_over_total(order, length, concentration):
    assert error(one_sequence(order, length), concentration, expected_count_mean) < 1e-10


@pytest.mark.parametrize("tolerance", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize(("order", "length"), [(2, 400), (3, 64), (4, 40)])
def test_the_tolerance_asked_for_is_met(order, length, tolerance):
    for seed in range(5):
        arguments = one_sequence(order, length, seed=10 * seed)
        assert error(arguments, 1.0, mean_by_counts, tolerance=tolerance) < tolerance


@given(
    problems(min_order=2, max_order=2, max_steps=300, max_batch=1),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from([1e-4, 1e-7, 1e-10]),
)
@example(Problem(2, 2, 168, 1, 0.3, 656), 1.0, 1e-7)  # two neighbouring rules agree by accident
def test_the_tolerance_is_met_for_two_lags_however_sharp_the_rows(
    problem, concentration, tolerance
):
    assert error(problem.arguments, concentration, mean_by_counts, tolerance=tolerance) < tolerance


@given(
    problems(min_order=3, max_order=3, max_steps=60, max_batch=1),
    st.sampled_from([0.1, 1.0, 3.0]),
    st.sampled_from([1e-4, 1e-10]),
)
def test_the_tolerance_is_met_for_three_lags_however_sharp_the_rows(
    problem, concentration, tolerance
):
    assert error(problem.arguments, concentration, mean_by_counts, tolerance=tolerance) < tolerance


def test_a_small_difference_between_rules_is_not_taken_for_a_small_error():
    """For one of these sequences two neighbouring rules agree by accident."""
    transition = np.random.default_rng(13).dirichlet([0.3] * 3, size=3)
    tokens = MTDTask(transition, 2).sample(60, 120, seed=13).tokens
    coarse = exact_posterior_mean(transition, tokens, 2, concentration=3.0, tolerance=1e-5)
    exact = exact_posterior_mean(transition, tokens, 2, concentration=3.0, tolerance=1e-12)
    assert (coarse - exact).abs().max() < 1e-5


def test_a_sequence_does_not_depend_on_its_batch():
    task = MTDTask.random(5, 3, seed=2)
    tokens = task.sample(20, 64, seed=3).tokens
    alone = torch.cat([exact_posterior_mean(task.transition, row[None], 3) for row in tokens])
    assert (exact_posterior_mean(task.transition, tokens, 3) - alone).abs().max() < 1e-10


def test_too_few_nodes_is_an_error_that_names_the_size_needed():
    message = (
        "4 components and 60 steps are too many for exact integration: 1 of 1 sequences need "
        "between 2,197 and 29,791 nodes for tolerance 1e-10, and max_nodes is 500; in Python, "
        "mtdinterp.estimators.posterior_mean estimates the posterior mean by sampling"
    )
    with pytest.raises(RuleTooLarge) as caught:
        exact_posterior_mean(*one_sequence(4, 64), max_nodes=500)
    assert str(caught.value) == message


def test_identical_rows_leave_the_prior_mean():
    alpha = np.array([0.2, 1.0, 3.0])
    result = exact_posterior_mean(
        np.full((4, 4), 0.25), [[0, 1, 3, 2, 2, 1, 0, 3]], 3, concentration=alpha
    )
    assert np.abs(result[0].numpy() - alpha / alpha.sum()).max() < 1e-14


def test_a_deterministic_matrix_gives_the_laplace_rule():
    """Under the identity, 0 1 0 1 can only copy lag 2, twice: the posterior is Dirichlet(1, 3)."""
    result = exact_posterior_mean(torch.eye(2), [[0, 1, 0, 1]], 2)
    assert (result - torch.tensor([[0.25, 0.75]], dtype=torch.float64)).abs().max() < 1e-15


def mean_of_two_lags(likelihoods: torch.Tensor, alpha: tuple[float, float]) -> float:
    """E[w_1 | tokens] for two lags: the likelihood as a polynomial over the count of lag 1, in
    logarithms."""
    log = np.full(len(likelihoods) + 1, -np.inf)
    log[0] = 0.0
    for first, second in likelihoods.log().numpy():
        shifted = np.concatenate([[-np.inf], log[:-1]])
        log = np.logaddexp(shifted + first, log + second)
    count, total = np.arange(len(log)), len(log) - 1
    log += gammaln(alpha[0] + count) + gammaln(alpha[1] + total - count)
    weight = np.exp(log - log.max())
    return float((weight * (alpha[0] + count) / (sum(alpha) + total)).sum() / weight.sum())


@pytest.mark.parametrize(
    "alpha", [(0.1, 0.1), (0.1, 3.0), (0.01, 0.1), (1.0, 1.0), (100.0, 100.0), (1e4, 1e4)]
)
@pytest.mark.parametrize("length", [8, 300, 1500])
def test_long_sequences_and_any_concentration_keep_the_tolerance(alpha, length):
    """Where rules from library routines lose digits: many nodes, exponents far from zero."""
    task = MTDTask.random(5, 2, seed=1)
    tokens = task.sample(2, length, seed=length).tokens
    means = exact_posterior_mean(task.transition, tokens, 2, concentration=alpha)
    for row, mean in zip(lag_likelihoods(task.transition, tokens, 2), means, strict=True):
        assert abs(mean[0].item() - mean_of_two_lags(row, alpha)) <= 1e-10


def test_both_implementations_of_the_likelihood_agree(monkeypatch):
    for order, length in ((1, 5), (2, 9), (3, 130), (4, 40), (5, 20), (7, 12)):
        task = MTDTask.random(4, order, seed=order)
        tokens = task.sample(3, length, seed=0).tokens
        means = []
        for kernel in ("eager", "fused"):
            monkeypatch.setenv("MTDINTERP_KERNEL", kernel)
            means.append(exact_posterior_mean(task.transition, tokens, order))
        assert (means[0] - means[1]).abs().max() <= 1e-13
