"""The MTD process: what is sampled has the distribution that is promised, and the same one on every
run."""

import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import problems

from mtdinterp.estimators import predict_next
from mtdinterp.tasks import MTDTask
from mtdinterp.tasks.sampling import alias_tables


def assert_frequencies(counts, probabilities, deviations=5.0):
    """Counts [.., k] of draws from `probabilities` [.., k], to within some binomial standard
    deviations."""
    counts, probabilities = np.asarray(counts, float), np.asarray(probabilities, float)
    expected = counts.sum(-1, keepdims=True) * probabilities
    spread = np.sqrt(expected * (1 - probabilities))
    assert (counts[np.broadcast_to(probabilities == 0, counts.shape)] == 0).all()
    assert (np.abs(counts - expected) <= deviations * spread + 1e-9).all()


def count(values, size):
    return np.bincount(np.asarray(values).ravel(), minlength=size)


def test_a_fixed_seed_gives_these_sequences_on_every_run():
    task = MTDTask.random(3, 2, seed=7)
    data = task.sample(2, 12, seed=11)
    assert task.transition[2].tolist() == pytest.approx(
        [0.00287352929377, 0.82762690007746, 0.16949957062877]
    )
    assert data.tokens.tolist() == [
        [2, 2, 1, 1, 2, 1, 1, 2, 2, 1, 1, 2],
        [1, 0, 2, 2, 1, 1, 0, 0, 0, 2, 2, 1],
    ]
    assert data.lags.tolist() == [
        [0, 0, 2, 2, 2, 1, 2, 1, 2, 1, 2, 2],
        [0, 0, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2],
    ]
    assert data.weights[:, 0].tolist() == pytest.approx([0.19483901725872, 0.03948760552046])
    assert data.next_tokens.tolist() == [1, 1]


