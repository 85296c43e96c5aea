"""Re-weighting in lag space: exact constants on constructions, and the circuit in words."""

import pytest
import torch
from probes_models import changed, two_heads

from mtdinterp import MTDTask, load_checkpoint
from mtdinterp.architectures import initialise, new_model
from mtdinterp.claims import Status
from mtdinterp.construction import (
    leaky_lag_mass,
    leaky_one_step,
    one_step,
    one_step_standard,
    token_weighted_one_step,
    two_step,
)
from mtdinterp.construction.disentangled_layers import mask_first_positions
from mtdinterp.errors import NotApplicable
from mtdinterp.models import DisentangledConfig, DisentangledTransformer, StandardTransformer
from mtdinterp.pages.blocks import Maps, Table
from mtdinterp.pages.pictures import png
from probes import recover_reweighting

LENGTH, ORDER = 40, 3
TASK = MTDTask.random(5, ORDER, seed=0)
TOKENS = TASK.sample(128, LENGTH, seed=3).tokens
EXACT = 1e-5
CONSTANTS = {"beta_first": 10.0, "sharpness": 8.0, "beta_mean": 5.0, "beta_reweighted": 15.0}
IDENTITY = torch.eye(ORDER)


def constructed(**constants):
    return two_step(TASK.transition, ORDER, LENGTH, **{**CONSTANTS, **constants})


def strengths(found):
    """The last layer's reads, by block."""
    return {read.block: read.strength for read in found.reads}


def averages_in_layer_3(model):
    """Layer 3 re-weights by Γ and layer 4 by Γ and by layer 3's average; layer 5 reads both."""
    third, fourth, fifth = model.attention[2:]
    for parameter in (third.R_A, third.R_V, fourth.W_A):
        parameter.zero_()
    mask_first_positions(model, 3, ORDER, 100.0)
    stream = model.stream
    third.W_A[0, stream["L2.L1.lag"], stream["L1.lag"]] = -20 * IDENTITY
    fourth.W_A[0, stream["L2.L1.lag"], stream["L1.lag"]] = -9 * IDENTITY
    fourth.W_A[0, stream["L3.L1.lag"], stream["L1.lag"]] = -4 * IDENTITY
    fifth.R_A[0, :ORDER, stream["L3.L1.lag"]] = 3 * IDENTITY


def rotate_code(model):
    """Layer 1 writes another code, and every layer reads it so that nothing else changes."""
    generator = torch.Generator().manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(ORDER, ORDER, generator=generator))
    model.attention[0].R_V[0] = model.attention[0].R_V[0] @ rotation
    for layer in model.attention[1:]:
        for block, columns in model.stream.items():
            if block.endswith("L1.lag") and columns.stop <= layer.d_in:
                layer.R_A[..., columns] = layer.R_A[..., columns] @ rotation
                layer.W_A[..., columns] = layer.W_A[..., columns] @ rotation


def mirror(model):
    """Layer 1 attends to unlikely lags, and all later reads of its code change their sign."""
    model.attention[0].W_A *= -1
    for layer in (3, 5):
        model.attention[layer - 1].R_A[..., model.stream["L2.L1.lag"]] *= -1
    model.attention[3].W_A *= -1
    model.attention[4].R_A[..., model.stream["L4.L1.lag"]] *= -1


@pytest.mark.parametrize("change", [None, rotate_code], ids=["plain", "rotated code"])
def test_the_two_step_construction_is_one_pass_in_layer_4(change):
    model = constructed() if change is None else changed(constructed(), change)
    found = recover_reweighting(model, TASK, TOKENS)
    assert found.kind == "one pass in layer 4"
    (row,) = found.passes
    assert (row.layer, row.query, row.key) == (4, "L3.lag", "L1.lag")
    assert row.sharpness == pytest.approx(CONSTANTS["sharpness"], rel=EXACT)
    assert row.r2 == pytest.approx(1, abs=EXACT)
    others = [entry for entry in found.rows if entry is not row]
    assert max(abs(entry.sharpness) for entry in others) < 1e-4
    assert strengths(found)["L2.L1.lag"] == pytest.approx(CONSTANTS["beta_mean"], rel=EXACT)
    assert strengths(found)["L4.L1.lag"] == pytest.approx(CONSTANTS["beta_reweighted"], rel=EXACT)
    assert found.circuit.startswith("One pass in layer 4: layer 4 by L3.lag × L1.lag (a = 8.0, R²")
    assert found.claims()[0].status is Status.HOLDS


