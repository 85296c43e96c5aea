"""The Bayes row that is always there: integrated if possible, sampled with a note otherwise."""

import gc

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.construction import one_step
from mtdinterp.errors import RuleTooLarge
from mtdinterp.estimators import posterior, posterior_mean
from mtdinterp.estimators.base import accuracy_notes
from mtdinterp.estimators.exact_bayes import posterior_mean_of
from mtdinterp.estimators.gibbs import sampled_posterior_mean
from mtdinterp.estimators.posterior import posterior_mean_by, sampling_divergence
from mtdinterp.metrics import kl_divergence
from mtdinterp.pages.blocks import Text
from mtdinterp.registry import ESTIMATORS
from mtdinterp.report.scores import held_out_scores
from probes import decode_latents, identify_algorithm

BAYES = ESTIMATORS["exact_bayes"]
SAMPLED = "sampled for {0} of {0} sequences, because exact integration would take too many nodes"


def evidence_for(vocab_size, order, length, n_sequences):
    task = MTDTask.random(vocab_size, order, seed=0)
    return task.evidence(task.sample(n_sequences, length, seed=1).tokens)


def forbid_integration(monkeypatch):
    """Make every rule an error."""

    def integrate(*arguments):
        raise AssertionError("an integral was computed")

    monkeypatch.setattr("mtdinterp.estimators.exact_bayes.simplex_rule", integrate)
    monkeypatch.setattr("mtdinterp.estimators.windowed.WindowPosterior", integrate)


@pytest.mark.parametrize(("order", "length"), [(8, 40), (7, 256), (30, 64), (6, 1984)])
def test_rules_that_are_bound_to_be_too_large_are_refused_before_any_work(
    order, length, monkeypatch
):
    forbid_integration(monkeypatch)
    evidence = evidence_for(5, order, length, 2)
    limit = 10**5 if order == 6 else posterior.COMPARING_NODES
    with pytest.raises(RuleTooLarge, match="2 of 2 sequences need"):
        posterior_mean_of(evidence, posterior.COMPARING_TOLERANCE, limit)


@pytest.mark.parametrize(("vocab_size", "order", "length"), [(20, 6, 256), (3, 6, 64), (5, 8, 20)])
def test_many_lags_are_exact_if_the_rule_is_affordable(vocab_size, order, length):
    evidence = evidence_for(vocab_size, order, length, 4)
    assert BAYES.accuracy_note(evidence) is None
    sampled, stderr = sampled_posterior_mean(evidence)
    assert ((BAYES.weights(evidence) - sampled).abs() < 5 * stderr + 1e-5).all()


def test_more_lags_are_sampled_with_a_note():
    evidence = evidence_for(3, 8, 40, 3)
    sampled, stderr = sampled_posterior_mean(evidence, seed=0)
    assert torch.equal(BAYES.weights(evidence), sampled)
    largest = f"standard errors of the weights at most {stderr.max():.1g}"
    note = BAYES.accuracy_note(evidence)
    assert note.startswith(f"{SAMPLED.format(3)}; {largest}, which adds about ")
    assert accuracy_notes(["uniform", "exact_bayes"], evidence) == {"exact_bayes": note}


def test_weights_and_note_take_one_chain_that_goes_with_the_evidence(monkeypatch):
    calls = []

    def counted(evidence, *arguments):
        calls.append(len(evidence))
        return sampled_posterior_mean(evidence, *arguments, samples=20, burn_in=2)

    monkeypatch.setattr(posterior, "sampled_posterior_mean", counted)
    evidence = evidence_for(3, 8, 40, 2)
    BAYES.weights(evidence)
    BAYES.accuracy_note(evidence)
    assert calls == [2]
    BAYES.weights(evidence[:])
    assert calls == [2, 2]
    kept = len(BAYES._known)
    del evidence
    gc.collect()
    assert len(BAYES._known) < kept


def test_only_sequences_next_to_one_that_is_too_large_are_sampled(monkeypatch):
    evidence = evidence_for(5, 3, 32, 10)
    exact = posterior_mean_of(evidence, 1e-8)
    monkeypatch.setattr(posterior, "TOGETHER", (8, 2))
    hard = evidence.likelihoods[5]

    def integrate(some, *arguments):
        if any(torch.equal(row, hard) for row in some.likelihoods):
            raise RuleTooLarge("one of them needs more nodes")
        return posterior_mean_of(some, *arguments)

    monkeypatch.setattr(posterior, "posterior_mean_of", integrate)
    found = posterior_mean_by(evidence)
    assert found.method == "gibbs"
    assert (found.stderr > 0).all(-1).tolist() == [i in (4, 5) for i in range(10)]
    within = (found.weights - exact).abs() <= 5 * found.stderr + 1e-8
    assert within.all()
    assert BAYES.accuracy_note(evidence).startswith("sampled for 2 of 10 sequences")


