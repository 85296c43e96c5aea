"""Bad input is a ValueError that says what was expected and what came."""

import numpy as np
import pytest
import torch

from mtdinterp.checks import check_number, check_option
from mtdinterp.estimators import (
    entropic_map,
    exact_posterior_mean,
    expectation_maximization,
    gibbs_posterior_mean,
    mirror_descent,
    predict_next,
    responsibilities,
    uniform_weights,
)
from mtdinterp.tasks import MTDTask

GOOD = [[0.2, 0.8], [0.6, 0.4]]
TOKENS = [[0, 1, 1, 0, 1]]
ESTIMATORS = {
    "mirror_descent": lambda *arguments: mirror_descent(*arguments, 0.1),
    "expectation_maximization": expectation_maximization,
    "entropic_map": lambda *arguments: entropic_map(*arguments, 1.0),
    "gibbs_posterior_mean": lambda *arguments: gibbs_posterior_mean(*arguments, samples=2),
    "exact_posterior_mean": exact_posterior_mean,
    "responsibilities": responsibilities,
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())

BAD_TRANSITIONS = {
    "row-sum": (
        [[0.2, 0.7], [0.6, 0.4]],
        r"expected rows that sum to 1, got a row that sums to 0\.9",
    ),
    "negative": ([[1.5, -0.5], [0.6, 0.4]], r"expected non-negative entries, got -0\.5"),
    "nan": ([[float("nan"), 1.0], [0.6, 0.4]], "expected finite entries, got nan"),
    "infinite": ([[float("inf"), 1.0], [0.6, 0.4]], "expected finite entries, got inf"),
    "not-square": (
        [[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]],
        r"expected a square matrix.*got shape \(2, 3\)",
    ),
    "vector": ([0.5, 0.5], r"expected a square matrix.*got shape \(2,\)"),
    "one-token": ([[1.0]], r"vocab ≥ 2, got shape \(1, 1\)"),
    "ragged": ([[0.5, 0.5], [1.0]], "expected a rectangular array of numbers, got list"),
    "text": ([["a", "b"], ["c", "d"]], r"expected numbers, got \[\["),
    "complex": (np.array(GOOD, dtype=complex), "expected real numbers, got complex128"),
}
BAD_TOKENS = {
    "too-large": ([[0, 1, 2, 0]], r"expected values in 0\.\.1, got values in 0\.\.2"),
    "negative": ([[0, -1, 1, 0]], r"expected values in 0\.\.1, got values in -1\.\.1"),
    "float": ([[0.0, 1.0, 0.0]], "expected an integer type, got float64"),
    "bool": (torch.tensor([[True, False, True]]), "expected an integer type, got torch.bool"),
    "flat": ([0, 1, 0, 1], r"expected shape \[batch, pos\], got \(4,\)"),
    "text": ([["a", "b", "c"]], "expected an integer type, got <U1"),
    "ragged": ([[0, 1, 0], [0, 1]], "expected a rectangular array"),
}


@pytest.mark.parametrize(
    ("transition", "message"), BAD_TRANSITIONS.values(), ids=BAD_TRANSITIONS.keys()
)
def test_bad_transition_matrices_are_refused_by_the_task_and_by_estimators(transition, message):
    for call in (
        lambda: MTDTask(transition, 1),
        lambda: mirror_descent(transition, TOKENS, 1, 0.1),
        lambda: predict_next(transition, TOKENS, [[1.0]]),
    ):
        with pytest.raises(ValueError, match="transition: .*" + message):
            call()


@every_estimator
@pytest.mark.parametrize(("tokens", "message"), BAD_TOKENS.values(), ids=BAD_TOKENS.keys())
def test_bad_tokens_are_refused(estimator, tokens, message):
    with pytest.raises(ValueError, match="tokens: " + message):
        estimator(GOOD, tokens, 2)


@every_estimator
@pytest.mark.parametrize(
    ("order", "message"),
    [
        (0, "expected an integer ≥ 1, got 0"),
        (-2, "expected an integer ≥ 1, got -2"),
        (True, "expected an integer ≥ 1, got True"),
        (5, "expected less than the length 5, got 5"),
        (9, "expected less than the length 5, got 9"),
    ],
)
def test_bad_orders_are_refused(estimator, order, message):
    with pytest.raises(ValueError, match="order: " + message):
        estimator(GOOD, TOKENS, order)


def test_uniform_weights_need_no_transition_but_still_as_many_tokens_as_lags():
    assert uniform_weights(GOOD, TOKENS, 5).shape == (1, 5)
    with pytest.raises(ValueError, match="order: expected at most the 5 tokens, got 6"):
        uniform_weights(GOOD, TOKENS, 6)


@pytest.mark.parametrize(
    ("concentration", "message"),
    [
        (0.0, r"expected positive entries, got 0\.0"),
        (-1.0, r"expected positive entries, got -1\.0"),
        ([1.0, 0.0], r"expected positive entries, got 0\.0"),
        ([1.0, 1.0, 1.0], r"expected one number or 2 numbers, got shape \(3,\)"),
        (float("nan"), "expected a finite number, got nan"),
    ],
)
def test_bad_concentrations_are_refused(concentration, message):
    for call in (
        lambda: MTDTask(GOOD, 2, concentration),
        lambda: exact_posterior_mean(GOOD, TOKENS, 2, concentration),
        lambda: gibbs_posterior_mean(GOOD, TOKENS, 2, concentration=concentration),
    ):
        with pytest.raises(ValueError, match="concentration: " + message):
            call()