def test_the_effect_is_that_of_the_score():
    """The standard deviation of -a·w¹·γ_i over positions."""
    found = recover_reweighting(constructed(), TASK, TOKENS)
    gamma = TASK.evidence(TOKENS).responsibilities()
    weights = (CONSTANTS["beta_first"] * gamma.mean(1)).softmax(-1)
    scores = CONSTANTS["sharpness"] * torch.einsum("btg,bg->bt", gamma, weights)
    assert found.passes[0].effect == pytest.approx(scores.std(-1).mean().item(), rel=1e-4)


def test_two_passes_by_the_average_itself():
    found = recover_reweighting(changed(constructed(), averages_in_layer_3), TASK, TOKENS)
    assert found.kind == "passes in layers 3 and 4"
    by_blocks = {(row.layer, row.query): row.sharpness for row in found.rows if row.reweights}
    assert by_blocks[3, "L2.L1.lag"] == pytest.approx(20, rel=EXACT)
    assert by_blocks[4, "L2.L1.lag"] == pytest.approx(9, rel=EXACT)
    assert by_blocks[4, "L3.L1.lag"] == pytest.approx(4, rel=EXACT)
    assert strengths(found)["L3.L1.lag"] == pytest.approx(3, rel=EXACT)


def test_a_step_back_is_not_a_step():
    found = recover_reweighting(constructed(sharpness=-6.0), TASK, TOKENS)
    assert found.kind == "other"
    assert found.passes[0].sharpness == pytest.approx(-6, rel=EXACT)
    assert "positions that are explained well count more" in found.circuit
    assert found.claims()[0].status is Status.FAILS


def test_no_sharpness_is_no_pass():
    found = recover_reweighting(constructed(sharpness=0.0), TASK, TOKENS)
    assert found.kind == "none"
    assert "No re-weighting" in found.circuit
    assert "Layer 3 does not average: 100% of its attention is on the lags" in found.circuit
    assert found.claims()[0].status is Status.FAILS


def test_an_average_that_nothing_reads_is_no_step():
    found = recover_reweighting(constructed(beta_reweighted=0.0), TASK, TOKENS)
    assert found.kind == "other"
    assert "no clear read of the last layer includes a new average" in found.circuit


def test_a_mirrored_model_re_weights_with_the_right_sign():
    found = recover_reweighting(changed(constructed(), mirror), TASK, TOKENS)
    assert found.branch == "mirrored"
    assert found.kind == "one pass in layer 4"
    assert found.passes[0].sharpness == pytest.approx(CONSTANTS["sharpness"], rel=EXACT)


@pytest.mark.parametrize("architecture", ["disentangled", "standard"])
def test_untrained_models_do_not_re_weight(architecture):
    model = new_model(architecture, 5, LENGTH, 5, n_components=ORDER)
    initialise(model, "default", 0)
    assert recover_reweighting(model, TASK, TOKENS).kind == "none"


ONE_STEP = {
    "plain": lambda architecture: {"disentangled": one_step, "standard": one_step_standard}[
        architecture
    ](TASK.transition, ORDER, LENGTH, 12.0),
    "leaky": lambda architecture: leaky_one_step(
        TASK.transition,
        ORDER,
        LENGTH,
        12.0,
        0.1,
        leaky_lag_mass(TASK.transition, TOKENS, ORDER, 0.1).mean(0),
        architecture,
    ),
    "token-weighted": lambda architecture: token_weighted_one_step(
        TASK.transition, ORDER, LENGTH, 12.0, [1.0, 2.0, 1.0, 0.5, 0.1], architecture
    ),
}


@pytest.mark.parametrize("architecture", ["disentangled", "standard"])
@pytest.mark.parametrize("variant", ONE_STEP)
def test_three_layers_have_reads_alone(variant, architecture):
    found = recover_reweighting(ONE_STEP[variant](architecture), TASK, TOKENS)
    mass = leaky_lag_mass(TASK.transition, TOKENS, ORDER, 0.1).mean(0)
    size = 1 / (1 / mass).mean().item() if variant == "leaky" else 1.0
    assert strengths(found)["L2.L1.lag"] == pytest.approx(12 / size, rel=EXACT)
    assert strengths(found)["L1.lag"] == pytest.approx(0, abs=EXACT)
    assert found.rows == found.claims() == ()
    assert found.kind == "not computed"
    assert found.circuit.startswith("Not computed: re-weighting needs a layer between")