def test_chains_are_the_same_in_batches_of_any_size(monkeypatch):
    """Later sequences continue the generator, so the first batch does not depend on them."""
    evidence = evidence_for(5, 3, 32, 6)
    monkeypatch.setattr("mtdinterp.estimators.gibbs.MOST_AT_ONCE", 3)
    together = sampled_posterior_mean(evidence, samples=50)
    first = sampled_posterior_mean(evidence[:3], samples=50)
    for whole, part in zip(together, first, strict=True):
        assert whole.shape == (6, 3)
        assert torch.equal(whole[:3], part)


@pytest.mark.parametrize(("vocab_size", "order"), [(5, 5), (3, 3), (20, 4), (2, 5)])
def test_what_sampling_adds_to_the_divergence(vocab_size, order):
    """KL(exact ‖ sampled) is what a sampled row lies above the exact one on average."""
    evidence = evidence_for(vocab_size, order, 48, 200)
    exact = evidence.predict(posterior_mean_of(evidence, 1e-6))
    weights, stderr = sampled_posterior_mean(evidence, samples=300)
    measured = kl_divergence(exact, evidence.predict(weights)).mean()
    expected = sampling_divergence(evidence, weights, stderr).mean()
    assert measured / 1.6 < expected < 1.6 * measured


def test_exact_rows_add_nothing():
    evidence = evidence_for(5, 3, 32, 4)
    none = torch.zeros(4, 3, dtype=torch.float64)
    assert (sampling_divergence(evidence, evidence.uniform, none) == 0).all()


@pytest.fixture
def task():
    return MTDTask.random(3, 2, seed=0)


@pytest.fixture
def model(task):
    return one_step(task.transition, 2, 16, beta=5.0)


def test_probes_and_reports_have_the_row_and_the_note(task, model, monkeypatch):
    monkeypatch.setattr(posterior, "COMPARING_NODES", 3)
    named = identify_algorithm(model, task, names=("uniform", "exact_bayes"), n_sequences=400)
    assert SAMPLED.format(200) in named.notes["exact_bayes"]
    (row,) = [row for row in named.blocks()[1].rows if row[0] == BAYES.label]
    assert row[-1] == named.notes["exact_bayes"]
    assert named.left_out == {}
    assert named.left_out_shifted == {}
    decoded = decode_latents(model, task, n_sequences=400)
    assert SAMPLED.format(400) in decoded.notes["posterior_mean"]
    assert decoded.table["posterior_mean"]
    scores = held_out_scores(model, task, 64)
    assert scores.estimators["exact_bayes"].kl > 0
    assert scores.to_dict()["notes"] == scores.notes
    for found, note in (
        (decoded, f"exact posterior mean: {decoded.notes['posterior_mean']}."),
        (scores, f"The exact posterior mean: {scores.notes['exact_bayes']}."),
    ):
        lines = [line for part in found.blocks() if isinstance(part, Text) for line in part.lines]
        assert note in lines
    for found in (named, decoded):
        (note,) = found.notes.values()
        assert note in found.summary()
        assert "not computed" not in found.summary()


def test_exact_rows_have_no_note(task, model):
    named = identify_algorithm(model, task, names=("uniform", "exact_bayes"), n_sequences=64)
    assert named.notes == {}
    assert held_out_scores(model, task, 64).notes == {}
    assert decode_latents(model, task, n_sequences=64).notes == {}


def test_a_mean_that_sampling_reaches_is_the_integrated_one():
    task = MTDTask.random(4, 3, seed=0)
    tokens = task.sample(8, 40, seed=1).tokens
    exact = posterior_mean(task.transition, tokens, 3, method="exact")
    sampled = posterior_mean(task.transition, tokens, 3, max_nodes=5)
    assert (exact.method, sampled.method) == ("exact", "gibbs")
    assert ((exact.weights - sampled.weights).abs() < 5 * sampled.stderr).all()
