"""Laws that every estimator obeys."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference_posterior import likelihoods_by_loop
from strategies import problems

from mtdinterp.estimators import (
    TwoStepConstants,
    entropic_map,
    exact_posterior_mean,
    expectation_maximization,
    gibbs_posterior_mean,
    lag_likelihoods,
    mirror_descent,
    predict_next,
    reweighted_two_step,
    uniform_weights,
)
from mtdinterp.tasks import MTDTask

ESTIMATORS = {
    "uniform": uniform_weights,
    "one_step": lambda *arguments: mirror_descent(*arguments, 0.1),
    "four_steps": lambda *arguments: mirror_descent(*arguments, 0.1, steps=4),
    "maximum_likelihood": expectation_maximization,
    "entropic": lambda *arguments: entropic_map(*arguments, 2.0),
    "entropic_negative": lambda *arguments: entropic_map(*arguments, -1.0),
    "bayes": exact_posterior_mean,
    "gibbs": lambda *arguments: gibbs_posterior_mean(*arguments, samples=40, burn_in=5),
    "gibbs_rao_blackwell": lambda *arguments: gibbs_posterior_mean(
        *arguments, samples=40, burn_in=5, rao_blackwell=True
    ),
    "reweighted": lambda *arguments: reweighted_two_step(
        *arguments, TwoStepConstants(9.0, 4.0, 2.0, 7.0)
    ),
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS.keys())
# A local maximum (negative strength) can be another one after any change of rounding.
every_global_estimator = pytest.mark.parametrize(
    "name", [name for name in ESTIMATORS if name != "entropic_negative"]
)


@every_estimator
@given(problem=problems())
def test_weights_lie_on_the_simplex(estimator, problem):
    weights = estimator(*problem.arguments)
    assert weights.dtype == torch.float64
    assert weights.shape == (problem.batch_size, problem.order)
    assert (weights >= 0).all()
    assert (weights.sum(-1) - 1).abs().max() < 1e-12


@every_global_estimator
@given(problem=problems(), seed=st.integers(0, 100))
def test_renaming_the_tokens_changes_no_weights_and_renames_the_predictions(name, problem, seed):
    transition, tokens, order = problem.arguments
    names = torch.from_numpy(np.random.default_rng(seed).permutation(problem.vocab_size))
    renamed = torch.empty_like(transition)
    renamed[names[:, None], names[None, :]] = transition
    weights = ESTIMATORS[name](transition, tokens, order)
    weights_renamed = ESTIMATORS[name](renamed, names[tokens], order)
    # The iterative optimisers stop at a tolerance of 1e-9 in the gradient.
    near = 1e-4 if name in ("maximum_likelihood", "entropic") else 1e-9
    torch.testing.assert_close(weights_renamed, weights, rtol=0, atol=near)
    prediction = predict_next(transition, tokens, weights)
    torch.testing.assert_close(
        predict_next(renamed, names[tokens], weights)[:, names], prediction, rtol=0, atol=1e-14
    )


@every_estimator
def test_numpy_arrays_lists_and_tensors_give_the_same_weights(estimator):
    task = MTDTask.random(4, 3, seed=0)
    tokens = task.sample(3, 20, seed=1).tokens
    expected = estimator(task.transition, tokens, 3)
    assert torch.equal(estimator(task.transition.numpy(), tokens.numpy(), 3), expected)
    assert torch.equal(estimator(task.transition.tolist(), tokens.tolist(), 3), expected)
    assert torch.equal(estimator(task.transition, tokens.to(torch.int32), 3), expected)


@every_estimator
def test_inputs_are_left_as_they_were(estimator):
    task = MTDTask.random(4, 3, seed=0)
    tokens = task.sample(3, 20, seed=1).tokens
    transition_before, tokens_before = task.transition.clone(), tokens.clone()
    estimator(task.transition, tokens, 3)
    assert torch.equal(task.transition, transition_before)
    assert torch.equal(tokens, tokens_before)


@every_estimator
def test_one_lag_has_all_the_weight(estimator):
    task = MTDTask.random(4, 1, seed=0)
    weights = estimator(task.transition, task.sample(3, 20, seed=1).tokens, 1)
    assert (weights - 1).abs().max() < 1e-14


@every_estimator
def test_zeros_in_the_transition_matrix_are_allowed(estimator):
    task = MTDTask([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.3, 0.7, 0.0]], 2)
    data = task.sample(20, 30, seed=1)
    assert (lag_likelihoods(task.transition, data.tokens, 2) == 0).any()
    weights = estimator(task.transition, data.tokens, 2)
    assert torch.isfinite(weights).all()
    assert (weights.sum(-1) - 1).abs().max() < 1e-12


@every_estimator
def test_entries_of_one_in_a_million_million_are_allowed(estimator):
    tiny = 1e-12
    task = MTDTask(
        [[1 - 2 * tiny, tiny, tiny], [tiny, tiny, 1 - 2 * tiny], [0.5, 0.5 - tiny, tiny]], 2
    )
    tokens = torch.tensor([[0, 1, 0, 1, 2, 2, 0, 0, 1, 1, 2, 0]])
    assert likelihoods_by_loop(task.transition, tokens[0], 2).max(axis=1).min() < 1e-11
    weights = estimator(task.transition, tokens, 2)
    assert torch.isfinite(weights).all()
    assert (weights.sum(-1) - 1).abs().max() < 1e-12


@pytest.mark.parametrize("name", [name for name in ESTIMATORS if not name.startswith("uniform")])
def test_an_impossible_sequence_is_refused_by_position(name):
    with pytest.raises(ValueError, match=r"sequence 1 is impossible.*no lag in 1\.\.2.*position 3"):
        ESTIMATORS[name](torch.eye(2), [[0, 1, 0, 1], [0, 0, 0, 1]], 2)


@every_estimator
def test_an_empty_batch_has_an_empty_answer(estimator):
    task = MTDTask.random(4, 3, seed=0)
    assert estimator(task.transition, task.sample(0, 20, seed=1).tokens, 3).shape == (0, 3)
