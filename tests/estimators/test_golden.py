"""Every estimator gives the known answers of `tests/data/golden_cases.json`."""

import torch

from mtdinterp.estimators import (
    exact_posterior_mean,
    expectation_maximization,
    gibbs_posterior_mean,
    log_likelihood,
    mean_responsibilities,
    mirror_descent,
    predict_next,
    uniform_weights,
)
from mtdinterp.estimators.gibbs import chain_stderr


def arguments(case):
    return case["transition"], case["tokens"], case["order"]


def assert_near(result, known, tolerance):
    torch.testing.assert_close(
        result, torch.tensor(known, dtype=torch.float64), rtol=0, atol=tolerance
    )


def test_mean_responsibilities(golden):
    assert_near(mean_responsibilities(*arguments(golden)), golden["mean_responsibilities"], 1e-12)


def test_log_likelihood_at_uniform_weights(golden):
    weights = uniform_weights(*arguments(golden))
    result = log_likelihood(golden["transition"], golden["tokens"], weights)
    assert_near(result, golden["log_likelihood_uniform"], 1e-10)


def test_mirror_descent_weights_and_predictions(golden):
    for known in golden["mirror_descent"]:
        weights = mirror_descent(*arguments(golden), known["learning_rate"], known["steps"])
        assert_near(weights, known["weights"], 1e-10)
        assert_near(
            predict_next(golden["transition"], golden["tokens"], weights),
            known["next_probs"],
            1e-10,
        )


def test_maximum_likelihood(golden):
    assert_near(expectation_maximization(*arguments(golden)), golden["maximum_likelihood"], 1e-6)


def test_exact_posterior_mean_and_prediction(golden):
    weights = exact_posterior_mean(*arguments(golden))
    assert_near(weights, golden["bayes_posterior_mean"], 1e-10)
    assert_near(
        predict_next(golden["transition"], golden["tokens"], weights),
        golden["bayes_next_probs"],
        1e-10,
    )


def test_gibbs_is_within_four_standard_errors_of_the_exact_mean(golden):
    exact = torch.tensor(golden["bayes_posterior_mean"], dtype=torch.float64)
    for rao_blackwell in (False, True):
        mean, stderr = gibbs_posterior_mean(
            *arguments(golden), rao_blackwell=rao_blackwell, return_stderr=True
        )
        assert ((mean - exact).abs() < 4 * stderr).all()
        assert (stderr < 0.03).all()


def test_standard_error_of_independent_draws_is_the_textbook_one():
    draws = torch.randn(
        4000, 3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).numpy()
    assert abs(chain_stderr(draws) * 4000**0.5 - 1).max() < 0.1
