"""Tuning the learning rate: it finds a minimum, for the target asked for, or says that it did
not."""

import numpy as np
import pytest

from mtdinterp.estimators import (
    exact_posterior_mean,
    mirror_descent,
    predict_next,
    tune_learning_rate,
)
from mtdinterp.estimators.tuning import minimise_on_grid
from mtdinterp.metrics import kl_divergence
from mtdinterp.tasks import MTDTask

LENGTH, SEQUENCES, SEED = 48, 400, 3


@pytest.fixture(scope="module")
def task():
    return MTDTask.random(5, 3, seed=1)


def mean_kl(task, target, learning_rate, steps):
    """The quantity that tuning minimises, computed here from the public functions alone."""
    data = task.sample(SEQUENCES, LENGTH, SEED)
    wanted = data.next_probs
    if target == "posterior_mean":
        exact = exact_posterior_mean(task.transition, data.tokens, task.order)
        wanted = predict_next(task.transition, data.tokens, exact)
    weights = mirror_descent(task.transition, data.tokens, task.order, learning_rate, steps)
    return kl_divergence(wanted, predict_next(task.transition, data.tokens, weights)).mean().item()


@pytest.mark.parametrize("target", ["truth", "posterior_mean"])
@pytest.mark.parametrize("steps", [1, 2])
def test_the_tuned_rate_is_a_minimum_of_the_kl_it_reports(task, target, steps):
    tuned = tune_learning_rate(
        task, LENGTH, steps=steps, target=target, seed=SEED, n_sequences=SEQUENCES
    )
    best = mean_kl(task, target, tuned.learning_rate, steps)
    assert tuned.kl == pytest.approx(best, rel=1e-9)
    for factor in (0.7, 0.97, 1.03, 1.4):
        assert best < mean_kl(task, target, factor * tuned.learning_rate, steps)
    assert tuned.beta == pytest.approx(tuned.learning_rate * 3 * (LENGTH - 3), rel=1e-12)
    assert (tuned.steps, tuned.target) == (steps, target)


def test_the_two_targets_have_different_optima(task):
    truth, posterior = (
        tune_learning_rate(task, LENGTH, target=target, seed=SEED, n_sequences=SEQUENCES)
        for target in ("truth", "posterior_mean")
    )
    assert truth.learning_rate != pytest.approx(posterior.learning_rate, rel=1e-3)


@pytest.mark.parametrize(
    "grid", [np.geomspace(1e-5, 0.1, 9) / (3 * (LENGTH - 3)), np.geomspace(1.0, 10.0, 5)]
)
def test_an_optimum_on_the_edge_of_the_grid_is_an_error(task, grid):
    """The first is the paper's β grid, far below the optimum; the second is far above."""
    with pytest.raises(ValueError, match="lies on the edge of the grid"):
        tune_learning_rate(task, LENGTH, n_sequences=100, grid=grid.tolist())


def test_a_given_grid_is_refined_to_the_same_optimum(task):
    wide = tune_learning_rate(task, LENGTH, n_sequences=SEQUENCES)
    narrow = tune_learning_rate(task, LENGTH, n_sequences=SEQUENCES, grid=[1.0, 0.01, 0.1])
    assert narrow.learning_rate == pytest.approx(wide.learning_rate, rel=1e-3)


def test_an_unknown_target_lists_the_known_ones(task):
    with pytest.raises(
        ValueError, match="target: expected one of truth, posterior_mean; got 'bayes'"
    ):
        tune_learning_rate(task, LENGTH, target="bayes", n_sequences=10)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ([0.1, 0.2], "expected a grid of at least 3 values, got 2"),
        ([0.0, 0.1, 0.2], "expected a number > 0, got 0"),
    ],
)
def test_an_unusable_grid_is_refused(task, grid, message):
    with pytest.raises(ValueError, match=message):
        tune_learning_rate(task, LENGTH, n_sequences=10, grid=grid)


def test_grid_search_finds_a_known_minimum():
    point, value = minimise_on_grid(
        lambda x: np.log(x / 0.37) ** 2 + 2, [0.01, 0.1, 1.0, 10.0], "x"
    )
    assert point == pytest.approx(0.37, rel=1e-4)
    assert value == pytest.approx(2, abs=1e-8)
