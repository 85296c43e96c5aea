"""The lag-specific task: its process, its evidence, and its agreement with MTD."""

import json
from itertools import product

import numpy as np
import pytest
import torch
from reference_posterior import mean_by_counts, mean_by_paths

from mtdinterp import LagSpecificMTDTask
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.exact_bayes import posterior_mean_of
from mtdinterp.estimators.gibbs import chain_stderr, run_chain
from mtdinterp.registry import ESTIMATORS, TASKS
from mtdinterp.tasks import HasTransition, MTDTask, task_from_dict
from mtdinterp.tasks.sampling import alias_tables, draw_tokens

TASK = LagSpecificMTDTask.random(3, 2, seed=5)
UNEVEN = LagSpecificMTDTask.random(4, 3, seed=1, concentration=(0.5, 1.0, 3.0))


def test_tokens_follow_the_row_of_their_own_lags_matrix():
    data = TASK.sample(3000, 30, seed=1)
    counts = np.zeros((2, 3, 3))
    for position in range(2, 30):
        for lag in (1, 2):
            chosen = data.lags[:, position] == lag
            sources = data.tokens[chosen, position - lag]
            np.add.at(counts, (lag - 1, sources, data.tokens[chosen, position]), 1)
    expected = counts.sum(-1, keepdims=True) * TASK.transitions.numpy()
    # 12 free cells: the 1 - 1e-6 quantile of chi-square with 12 degrees of freedom is 52.
    assert ((counts - expected) ** 2 / expected).sum() < 52
    swapped = counts.sum(-1, keepdims=True) * TASK.transitions.flip(0).numpy()
    assert ((counts - swapped) ** 2 / swapped).sum() > 1000


def test_lags_follow_the_weights_and_first_tokens_are_uniform():
    data = TASK.sample(6000, 12, seed=2, weights=[0.3, 0.7])
    assert (data.lags[:, :2] == 0).all()
    share = (data.lags[:, 2:] == 1).double().mean().item()
    assert share == pytest.approx(0.3, abs=5 * (0.21 / 60_000) ** 0.5)
    for position in range(2):
        frequencies = torch.bincount(data.tokens[:, position], minlength=3) / 6000
        assert (frequencies - 1 / 3).abs().max() < 5 * (2 / 9 / 6000) ** 0.5


def test_the_next_token_follows_its_true_distribution():
    data = TASK.sample(20_000, 3, seed=3, weights=[0.4, 0.6])
    matrices = TASK.transitions.numpy()
    for last, before in product(range(3), range(3)):
        chosen = (data.tokens[:, -1] == last) & (data.tokens[:, -2] == before)
        probs = 0.4 * matrices[0, last] + 0.6 * matrices[1, before]
        assert np.abs(data.next_probs[chosen].numpy() - probs).max() < 1e-14
        total = int(chosen.sum())
        frequencies = torch.bincount(data.next_tokens[chosen], minlength=3).numpy() / total
        assert (np.abs(frequencies - probs) < 5 * np.sqrt(probs * (1 - probs) / total)).all()


def test_truth_everywhere_is_the_loop():
    data = UNEVEN.sample(5, 12, seed=4)
    everywhere = UNEVEN.true_next_everywhere(data.tokens, data.weights)
    assert everywhere.shape == (5, 12, 4)
    for b, t in product(range(5), range(12)):
        expected = torch.full((4,), 0.25, dtype=torch.float64)
        if t >= 2:  # three tokens were seen
            expected = torch.zeros(4, dtype=torch.float64)
            for lag in (1, 2, 3):
                source = data.tokens[b, t + 1 - lag]
                expected += data.weights[b, lag - 1] * UNEVEN.transitions[lag - 1, source]
        torch.testing.assert_close(everywhere[b, t], expected, rtol=0, atol=1e-14)
    after_last = UNEVEN.true_next(data.tokens, data.weights)
    torch.testing.assert_close(after_last, everywhere[:, -1], rtol=0, atol=1e-14)
    assert torch.equal(after_last, data.next_probs)


def test_likelihoods_and_rows_are_the_loop():
    data = UNEVEN.sample(3, 10, seed=5)
    evidence = UNEVEN.evidence(data.tokens)
    assert evidence.concentration == (0.5, 1.0, 3.0)
    for b, g in product(range(3), (1, 2, 3)):
        matrix = UNEVEN.transitions[g - 1]
        assert torch.equal(evidence.rows[b, g - 1], matrix[data.tokens[b, -g]])
        for t in range(3, 10):
            probability = matrix[data.tokens[b, t - g], data.tokens[b, t]]
            assert evidence.likelihoods[b, t - 3, g - 1] == probability


