"""What reaches the last layer: exact on every construction, and plain words where it is unclear."""

import math
from dataclasses import replace

import pytest
import torch
from architectures.toy_architecture import Positional
from probes_models import two_heads

from mtdinterp import MTDTask, load_checkpoint
from mtdinterp.algorithms import TwoStep
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
from mtdinterp.errors import NotApplicable
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.blocks import Bars, Lines, Table
from mtdinterp.pages.pictures import png
from mtdinterp.readings.effective import token_weights, weights_along
from mtdinterp.tasks.lag_specific import LagSpecificMTDTask
from probes import effective_attention, recover_reweighting

LENGTH, ORDER, BETA = 40, 3, 12.0
TASK = MTDTask.random(5, ORDER, seed=0)
TOKENS = TASK.sample(128, LENGTH, seed=3).tokens
EXACT = 1e-5
CONSTANTS = {"beta_first": 10.0, "sharpness": 8.0, "beta_mean": 5.0, "beta_reweighted": 15.0}
BUILDERS = {"disentangled": one_step, "standard": one_step_standard}


def eighths(by_position):
    """The mean of every eighth, divided by the mean of the first seven."""
    means = torch.stack([part.mean() for part in by_position.tensor_split(8)])
    return (means / means[:-1].mean()).tolist()


@pytest.fixture(scope="module")
def trained():
    checkpoint = load_checkpoint("disentangled-m4-T64")
    return effective_attention(checkpoint.model, checkpoint.task, n_sequences=512)


@pytest.mark.parametrize("architecture", BUILDERS)
def test_everything_counts_the_same_in_the_construction(architecture):
    model = BUILDERS[architecture](TASK.transition, ORDER, LENGTH, BETA)
    found = effective_attention(model, TASK, TOKENS)
    assert found.by_position == pytest.approx([1] * 8, abs=EXACT)
    assert found.by_token == pytest.approx([1] * 5, abs=EXACT)
    assert found.flatness < EXACT
    assert found.interval[1] < 1e-4
    assert found.last == found.last_total == pytest.approx(1, abs=EXACT)
    assert found.lag_mass == pytest.approx([1] * 8, abs=EXACT)
    assert found.averaging == pytest.approx([1] * 8, abs=EXACT)
    assert max(found.distances.values()) < EXACT
    (path,) = found.paths
    assert path.name == "L1→L2→L3"
    assert path.total == pytest.approx(1, abs=EXACT)
    assert path.read == pytest.approx(BETA, rel=EXACT)
    assert path.read_r2 == pytest.approx(1, abs=EXACT)
    assert found.together is None
    (claim,) = found.claims()
    assert claim.status is Status.HOLDS


@pytest.mark.parametrize("architecture", BUILDERS)
def test_a_leak_that_layer_2_makes_up_for_does_not_show(architecture):
    mass = leaky_lag_mass(TASK.transition, TOKENS, ORDER, leak=0.1)
    model = leaky_one_step(TASK.transition, ORDER, LENGTH, BETA, 0.1, mass.mean(0), architecture)
    found = effective_attention(model, TASK, TOKENS)
    assert found.by_position == pytest.approx([1] * 8, abs=EXACT)
    assert found.flatness < EXACT
    assert found.layer_1.flatness > 0.3
    assert found.layer_2.flatness > 0.2
    assert found.layer_1.values == pytest.approx(eighths(mass.mean(0)), abs=EXACT)
    assert found.layer_2.values == pytest.approx(eighths(1 / mass.mean(0)), abs=EXACT)
    # Layer 1 is γ times the lag mass, so all that it lacks is off the lags.
    assert found.distances["layer 1"] == pytest.approx(1 - mass.mean().item(), abs=EXACT)
    size = 1 / (1 / mass.mean(0)).mean().item()
    assert found.main.total == pytest.approx(size, abs=EXACT)
    assert found.main.read == pytest.approx(BETA / size, rel=EXACT)
    assert found.claims()[0].status is Status.HOLDS


def test_a_leak_that_nothing_makes_up_for_shows():
    mass = torch.ones(LENGTH - ORDER)
    model = leaky_one_step(TASK.transition, ORDER, LENGTH, BETA, 0.1, mass)
    found = effective_attention(model, TASK, TOKENS)
    assert found.flatness == pytest.approx(found.layer_1.flatness, abs=EXACT)
    assert found.claims()[0].status is Status.FAILS


