"""What a probe cannot compute is named with its reason; nothing vanishes from a table."""

import pytest

from mtdinterp import MTDTask
from mtdinterp.construction import one_step
from mtdinterp.errors import RuleTooLarge
from mtdinterp.pages.blocks import Table, Text
from mtdinterp.registry import ESTIMATORS
from probes import decode_latents, identify_algorithm

NAMES = ("uniform", "one_step", "exact_bayes")
WHY = "the rule would need too many nodes"


@pytest.fixture
def task():
    return MTDTask.random(3, 2, seed=0)


@pytest.fixture
def model(task):
    return one_step(task.transition, 2, 16, beta=5.0)


def refuse_batches(monkeypatch, sizes):
    """Let the exact posterior mean refuse batches of these sizes."""
    kind = type(ESTIMATORS["exact_bayes"])
    weights = kind.weights

    def sometimes(self, evidence, **constants):
        if len(evidence) in sizes:
            raise RuleTooLarge(WHY)
        return weights(self, evidence, **constants)

    monkeypatch.setattr(kind, "weights", sometimes)


def test_an_estimator_that_only_shifted_sequences_defeat_is_named_for_each(
    model, task, monkeypatch
):
    refuse_batches(monkeypatch, {100})
    found = identify_algorithm(model, task, names=NAMES, n_sequences=400)
    assert "exact_bayes" in found.divergences
    assert found.left_out == {}
    conditions = [variant.name for variant in task.shifted()]
    assert found.left_out_shifted == {condition: {"exact_bayes": WHY} for condition in conditions}
    sentences = [f"{name}: the exact posterior mean not computed: {WHY}" for name in conditions]
    last = found.blocks()[-1]
    assert isinstance(last, Text)
    assert list(last.lines) == sentences
    for sentence in sentences:
        assert sentence in found.summary()


def test_without_anything_missing_there_is_no_note(model, task):
    found = identify_algorithm(model, task, names=NAMES, n_sequences=400)
    assert found.left_out_shifted == {}
    assert isinstance(found.blocks()[-1], Table)
    assert "not computed" not in found.summary()


def test_a_posterior_mean_that_cannot_be_computed_has_its_row(model, task, monkeypatch):
    refuse_batches(monkeypatch, range(10_000))
    named = identify_algorithm(model, task, names=NAMES, n_sequences=400)
    assert f"not computed: {WHY}" in named.summary()
    decoded = decode_latents(model, task, n_sequences=400)
    assert f"not computed: {WHY}" in decoded.summary()
