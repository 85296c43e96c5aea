"""Constant weights are recovered from predictions that use them, and appear wherever others do."""

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.estimators import constant_weights
from mtdinterp.evidence import Evidence, mix_rows
from mtdinterp.registry import ESTIMATORS
from mtdinterp.style import style_of

TASK = MTDTask.random(4, 3, seed=2)
EVIDENCE = TASK.evidence(TASK.sample(400, 24, seed=5).tokens)
ESTIMATOR = ESTIMATORS["constant_weights"]


def test_weights_are_recovered_exactly():
    truth = torch.tensor([0.2, 0.7, 0.1], dtype=torch.float64)
    predictions = EVIDENCE.predict(truth.expand(len(EVIDENCE), -1))
    fit = ESTIMATOR.fit(EVIDENCE, predictions)
    found = ESTIMATOR.weights(EVIDENCE, **fit.constants)
    torch.testing.assert_close(found[0], truth, atol=1e-5, rtol=0)
    assert fit.divergence < 1e-9


def test_no_other_constant_weights_are_nearer():
    predictions = ESTIMATORS["exact_bayes"].predict(EVIDENCE)
    fit = ESTIMATOR.fit(EVIDENCE, predictions)
    found = ESTIMATOR.weights(EVIDENCE, **fit.constants)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        shift = 0.02 * torch.randn(3, generator=generator, dtype=torch.float64)
        nearby = (found + shift - shift.mean()).clamp_min(0)
        nearby = nearby / nearby.sum(-1, keepdim=True)
        assert EVIDENCE.divergence(predictions, nearby).mean() >= fit.divergence - 1e-12


def test_it_is_listed_with_a_style_of_its_own():
    assert "constant_weights" in list(ESTIMATORS)
    others = {style_of(name) for name in ESTIMATORS if name != "constant_weights"}
    assert style_of("constant_weights") not in others


def test_a_weight_that_is_found_at_once_does_not_end_the_search():
    """The first component alone predicts token 0, so one update finds its weight exactly."""
    rows = torch.tensor(
        [[1.0, 0.0, 0.0], [0.0, 0.8, 0.2], [0.0, 0.3, 0.7]], dtype=torch.float64
    ).expand(4, -1, -1)
    truth = torch.tensor([0.25, 0.65, 0.1], dtype=torch.float64)
    evidence = Evidence(torch.ones(4, 1, 3, dtype=torch.float64), rows)
    fit = ESTIMATOR.fit(evidence, evidence.predict(truth.expand(4, -1)))
    found = ESTIMATOR.weights(evidence, **fit.constants)
    torch.testing.assert_close(found[0], truth, atol=1e-6, rtol=0)


def test_the_search_ends_when_an_update_changes_nothing(monkeypatch):
    """Uniform weights, where it starts, explain these predictions."""
    mixtures = []

    def counted_mixture(rows, weights):
        mixtures.append(weights)
        return mix_rows(rows, weights)

    monkeypatch.setattr(constant_weights, "mix_rows", counted_mixture)
    fit = ESTIMATOR.fit(EVIDENCE, EVIDENCE.predict(EVIDENCE.uniform))
    assert len(mixtures) == 1
    assert list(fit.constants.values()) == pytest.approx([1 / 3, 1 / 3], abs=1e-12)
