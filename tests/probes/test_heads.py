"""With several heads every reading is per head, and the head that carries it is named."""

from itertools import product

import pytest
import torch
from probes_models import two_heads

from mtdinterp.construction import one_step
from mtdinterp.interventions import dose_response, transplant_attention
from mtdinterp.pages.blocks import Intervals, Table
from mtdinterp.tasks import MTDTask
from probes import compare_attention, decode_latents, recover_beta, recover_transition

LENGTH = 24
TASK = MTDTask.random(5, 3, seed=2)


@pytest.fixture(scope="module")
def model():
    return two_heads(TASK, LENGTH)


def test_the_head_that_holds_the_matrix_is_named(model):
    found = recover_transition(model, TASK, n_sequences=256)
    assert found.carrier == 2
    assert "head 2 of layer 1 averaged by head 2 of layer 2 follows Γ best" in found.summary()
    assert found.total_variation["attention"] < 1e-4
    idle, carrying = found.heads
    assert carrying.path.gain.value == pytest.approx(1, abs=1e-3)
    assert carrying.total_variation < 1e-4
    assert idle.path.branch == "undecided"
    assert idle.total_variation > 0.5 * found.control_variation
    assert torch.equal(found.token_gains, carrying.token_gains)


def test_the_output_is_read_head_by_head(model):
    """The mean over heads is no linear map of the attended tokens; the heads together are."""
    found = recover_transition(model, TASK, n_sequences=256)
    assert found.total_variation["output"] < 1e-4
    assert found.trusted == "output"


def test_the_head_that_follows_the_average_is_named(model):
    found = recover_beta(model, TASK, n_sequences=256)
    assert found.carrier == 2
    assert found.attention == pytest.approx(12, rel=1e-3)
    idle, carrying = found.heads
    assert carrying.r2 > 0.999
    assert not idle.r2 > 0.1
    assert "Head 2 follows Γ best" in found.summary()
    assert "head 1 " in found.head_sentence()
    attention, output = found.claims()
    assert attention.evidence.endswith(", head 2")
    assert output.evidence.endswith(", all heads together")
    (chart,) = [block for block in found.blocks() if isinstance(block, Intervals)]
    assert [reading.note.split(", ")[-1] for reading in chart.readings] == [
        "head 2",
        "all heads together",
    ]
    (table,) = [block for block in found.blocks() if isinstance(block, Table)]
    assert [row[0] for row in table.rows] == ["head 1", "head 2"]
    assert [row[-1] for row in table.rows] == ["no", "yes"]


def test_attention_is_compared_head_by_head(model):
    found = compare_attention(model, TASK, n_sequences=64)
    assert [(head.layer, head.head) for head in found.layers] == list(product((1, 2, 3), (1, 2)))
    near = [head.name for head in found.layers if head.near]
    assert near == ["layer 1, head 2", "layer 2, head 2", "layer 3, head 2"]
    for claim in found.claims():
        assert claim.passed is True
        assert claim.number.endswith("(head 2)")


def test_latents_are_decoded_from_one_heads_blocks(model):
    found = decode_latents(model, TASK, n_sequences=512)
    assert found.best("responsibilities")[0] == "L1.H2.lag"
    assert found.best("mean_responsibilities")[0] == "L2.H2.L1.H2.lag"
    assert found.best("one_step_weights")[0] == "L3.H2.attention"
    assert found.heads == tuple(f"L{layer}.H{head}" for layer, head in product((1, 2, 3), (1, 2)))
    _, idle = found.best_of_head("responsibilities", "L1.H1")
    _, carrying = found.best_of_head("responsibilities", "L1.H2")
    assert idle.r2 < 0.5 < 0.99 < carrying.r2
    table = found.blocks()[1]
    assert [row[0] for row in table.rows] == list(found.heads)
    assert all(f"  {head}: " in found.summary() for head in found.heads)


def test_interventions_say_that_they_change_all_heads(model):
    data = TASK.sample(16, LENGTH, seed=0)
    steered = dose_response(model, TASK, data.tokens, torch.eye(3)[0])
    assert "into all 2 heads" in steered.claims()[0].evidence
    assert "into all 2 heads" in steered.summary()
    moved = transplant_attention(model, TASK, data, 1)
    assert "into all 2 heads" in moved.claims()[0].evidence


def test_one_head_needs_no_words_about_heads():
    model = one_step(TASK.transition, 3, LENGTH, 12.0)
    found = (
        recover_transition(model, TASK, n_sequences=64),
        recover_beta(model, TASK, n_sequences=64),
        compare_attention(model, TASK, n_sequences=64),
    )
    for result in found:
        for claim in result.claims():
            assert "head" not in claim.claim + claim.evidence + claim.number
    assert decode_latents(model, TASK, n_sequences=64).heads == ()