TASK = MTDTask(GOOD, 2)
BAD_CALLS = {
    "seed": (lambda: TASK.sample(1, 5, seed=-3), "seed: expected an integer ≥ 0, got -3"),
    "seed-part": (lambda: TASK.sample(1, 5, seed=[1, -3]), "seed: expected an integer ≥ 0, got -3"),
    "task-seed": (lambda: MTDTask.random(3, 2, seed=-1), "seed: expected an integer ≥ 0, got -1"),
    "gibbs-seed": (
        lambda: gibbs_posterior_mean(GOOD, TOKENS, 2, seed=-1),
        "seed: expected an integer ≥ 0, got -1",
    ),
    "vocab-size": (
        lambda: MTDTask.random(1, 2, seed=0),
        "vocab_size: expected an integer ≥ 2, got 1",
    ),
    "batch-size": (
        lambda: TASK.sample(-1, 5, seed=0),
        "batch_size: expected an integer ≥ 0, got -1",
    ),
    "length": (lambda: TASK.sample(1, 0, seed=0), "length: expected an integer ≥ 1, got 0"),
    "length-order": (
        lambda: TASK.sample(1, 2, seed=0),
        "order: expected less than the length 2, got 2",
    ),
    "weights-size": (
        lambda: TASK.sample(1, 5, seed=0, weights=[0.2, 0.3, 0.5]),
        r"weights: expected 2 entries",
    ),
    "weights-batch": (
        lambda: TASK.sample(3, 5, seed=0, weights=[[0.5, 0.5]] * 2),
        r"weights: expected shape \[2\] or \[3, 2\], got \(2, 2\)",
    ),
    "weights-sum": (
        lambda: TASK.sample(1, 5, seed=0, weights=[0.5, 0.4]),
        r"weights: .*sums to 0\.9",
    ),
    "predict-batch": (
        lambda: predict_next(GOOD, TOKENS, [[0.5, 0.5]] * 2),
        r"weights: expected shape \[1, lag\], got \(2, 2\)",
    ),
    "predict-lags": (
        lambda: predict_next(GOOD, [[0, 1]], [[0.2, 0.3, 0.5]]),
        "weights: 3 lags need at least as many tokens, got 2",
    ),
    "predict-weights": (
        lambda: predict_next(GOOD, TOKENS, [[1.5, -0.5]]),
        r"weights: .*non-negative entries, got -0\.5",
    ),
    "steps": (
        lambda: mirror_descent(GOOD, TOKENS, 2, 0.1, steps=-1),
        "steps: expected an integer ≥ 0, got -1",
    ),
    "rate": (
        lambda: mirror_descent(GOOD, TOKENS, 2, -0.1),
        r"learning_rate: expected a number ≥ 0, got -0\.1",
    ),
    "rate-nan": (
        lambda: mirror_descent(GOOD, TOKENS, 2, float("nan")),
        "learning_rate: expected a finite number, got nan",
    ),
    "em-tolerance": (
        lambda: expectation_maximization(GOOD, TOKENS, 2, tolerance=0.0),
        "tolerance: expected a number > 0",
    ),
    "bayes-tolerance": (
        lambda: exact_posterior_mean(GOOD, TOKENS, 2, tolerance=1e-20),
        "tolerance: expected a number ≥ 1e-12, got 1e-20",
    ),
    "samples": (
        lambda: gibbs_posterior_mean(GOOD, TOKENS, 2, samples=1),
        "samples: expected an integer ≥ 2, got 1",
    ),
    "burn-in": (
        lambda: gibbs_posterior_mean(GOOD, TOKENS, 2, burn_in=-1),
        "burn_in: expected an integer ≥ 0, got -1",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_bad_arguments_are_named_with_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_unknown_option_lists_the_known_ones_and_suggests_a_near_one():
    with pytest.raises(
        ValueError, match=r"colour: expected one of red, green; got 'gren'; did you mean 'green'\?"
    ):
        check_option("colour", "gren", ["red", "green"])
    with pytest.raises(ValueError, match=r"got 'xyz'$"):
        check_option("colour", "xyz", ["red", "green"])
    assert check_option("colour", "red", ["red", "green"]) == "red"


def test_bounds_of_a_number_are_inclusive_unless_asked():
    assert check_number("x", 2.0, minimum=2.0) == 2.0
    with pytest.raises(ValueError, match="x: expected a number > 2, got 2"):
        check_number("x", 2.0, minimum=2.0, exclusive=True)


def test_an_integer_is_a_number_also_where_types_are_checked():
    assert check_number("x", 3, minimum=0) == 3.0


def test_rows_off_by_rounding_are_renormalised():
    task = MTDTask(np.float32([[0.1, 0.9], [0.7, 0.3]]), 1)
    assert (task.transition.sum(-1) - 1).abs().max() < 1e-15


def test_numpy_views_of_every_kind_are_welcome():
    """Reversed, read-only, big-endian and lists of tensors mean what they say."""
    transition, tokens = np.array(GOOD), np.array(TOKENS)
    expected = responsibilities(GOOD, TOKENS, 2)
    for same in (
        transition[::-1].copy()[::-1],
        np.broadcast_to(transition, (2, 2)),
        transition.astype(">f8"),
        [torch.tensor(row, dtype=torch.float64) for row in GOOD],
    ):
        assert torch.equal(responsibilities(same, tokens, 2), expected)
    for same in (
        tokens[:, ::-1].copy()[:, ::-1],
        np.broadcast_to(tokens, (1, 5)),
        tokens.astype(">i4"),
    ):
        assert torch.equal(responsibilities(transition, same, 2), expected)


def test_a_checked_transition_matrix_stays_as_it_is_to_the_bit():
    for seed in range(50):
        task = MTDTask.random(7, 2, seed)
        assert torch.equal(MTDTask(task.transition, 2).transition, task.transition)