@pytest.mark.parametrize("architecture", BUILDERS)
def test_token_weights_are_recovered(architecture):
    omega = torch.tensor([1.3, 1.6, 1.2, 0.8, 0.01], dtype=torch.float64)
    model = token_weighted_one_step(TASK.transition, ORDER, LENGTH, BETA, omega, architecture)
    found = effective_attention(model, TASK, TOKENS)
    shares = omega[TOKENS[:, ORDER:]]
    expected = omega / shares[:, :-1].mean()
    assert found.by_token == pytest.approx(expected.tolist(), rel=EXACT)
    shares = shares / shares.sum(-1, keepdim=True)
    assert found.by_position == pytest.approx(eighths(shares.mean(0)), abs=EXACT)


def test_every_path_of_five_layers_is_read():
    model = two_step(TASK.transition, ORDER, LENGTH, **CONSTANTS)
    found = effective_attention(model, TASK, TOKENS)
    paths = {path.name: path for path in found.paths}
    assert len(paths) == 7
    plain, again = paths["L1→L2→L5"], paths["L1→L4→L5"]
    assert plain.read == pytest.approx(CONSTANTS["beta_mean"], rel=EXACT)
    assert again.read == pytest.approx(CONSTANTS["beta_reweighted"], rel=EXACT)
    assert plain.profile.flatness < EXACT
    assert {name for name, path in paths.items() if path.is_read} == {plain.name, again.name}

    values = TwoStep().run(TASK.evidence(TOKENS), **CONSTANTS)
    explained = torch.einsum("btg,bg->bt", values["responsibilities"], values["first_weights"])
    reweighted = (-CONSTANTS["sharpness"] * explained).softmax(-1).mean(0)
    assert again.profile.values == pytest.approx(eighths(reweighted), abs=EXACT)

    n_positions = LENGTH - ORDER
    both = CONSTANTS["beta_mean"] / n_positions + CONSTANTS["beta_reweighted"] * reweighted
    assert found.by_position == pytest.approx(eighths(both), abs=EXACT)
    constants = CONSTANTS["beta_mean"] + CONSTANTS["beta_reweighted"]
    assert found.main.total == pytest.approx(constants, rel=EXACT)
    assert found.last == pytest.approx((both[-1] / both.mean()).item(), abs=0.05)
    assert "all paths" in found.summary()
    assert "L1→L3→L5" not in found.summary()  # nothing reads it


def test_the_last_position_counts_double_if_the_last_layer_reads_it_directly():
    model = one_step(TASK.transition, ORDER, LENGTH, BETA)
    with torch.no_grad():
        model.attention[2].R_A[0, :ORDER, model.stream["L1.lag"]] += BETA / 10 * torch.eye(ORDER)
    found = effective_attention(model, TASK, TOKENS)
    assert found.direct_read == pytest.approx(BETA / 10, rel=EXACT)
    assert found.last == pytest.approx(1, abs=EXACT)
    # Layer 2 gives it 1/N of the read β, the direct read all of β/10.
    assert found.last_total == pytest.approx(1 + (LENGTH - ORDER) / 10, abs=1e-4)
    assert "4.70 times with the last layer's direct read" in found.summary()


def test_untrained_attention_is_not_flat():
    model = new_model("disentangled", 5, LENGTH, 3, n_components=ORDER)
    initialise(model, "default", 0)
    found = effective_attention(model, TASK, TOKENS)
    assert found.claims()[0].status is Status.FAILS
    assert found.last_total == found.last


def test_trained_layers_differ_and_their_product_does_not(trained):
    assert min(trained.layer_1.flatness, trained.layer_2.flatness) > 0.3
    assert trained.flatness < 0.05
    assert trained.by_token == pytest.approx([1.31, 1.61, 1.17, 1.15, 0.41], abs=0.03)
    assert trained.last == pytest.approx(0.16, abs=0.02)
    assert trained.last_total == pytest.approx(2.06, abs=0.1)


def test_standard_errors_are_honest(trained):
    """Two independent samples differ as their standard errors say."""
    checkpoint = load_checkpoint("disentangled-m4-T64")
    other = effective_attention(checkpoint.model, checkpoint.task, n_sequences=512, seed=1)
    pairs = zip(trained.by_token, other.by_token, strict=True)
    errors = zip(trained.main.by_token_stderr, other.main.by_token_stderr, strict=True)
    scores = [(a - b) / math.hypot(*both) for (a, b), both in zip(pairs, errors, strict=True)]
    assert 0.2 < math.sqrt(sum(score**2 for score in scores) / len(scores)) < 3