@pytest.mark.parametrize("concentration", [1.0, (0.5, 2.0, 1.0)])
def test_with_equal_matrices_it_is_mtd(concentration):
    mtd = MTDTask.random(4, 3, seed=0, concentration=concentration)
    task = LagSpecificMTDTask(mtd.transition.expand(3, -1, -1), concentration)
    one, other = mtd.sample(1500, 20, seed=7), task.sample(1500, 20, seed=7)
    for name in ("tokens", "weights", "lags", "next_probs", "next_tokens"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    by_mtd, by_task = mtd.evidence(one.tokens[:50]), task.evidence(one.tokens[:50])
    assert torch.equal(by_mtd.likelihoods, by_task.likelihoods)
    assert torch.equal(by_mtd.rows, by_task.rows)
    assert by_mtd.concentration == by_task.concentration
    assert torch.equal(
        mtd.true_next_everywhere(one.tokens, one.weights),
        task.true_next_everywhere(one.tokens, one.weights),
    )
    assert (task.warm_up, task.read_offsets) == (mtd.warm_up, mtd.read_offsets)
    for first, second in zip(mtd.shifted(), task.shifted(), strict=True):
        assert first.name == second.name
        assert torch.equal(first.sample(40, 20, seed=1), second.sample(40, 20, seed=1))
    assert mtd != task


def test_the_compiled_sampler_and_numpy_draw_the_same_tokens(monkeypatch):
    for task in (TASK, UNEVEN, MTDTask.random(5, 3, seed=0)):
        samples = []
        for kernel in ("eager", "fused"):
            monkeypatch.setenv("MTDINTERP_KERNEL", kernel)
            samples.append(task.sample(1100, 25, seed=3))
        assert torch.equal(samples[0].tokens, samples[1].tokens)
        assert torch.equal(samples[0].lags, samples[1].lags)


def test_given_uniform_numbers_a_token_is_one_look_up_in_its_lags_table():
    tables = [alias_tables(matrix.numpy()) for matrix in TASK.transitions]
    rng = np.random.default_rng(0)
    lag_uniform, token_uniform = rng.random((2, 8, 5))
    first_tokens = rng.integers(3, size=(2, 5))
    tokens, lags = np.empty((2, 5, 10), np.int64)
    boundaries = np.full((1, 5), 0.4)
    keep = np.concatenate([table.ravel() for table, _ in tables])
    other = np.concatenate([table.ravel() for _, table in tables])
    draw_tokens(keep, other, 3, boundaries, lag_uniform, token_uniform, first_tokens, tokens, lags)
    for b, t in product(range(5), range(2, 10)):
        lag = 1 if lag_uniform[t - 2, b] < 0.4 else 2
        column, rest = divmod(3 * token_uniform[t - 2, b], 1)
        kept, alternative = tables[lag - 1]
        source = tokens[b, t - lag]
        keeps = rest < kept[int(column), source]
        expected = int(column) if keeps else alternative[int(column), source]
        assert (lags[b, t], tokens[b, t]) == (lag, expected)


# The posterior ------------------------------------------------------------------------------------


def test_exact_bayes_is_the_enumeration_of_all_lag_paths():
    tokens = UNEVEN.sample(4, 9, seed=6).tokens
    evidence = UNEVEN.evidence(tokens)
    alpha = np.array([0.5, 1.0, 3.0])
    for likelihoods, mean in zip(evidence.likelihoods, posterior_mean_of(evidence), strict=True):
        known = mean_by_paths(likelihoods.numpy(), alpha)
        assert np.abs(mean.numpy() - known).max() < 1e-12


def test_exact_bayes_is_the_expanded_polynomial_and_gibbs_is_near_both():
    tokens = UNEVEN.sample(3, 40, seed=7).tokens
    evidence = UNEVEN.evidence(tokens)
    alpha = np.array([0.5, 1.0, 3.0])
    exact = posterior_mean_of(evidence)
    for likelihoods, mean in zip(evidence.likelihoods, exact, strict=True):
        known = mean_by_counts(likelihoods.numpy(), alpha)
        assert np.abs(mean.numpy() - known).max() < 1e-10
    rng = np.random.default_rng(0)
    chain = run_chain(evidence.likelihoods.numpy(), alpha, 200, 2000, True, rng)
    assert (np.abs(chain.mean(0) - exact.numpy()) < 4.5 * chain_stderr(chain)).all()


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_every_estimator_works(name):
    task = LagSpecificMTDTask.random(4, 3, seed=2)
    data = task.sample(60, 24, seed=8)
    evidence = task.evidence(data.tokens)
    estimator = ESTIMATORS[name]
    try:
        fit = estimator.fit(evidence, data.next_probs)
    except CannotCompute as error:
        pytest.fail(str(error))
    weights = estimator.weights(evidence, **fit.constants)
    assert (weights.sum(-1) - 1).abs().max() < 1e-9
    reached = evidence.divergence(data.next_probs, weights).mean().item()
    assert fit.divergence == pytest.approx(reached, rel=1e-6)
    nothing = evidence.divergence(data.next_probs, evidence.uniform).mean().item()
    assert reached <= nothing or not estimator.constants


def test_the_posterior_mean_beats_uniform_weights_and_the_shuffled_matrices():
    task = LagSpecificMTDTask.random(4, 3, seed=2)
    data = task.sample(300, 60, seed=9)
    evidence = task.evidence(data.tokens)
    bayes = evidence.divergence(data.next_probs, posterior_mean_of(evidence, 1e-6)).mean()
    uniform = evidence.divergence(data.next_probs, evidence.uniform).mean()
    shuffled = LagSpecificMTDTask(task.transitions.roll(1, 0)).evidence(data.tokens)
    wrong = evidence.divergence(data.next_probs, posterior_mean_of(shuffled, 1e-6)).mean()
    assert bayes < 0.5 * uniform
    assert bayes < 0.5 * wrong


# Identity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(TASKS))
@pytest.mark.parametrize("concentration", [1.0, (0.5, 2.0)])
def test_a_task_comes_back_from_json_with_its_identity(name, concentration):
    task = TASKS[name].random(4, 2, seed=3, concentration=concentration)
    stored = json.loads(json.dumps(task.to_dict()))
    again = task_from_dict(stored)
    assert type(again) is type(task)
    assert again == task
    assert hash(again) == hash(task)
    assert torch.equal(again.sample(20, 12, seed=0).tokens, task.sample(20, 12, seed=0).tokens)
    different = TASKS[name].random(4, 2, seed=4, concentration=concentration)
    assert different != task
    assert TASKS[name].random(4, 2, seed=3, concentration=9.0) != task
    assert len({task, again, different}) == 2
    assert task != "a task"


def test_a_stored_task_without_a_kind_is_mtd():
    task = MTDTask.random(3, 2, seed=0)
    stored = task.to_dict()
    del stored["kind"]
    assert task_from_dict(stored) == task


@pytest.mark.parametrize("name", list(TASKS))
def test_an_unknown_field_or_kind_is_named(name):
    stored = TASKS[name].random(3, 2, seed=0).to_dict()
    with pytest.raises(ValueError, match=r"task field: expected one of .* got 'colour'"):
        task_from_dict(stored | {"colour": 3})
    with pytest.raises(ValueError, match=r"task: expected one of .* got 'mdt'; did you mean 'mtd'"):
        task_from_dict(stored | {"kind": "mdt"})


def test_it_has_no_single_transition_matrix():
    assert not isinstance(TASK, HasTransition)
    assert isinstance(MTDTask.random(3, 2, seed=0), HasTransition)
    assert (TASK.order, TASK.vocab_size, TASK.n_components) == (2, 3, 2)
    assert TASK.describe == "one transition matrix per lag, 3 tokens, m = 2"


@pytest.mark.parametrize(
    ("transitions", "message"),
    [
        (
            np.full((2, 2), 0.5),
            r"expected shape \[lag, vocab, vocab\] with vocab ≥ 2, got \(2, 2\)",
        ),
        (np.full((2, 3, 2), 0.5), r"got \(2, 3, 2\)"),
        (np.ones((2, 1, 1)), r"got \(2, 1, 1\)"),
        (np.full((2, 2, 2), 0.4), "expected rows that sum to 1"),
    ],
)
def test_bad_matrices_are_refused(transitions, message):
    with pytest.raises(ValueError, match="transitions: .*" + message):
        LagSpecificMTDTask(transitions)
