"""Results of interventions say what they mean: claims, blocks, and plain values for JSON."""

import json
from dataclasses import replace

import pytest
import torch

from mtdinterp import explain, load_checkpoint
from mtdinterp.claims import Status
from mtdinterp.construction import LayerRole, one_step, two_step
from mtdinterp.errors import NotApplicable
from mtdinterp.interventions import (
    dose_response,
    interchange,
    minimal_circuit,
    patch_sweep,
    transplant_attention,
)
from mtdinterp.interventions.interchange import interchange_blocks
from mtdinterp.interventions.transplants import transplant_blocks
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.blocks import Maps, Table, Text
from mtdinterp.tasks import MTDTask

LENGTH, BETA = 16, 12.0
TASK = MTDTask.random(5, 3, seed=0)
DATA = TASK.sample(64, LENGTH, seed=1)
BASE = DATA.tokens
SOURCE = TASK.sample(64, LENGTH, seed=2).tokens
VERTEX = torch.tensor([1.0, 0.0, 0.0])
MODEL = one_step(TASK.transition, 3, LENGTH, BETA)


@pytest.fixture(scope="module")
def explanation():
    return explain(MODEL, TASK)


def only_claim(result):
    (claim,) = result.claims()
    assert claim.n_sequences == result.n_sequences > 0
    assert claim.seed is None  # the sequences were given
    assert bool(claim.reason) == (claim.status is Status.UNDECIDABLE)
    return claim


def check_blocks(blocks):
    """Tables have full rows; what is not text or a picture has words."""
    assert blocks
    for block in blocks:
        if isinstance(block, Table):
            assert {len(row) for row in block.rows} == {len(block.header)}


def untrained():
    torch.manual_seed(0)
    model = DisentangledTransformer(DisentangledConfig(vocab_size=5, length=LENGTH, d_rel=3))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_all_claims_hold_for_the_construction(explanation):
    results = [dose_response(MODEL, TASK, BASE, VERTEX)]
    for variable in explanation.algorithm.variables:
        swap = interchange(MODEL, TASK, BASE, SOURCE, variable.name, explanation=explanation)
        results.append(swap)
    for layer in range(3):
        results.append(transplant_attention(MODEL, TASK, DATA, layer, explanation=explanation))
    results.append(minimal_circuit(MODEL, BASE[:16], 0.95, explanation=explanation))
    for result in results:
        assert only_claim(result).status is Status.HOLDS
        check_blocks(result.blocks())
        plain = json.loads(json.dumps(result.to_dict()))
        assert plain["n_sequences"] == result.n_sequences


def test_claims_can_fail(explanation):
    stronger = replace(explanation, constants={"beta": 5 * BETA})
    swap = interchange(MODEL, TASK, BASE, SOURCE, explanation=stronger)
    assert only_claim(swap).status is Status.FAILS
    wrong = transplant_attention(
        MODEL, TASK, DATA, 2, "one_step", beta=-BETA, explanation=explanation
    )
    assert only_claim(wrong).status is Status.FAILS
    assert "a deterioration" in wrong.summary()
    assert only_claim(dose_response(untrained(), TASK, BASE, VERTEX)).status is Status.FAILS


def test_without_the_models_constants_nothing_is_decided():
    model = untrained()
    found = explain(model, TASK)
    assert not found.fitted
    swap = interchange(model, TASK, BASE, SOURCE, explanation=found)
    claim = only_claim(swap)
    assert claim.status is Status.UNDECIDABLE
    assert "constants are not the model's" in claim.reason
    assert claim.reason in swap.summary()
    assert any(isinstance(block, Text) for block in swap.blocks())
    last = transplant_attention(model, TASK, DATA, 2, explanation=found)
    assert only_claim(last).status is Status.UNDECIDABLE
    # γ and the plain average have no constants, so those transplants decide on a model that works.
    unknown = replace(found, explained=0.0, fitted=False)
    first = transplant_attention(MODEL, TASK, DATA, 0, explanation=unknown)
    assert only_claim(first).status is Status.HOLDS


def test_no_layer_works_in_a_model_that_does_not():
    """An untrained model may well predict better with any other attention."""
    model = untrained()
    found = explain(model, TASK)
    for layer in range(3):
        moved = transplant_attention(model, TASK, DATA, layer, explanation=found)
        claim = only_claim(moved)
        assert claim.status is Status.UNDECIDABLE
        assert "no better than uniform weights" in claim.reason


