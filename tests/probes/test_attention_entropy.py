"""The entropy of attention: what the construction must have, and where the probe appears."""

import math

import pytest
import torch

from mtdinterp import MTDTask
from mtdinterp.catalogue import built_in
from mtdinterp.construction import one_step
from mtdinterp.registry import PROBES
from probes.attention_entropy import attention_entropy, entropy

TASK = MTDTask.random(4, 3, seed=1)


def test_construction_averages_in_layer_two_and_reads_lags_in_the_others():
    model = one_step(TASK.transition, TASK.order, 20, beta=0.0)
    first, second, third = attention_entropy(model, TASK, n_sequences=32).heads
    assert first.entropy <= math.log(3) + 1e-6
    assert second.entropy == pytest.approx(math.log(17), abs=1e-5)
    assert third.entropy == pytest.approx(math.log(3), abs=1e-5)
    assert second.n_positions == pytest.approx(17, abs=1e-3)


def test_entropy_of_a_certain_and_of_a_uniform_row():
    rows = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    torch.testing.assert_close(entropy(rows.log()), torch.tensor([0, math.log(4)]).double())


def test_it_is_listed_without_being_imported():
    assert (
        built_in("probes", "register_probe")["attention_entropy"]
        == "How widely is each head's attention spread?"
    )
    assert "attention_entropy" in list(PROBES)


def test_result_has_a_summary_and_a_picture():
    model = one_step(TASK.transition, TASK.order, 20, beta=5.0)
    found = attention_entropy(model, TASK, n_sequences=32)
    assert "layer 2, head 1" in found.summary()
    assert len(found.blocks()) == 1
    assert found.to_dict()["n_sequences"] == 32