def test_a_threshold_within_the_interval_is_undecidable(trained):
    profile = replace(trained.main.profile, flatness=0.11, interval=(0.08, 0.14))
    unclear = replace(trained, paths=(replace(trained.main, profile=profile),))
    (claim,) = unclear.claims()
    assert claim.status is Status.UNDECIDABLE
    assert "contains the threshold 0.1" in claim.reason


def test_the_head_that_carries_is_read():
    task = MTDTask.random(5, ORDER, seed=2)
    found = effective_attention(two_heads(task, 24), task, n_sequences=256)
    assert found.heads == (2, 2, 2)
    assert found.by_position == pytest.approx([1] * 8, abs=1e-4)
    assert found.main.read == pytest.approx(12, rel=1e-4)
    assert "L1.H2, L2.H2, L3.H2" in found.summary()


def test_components_need_no_common_matrix():
    task = LagSpecificMTDTask.random(5, ORDER, seed=0)
    model = new_model("disentangled", 5, LENGTH, 3, n_components=ORDER)
    assert effective_attention(model, task, n_sequences=64).n_positions == LENGTH - ORDER


def test_where_it_makes_no_sense_it_says_so():
    class Hidden(MTDTask):
        read_offsets = (0, 1, None)

    model = one_step(TASK.transition, ORDER, LENGTH, BETA)
    with pytest.raises(NotApplicable, match="components that no single position shows"):
        effective_attention(model, Hidden(TASK.transition, ORDER), TOKENS)
    shallow = DisentangledTransformer(
        DisentangledConfig(vocab_size=5, length=LENGTH, n_layers=2, d_rel=3)
    )
    with pytest.raises(NotApplicable, match="this model has 2 layers"):
        effective_attention(shallow, TASK, TOKENS)
    short = one_step(TASK.transition, ORDER, 10, BETA)
    with pytest.raises(NotApplicable, match=r"at least 8 positions with evidence, .* have 7"):
        effective_attention(short, TASK, n_sequences=64)


def test_without_a_folded_form_the_reads_are_not_computed():
    model = Positional().new_model(5, LENGTH, n_layers=4)
    found = effective_attention(model, TASK, TOKENS)
    assert found.together is None
    assert all(math.isnan(path.read) for path in found.paths)
    assert "Reads of the last layer: not computed: The positional architecture" in found.summary()
    with pytest.raises(NotApplicable, match="The positional architecture has no folded form"):
        recover_reweighting(model, TASK, TOKENS)


def test_the_result_has_pictures_and_a_table(trained):
    chart, bars, table, _ = trained.blocks()
    assert isinstance(chart, Lines)
    assert isinstance(bars, Bars)
    assert isinstance(table, Table)
    assert png(chart).startswith(b"\x89PNG")
    assert png(bars).startswith(b"\x89PNG")
    assert trained.to_dict()["flatness"] == trained.flatness


def test_weights_along_a_chain_are_a_product_of_matrices():
    generator = torch.Generator().manual_seed(0)
    patterns = {}
    for layer in (1, 2, 3):
        scores = torch.randn(2, 2, 6, 6, generator=generator, dtype=torch.float64)
        patterns[layer] = scores.softmax(-1)
    heads = (0, 1, 0, 1)
    expected = patterns[3][:, 1] @ patterns[2][:, 0] @ patterns[1][:, 1]
    found = weights_along(patterns, heads, (2, 3, 4))
    assert torch.allclose(found, expected[:, -1], atol=1e-12)


def test_weights_of_tokens_that_do_not_occur_are_unknown():
    counts = torch.tensor([[3.0, 1.0, 0.0], [1.0, 3.0, 0.0]], dtype=torch.float64)
    omega = torch.tensor([2.0, 0.5, 7.0], dtype=torch.float64)
    totals = counts * omega * torch.tensor([[0.3], [0.9]])
    (found,) = token_weights(totals, counts, torch.ones(1, 2, dtype=torch.float64))
    assert found[:2].tolist() == pytest.approx([1.6, 0.4], rel=1e-9)
    assert found[2].isnan()