def test_same_seed_same_sample_and_another_seed_another():
    task = MTDTask.random(5, 3, seed=0)
    first, again, other = (task.sample(600, 20, seed=seed) for seed in (1, 1, 2))
    for name in ("tokens", "weights", "lags", "next_probs", "next_tokens"):
        assert torch.equal(getattr(first, name), getattr(again, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
    assert torch.equal(
        task.sample(4, 20, seed=[1, 2]).tokens, task.sample(4, 20, seed=[1, 2]).tokens
    )
    assert not torch.equal(
        task.sample(4, 20, seed=[1, 2]).tokens, task.sample(4, 20, seed=[2, 1]).tokens
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_tokens_follow_the_transition_row_of_the_token_their_lag_points_to(seed):
    task = MTDTask.random(4, 3, seed=seed)
    data = task.sample(2000, 40, seed=seed + 10)
    batch, position = np.nonzero(data.lags.numpy())
    source = data.tokens[batch, position - data.lags[batch, position].numpy()]
    pairs = count(source * 4 + data.tokens[batch, position], 16).reshape(4, 4)
    assert_frequencies(pairs, task.transition)


def test_lags_follow_the_given_weights_and_first_tokens_are_uniform():
    weights = [0.6, 0.0, 0.1, 0.3]
    data = MTDTask.random(5, 4, seed=0).sample(2000, 30, seed=1, weights=weights)
    assert (data.weights == torch.tensor(weights, dtype=torch.float64)).all()
    assert (data.lags[:, :4] == 0).all()
    assert_frequencies(count(data.lags[:, 4:] - 1, 4), weights)
    for position in range(4):
        assert_frequencies(count(data.tokens[:, position], 5), np.full(5, 0.2))


def test_every_sequence_can_have_its_own_weights():
    data = MTDTask.random(5, 2, seed=0).sample(
        2, 50, seed=1, weights=np.array([[1.0, 0.0], [0.0, 1.0]])
    )
    assert (data.lags[0, 2:] == 1).all()
    assert (data.lags[1, 2:] == 2).all()


def test_next_tokens_follow_the_true_next_distribution():
    task = MTDTask.random(3, 2, seed=0)
    data = task.sample(20_000, 3, seed=1, weights=[0.3, 0.7])
    assert torch.equal(data.next_probs, predict_next(task.transition, data.tokens, data.weights))
    context = (data.tokens[:, -1] * 3 + data.tokens[:, -2]).numpy()
    counts = np.stack([count(data.next_tokens[context == c], 3) for c in range(9)])
    last, before = np.divmod(np.arange(9), 3)
    assert_frequencies(
        counts, 0.3 * task.transition.numpy()[last] + 0.7 * task.transition.numpy()[before]
    )


@pytest.mark.parametrize("concentration", [0.2, 1.0, (0.5, 1.0, 3.0)])
def test_weights_have_the_mean_and_variance_of_their_dirichlet_prior(concentration):
    task = MTDTask.random(2, 3, seed=0, concentration=concentration)
    weights = task.sample(20_000, 4, seed=1).weights
    alpha = torch.as_tensor(concentration, dtype=torch.float64).expand(3)
    mean = alpha / alpha.sum()
    variance = mean * (1 - mean) / (alpha.sum() + 1)
    assert ((weights.mean(0) - mean).abs() < 5 * (variance / 20_000).sqrt()).all()
    torch.testing.assert_close(weights.var(0), variance, rtol=0.05, atol=0)


@given(problems(max_batch=4))
def test_lags_are_zero_before_the_order_and_one_to_order_after(problem):
    lags = problem.data.lags
    assert (lags[:, : problem.order] == 0).all()
    assert ((lags[:, problem.order :] >= 1) & (lags[:, problem.order :] <= problem.order)).all()
    produced = lags.nonzero()
    sources = problem.data.tokens[
        produced[:, 0], produced[:, 1] - lags[produced[:, 0], produced[:, 1]]
    ]
    assert (
        problem.task.transition[sources, problem.data.tokens[produced[:, 0], produced[:, 1]]] > 0
    ).all()


def test_more_lags_than_a_byte_can_count():
    """Under a cyclic shift with all weight on lag 150, each token is one more than the one 150
    back."""
    weights = np.eye(150)[-1]
    data = MTDTask(np.roll(np.eye(5), 1, axis=1), 150).sample(2, 400, seed=0, weights=weights)
    assert (data.lags[:, 150:] == 150).all()
    assert torch.equal(data.tokens[:, 150:], (data.tokens[:, :-150] + 1) % 5)


def probabilities_of(keep, other):
    """What an alias table draws: column k with probability keep/q, its alias with the rest."""
    size = len(keep)
    result = np.zeros((size, size))
    for source in range(size):
        for column in range(size):
            result[source, column] += keep[column, source] / size
            result[source, other[column, source]] += (1 - keep[column, source]) / size
    return result


SPARSE = np.array(
    [
        [0.0, 1.0, 0.0, 0.0],
        [0.5, 0.0, 0.5, 0.0],
        [1e-12, 1 - 2e-12, 1e-12, 0.0],
        [0.1, 0.2, 0.3, 0.4],
    ]
)


@pytest.mark.parametrize(
    "transition",
    [
        SPARSE,
        np.eye(5),
        np.full((3, 3), 1 / 3),
        *(MTDTask.random(q, 1, seed=q).transition.numpy() for q in (2, 7, 40)),
    ],
    ids=["sparse", "identity", "uniform", "q2", "q7", "q40"],
)
def test_alias_tables_hold_exactly_the_rows(transition):
    drawn = probabilities_of(*alias_tables(transition))
    assert np.abs(drawn - transition).max() < 1e-15
    assert (drawn[transition == 0] == 0).all()
    tiny = (transition > 0) & (transition < 1e-9)
    np.testing.assert_allclose(drawn[tiny], transition[tiny], rtol=1e-3)


def test_transitions_of_probability_zero_are_never_drawn():
    data = MTDTask(SPARSE, 1).sample(500, 60, seed=0)
    pairs = count(data.tokens[:, :-1] * 4 + data.tokens[:, 1:], 16).reshape(4, 4)
    assert (pairs[SPARSE == 0] == 0).all()


@given(problems())
def test_the_stationary_marginal_is_a_distribution_that_the_transition_keeps(problem):
    p = problem.task.stationary
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(p @ problem.task.transition, p, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "transition",
    [
        np.eye(3),
        [[0.5, 0.5, 0, 0], [0.2, 0.8, 0, 0], [0, 0, 0.9, 0.1], [0, 0, 0.3, 0.7]],
        [[1, 0, 0], [0, 1, 0], [0.3, 0.3, 0.4]],
        [[0, 1], [1, 0]],
    ],
    ids=["identity", "two-blocks", "absorbing", "periodic"],
)
def test_reducible_and_periodic_matrices_have_a_stationary_marginal_too(transition):
    task = MTDTask(np.asarray(transition, float), 2)
    p = task.stationary
    assert (p >= 0).all()
    torch.testing.assert_close(p @ task.transition, p, rtol=0, atol=1e-14)


def test_long_sequences_visit_tokens_as_often_as_the_stationary_marginal_says():
    task = MTDTask.random(4, 3, seed=5)
    tokens = task.sample(3000, 60, seed=6).tokens[:, -1]
    assert_frequencies(count(tokens, 4), task.stationary)


def test_numpy_lists_and_tensors_make_the_same_task():
    rows = MTDTask.random(3, 2, seed=0).transition
    for given_rows in (rows.numpy(), rows.tolist(), rows.clone()):
        assert torch.equal(
            MTDTask(given_rows, 2).sample(5, 10, seed=0).tokens,
            MTDTask(rows, 2).sample(5, 10, seed=0).tokens,
        )
    assert MTDTask(rows.float(), 2).transition.dtype == torch.float64


def test_a_task_keeps_its_own_copy_of_the_matrix():
    rows = np.array([[0.5, 0.5], [0.1, 0.9]])
    task = MTDTask(rows, 1)
    rows[:] = 0
    assert task.transition.tolist() == [[0.5, 0.5], [0.1, 0.9]]


def test_concentration_is_a_number_when_symmetric_and_one_per_lag_otherwise():
    rows = [[0.5, 0.5], [0.1, 0.9]]
    assert MTDTask(rows, 3).concentration == 1.0
    assert MTDTask(rows, 3, [2.0, 2.0, 2.0]).concentration == 2.0
    assert MTDTask(rows, 3, np.array([1.0, 2.0, 0.5])).concentration == (1.0, 2.0, 0.5)
    assert (MTDTask(rows, 3).vocab_size, MTDTask(rows, 3).order) == (2, 3)


def test_an_empty_batch_is_a_batch():
    data = MTDTask.random(3, 2, seed=0).sample(0, 5, seed=0)
    assert data.tokens.shape == (0, 5)
    assert data.next_probs.shape == (0, 3)