def four_standard_layers(sharpness):
    """One step in a standard transformer, with a layer that re-weights by Γ before the last."""
    single = one_step_standard(TASK.transition, ORDER, LENGTH, 12.0)
    config = single.config.__class__(
        **{**{name: getattr(single.config, name) for name in ("vocab_size", "length", "d_model")}},
        d_head=single.config.d_head,
        n_layers=4,
        blocks=single.config.blocks,
        exact_length=True,
    )
    model = StandardTransformer(config)
    gamma, mean, unused = (
        single.stream[name] for name in ("responsibilities", "mean_responsibilities", "unused")
    )
    again = slice(unused.start, unused.start + ORDER)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embed.W_E.copy_(single.embed.W_E)
        model.unembed.W_U.copy_(single.unembed.W_U)
        for source, target in zip(single.attention, (0, 1, 3), strict=True):
            model.attention[target].load_state_dict(source.state_dict())
        third = model.attention[2]
        # Layer 2 uses dimension 0 of its head for the mask; here it is the one after the lags.
        third.W_Q[0, mean, :ORDER] = -sharpness * third.d_head**0.5 * IDENTITY
        third.W_Q[0, single.stream["token"], ORDER] = third.d_head**0.5
        third.W_K[0, gamma, :ORDER] = IDENTITY
        third.R_K[0, LENGTH - ORDER :, ORDER] = -100.0
        third.W_V[0, gamma, :ORDER] = IDENTITY
        third.W_O[0, :ORDER, again] = IDENTITY
        model.attention[3].W_Q[0, again, :ORDER] = 7.0 * third.d_head**0.5 * IDENTITY
    return model.eval()


def test_a_standard_transformer_is_read_by_its_circuits():
    found = recover_reweighting(four_standard_layers(sharpness=11.0), TASK, TOKENS)
    assert found.kind == "one pass in layer 3"
    (row,) = found.passes
    assert (row.query, row.key) == ("L2.L1.lag", "L1.lag")
    assert row.sharpness == pytest.approx(11, rel=EXACT)
    assert row.r2 == pytest.approx(1, abs=EXACT)
    assert strengths(found)["L2.L1.lag"] == pytest.approx(12, rel=EXACT)
    assert strengths(found)["L3.L1.lag"] == pytest.approx(7, rel=EXACT)


def test_heads_are_named():
    task = MTDTask.random(5, ORDER, seed=2)
    found = recover_reweighting(two_heads(task, 24), task, n_sequences=64)
    assert found.heads == (2, 2, 2)
    assert strengths(found)["L2.H2.L1.H2.lag"] == pytest.approx(12, rel=1e-4)
    assert "L1.H2, L2.H2, L3.H2" in found.summary()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("disentangled-m3-T64-L5", "passes in layers 3 and 4"),
        ("disentangled-m3-T64-L5-s2", "one pass in layer 3"),
    ],
)
def test_trained_models_re_weight_by_the_average(name, kind):
    checkpoint = load_checkpoint(name)
    found = recover_reweighting(checkpoint.model, checkpoint.task, n_sequences=128)
    assert found.kind == kind
    first = found.passes[0]
    assert (first.layer, first.query, first.key) == (3, "L2.L1.lag", "L1.lag")
    assert 25 < first.sharpness < 40
    assert first.r2 > 0.95


def test_where_it_makes_no_sense_it_says_so():
    class Hidden(MTDTask):
        read_offsets = (0, 1, None)

    with pytest.raises(NotApplicable, match="components that no single position shows"):
        recover_reweighting(constructed(), Hidden(TASK.transition, ORDER), TOKENS)
    config = DisentangledConfig(vocab_size=5, length=LENGTH, n_layers=2, d_rel=3)
    with pytest.raises(NotApplicable, match="this model has 2 layers"):
        recover_reweighting(DisentangledTransformer(config), TASK, TOKENS)


def test_the_result_has_tables_and_a_picture():
    found = recover_reweighting(constructed(), TASK, TOKENS)
    blocks = found.blocks()
    (maps,) = [block for block in blocks if isinstance(block, Maps)]
    assert png(maps).startswith(b"\x89PNG")
    assert len([block for block in blocks if isinstance(block, Table)]) == 2
    assert found.to_dict()["circuit"] == found.circuit