def test_steering_that_should_move_nothing_decides_nothing():
    found = dose_response(MODEL, TASK, BASE, VERTEX, doses=(0.0,))
    claim = only_claim(found)
    assert claim.status is Status.UNDECIDABLE
    assert "does not move" in claim.reason
    check_blocks(found.blocks())


def test_several_results_share_one_table(explanation):
    names = ("mean_responsibilities", "weights")
    swaps = []
    for name in names:
        swaps.append(interchange(MODEL, TASK, BASE, SOURCE, name, explanation=explanation))
    _, table = interchange_blocks(swaps)
    assert [row[0] for row in table.rows] == ["mean responsibilities", "weights"]
    transplants = []
    for layer in range(3):
        transplants.append(transplant_attention(MODEL, TASK, DATA, layer, explanation=explanation))
    _, table = transplant_blocks(transplants)
    assert [row[0] for row in table.rows] == ["1", "2", "3"]
    assert interchange_blocks([]) == transplant_blocks([]) == []


def test_transplants_take_the_layer_with_the_role():
    """In the five-layer construction the attention of every layer is its own."""
    model = two_step(TASK.transition, 3, LENGTH, 10.0, 8.0, 5.0, 15.0)
    found = explain(model, TASK)
    for layer, role in enumerate(found.roles):
        moved = transplant_attention(model, TASK, DATA, layer, explanation=found)
        assert moved.role is role
        assert moved.difference == pytest.approx(0, abs=1e-4)
    # Layers 3 and 5 both attend with weights; a layer without that role gets the first of them.
    other = transplant_attention(model, TASK, DATA, 1, "one_step", explanation=found)
    assert other.role is LayerRole.WEIGHTS
    assert other.claims() == ()
    with pytest.raises(NotApplicable, match="has no constant β; it has beta_first"):
        transplant_attention(model, TASK, DATA, 4, "one_step", beta=3.0, explanation=found)


def test_a_transplant_from_another_model_claims_nothing():
    found = transplant_attention(MODEL, TASK, DATA, 0, untrained())
    assert found.claims() == ()
    check_blocks(found.blocks())


def test_a_transplant_needs_an_explanation_of_that_length(explanation):
    model = untrained()
    data = TASK.sample(8, LENGTH - 2, seed=1)
    with pytest.raises(
        ValueError, match="expected an explanation at the sequences' length 14, got 16"
    ):
        transplant_attention(model, TASK, data, 0, explanation=explanation)


def test_a_sweep_shows_what_restores_the_clean_run():
    corrupted = SOURCE[:4].clone()
    corrupted[:, -3:] = BASE[:4, -3:]
    for direction in ("denoise", "noise"):
        for kind in ("block", "resid_pre", "attn_out", "head"):
            found = patch_sweep(MODEL, BASE[:4], corrupted, kind, direction)
            check_blocks(found.blocks())
            assert found.n_sequences == 4
    assert found.claims() == ()
    found = patch_sweep(MODEL, BASE[:4], corrupted)
    _, maps, table = found.blocks()
    assert isinstance(maps, Maps)
    # Γ at the last position before layer 3 decides everything about these pairs.
    assert table.rows[0] == ("3", str(LENGTH - 1), "L2.L1.lag", "+100.0%")
    (same,) = patch_sweep(MODEL, BASE[:4], BASE[:4]).blocks()
    assert "nothing to restore" in same.lines[0]


def test_the_circuit_is_compared_with_the_algorithm():
    """Six edges of a trained model are farther from it than one step of mirror descent."""
    checkpoint = load_checkpoint("disentangled-m4-T64")
    tokens = checkpoint.task.sample(32, 64, seed=1).tokens
    found = minimal_circuit(
        checkpoint.model, tokens, 0.95, explanation=explain(checkpoint.model, checkpoint.task)
    )
    assert found.kl > 2 * found.algorithm_kl
    assert "times as far away" in found.comparison()
    assert found.comparison() in found.summary()
    assert found.comparison() in found.blocks()[1].lines
    claim = only_claim(found)
    assert f"KL {found.kl:.1e}" in claim.number
    assert "one step of mirror descent: KL" in claim.control


def test_a_model_that_ignores_its_input_needs_no_circuit():
    model = untrained()
    with torch.no_grad():
        model.W_U.zero_()
    claim = only_claim(minimal_circuit(model, BASE[:8]))
    assert claim.status is Status.UNDECIDABLE
    assert "no edge is needed" in claim.reason
