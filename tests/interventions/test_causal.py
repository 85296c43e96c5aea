"""Steering, transplants, interchange and circuits: exact on constructions, promised on trained
models."""

import math
from statistics import median

import pytest
import torch

from mtdinterp import load_checkpoint
from mtdinterp.architectures import new_model
from mtdinterp.checkpoint_files import zoo_names
from mtdinterp.construction import one_step, one_step_standard, two_step
from mtdinterp.estimators import exact_posterior_mean, mean_responsibilities, predict_next
from mtdinterp.interventions import (
    Edge,
    ablate_edges,
    dose_response,
    interchange,
    minimal_circuit,
    patch_paths,
    steer_weights,
    transplant_attention,
)
from mtdinterp.tasks import MTDTask

LENGTH, BETA = 32, 12.0
TASK = MTDTask.random(5, 3, seed=0)
CONSTANTS = (10.0, 8.0, 5.0, 15.0)
BASE, SOURCE = (TASK.sample(64, LENGTH, seed=seed).tokens for seed in (1, 2))
BUILDS = {"disentangled": one_step, "standard": one_step_standard}


@pytest.fixture(params=BUILDS)
def model(request):
    return BUILDS[request.param](TASK.transition, 3, LENGTH, BETA)


def test_steering_follows_the_formula(model):
    vertex = torch.tensor([0.0, 1.0, 0.0])
    bayes = exact_posterior_mean(TASK.transition, BASE, 3)
    for weights in (vertex, bayes):
        expected = predict_next(TASK.transition, BASE, weights.double().expand(64, 3))
        assert torch.allclose(steer_weights(model, BASE, weights).double(), expected, atol=1e-5)
    assert torch.allclose(
        steer_weights(model, BASE, vertex, dose=0.0), model(BASE)[:, -1], atol=1e-6
    )
    curve = dose_response(model, TASK, BASE, vertex)
    assert max(curve.divergence) < 1e-9
    assert curve.explained > 0.99999
    assert list(curve.moved) == sorted(curve.moved)


def test_steering_refuses_what_are_no_weights(model):
    with pytest.raises(ValueError, match="weights: expected rows that sum to 1"):
        steer_weights(model, BASE, torch.tensor([0.5, 0.1, 0.1]))
    with pytest.raises(ValueError, match=r"weights: expected shape \[lag\] or \[64, lag\]"):
        steer_weights(model, BASE, torch.full((2, 3), 1 / 3))


def test_the_constructions_own_attention_changes_nothing(model):
    data = TASK.sample(64, LENGTH, seed=3)
    for layer, source in enumerate(("responsibilities", "uniform", "one_step")):
        found = transplant_attention(model, TASK, data, layer, source, beta=BETA)
        assert found.difference == pytest.approx(0, abs=1e-6)
        assert "within two standard errors" in found.summary()
    other = one_step(TASK.transition, 3, LENGTH, 2.0)
    assert transplant_attention(model, TASK, data, 2, other).kl_after > found.kl_before + 1e-3
    with pytest.raises(
        ValueError, match="source: expected one of responsibilities, uniform, one_step"
    ):
        transplant_attention(model, TASK, data, 0, "gamma")


@pytest.mark.parametrize("variable", ["responsibilities", "mean_responsibilities", "weights"])
def test_interchange_is_exact_on_one_step(model, variable):
    found = interchange(model, TASK, BASE, SOURCE, variable)
    assert found.r2 == pytest.approx(1, abs=1e-5)
    assert found.kl < 1e-9
    assert max(found.control_r2, found.mismatched_r2) < 0.5
    assert found.mean_r2 < 0.8
    assert found.constants["beta"] == pytest.approx(BETA, rel=1e-3)


@pytest.mark.parametrize(
    "variable",
    ["responsibilities", "mean_responsibilities", "first_weights", "reweighted", "weights"],
)
def test_interchange_is_exact_on_two_steps(variable):
    model = two_step(TASK.transition, 3, LENGTH, *CONSTANTS)
    found = interchange(model, TASK, BASE, SOURCE, variable)
    assert found.r2 == pytest.approx(1, abs=1e-5)
    assert max(found.control_r2, found.mismatched_r2) < 0.5


def test_interchange_refuses_variables_that_the_algorithm_does_not_have(model):
    with pytest.raises(
        ValueError,
        match="variable: expected one of responsibilities, mean_responsibilities, weights",
    ):
        interchange(model, TASK, BASE, SOURCE, "first_weights")


def test_a_learned_subspace_needs_one_dimension_less_than_there_are_lags():
    """Weights of three lags have two degrees of freedom."""
    model = one_step_standard(TASK.transition, 3, LENGTH, BETA)
    base, source = (TASK.sample(256, LENGTH, seed=seed).tokens for seed in (4, 5))
    found = {
        rank: interchange(model, TASK, base, source, learn_rank=rank).learned for rank in (1, 2)
    }
    assert found[2].r2 > 0.98 > found[1].r2 + 0.1
    assert found[2].control_r2 < 0.3
    assert not model.is_watched
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.promise
def test_interchange_on_the_zoo():
    names = [
        name
        for name in zoo_names()
        if name.startswith("disentangled")
        and "T64" in name
        and "L5" not in name
        and "paper" not in name
    ]
    checkpoints = [load_checkpoint(name) for name in names]
    for variable in ("mean_responsibilities", "weights"):
        pairs = [
            [entry.task.sample(128, 64, seed=seed).tokens for seed in (1, 2)]
            for entry in checkpoints
        ]
        found = [
            interchange(entry.model, entry.task, *pair, variable)
            for entry, pair in zip(checkpoints, pairs, strict=True)
        ]
        assert median(entry.r2 for entry in found) >= 0.9
        assert max(entry.control_r2 for entry in found) < 0.5


def test_the_circuit_of_one_step_is_its_own_edges():
    found = minimal_circuit(
        one_step(TASK.transition, 3, LENGTH, BETA), BASE[:48], faithfulness=0.9999
    )
    assert {str(edge) for edge in found.edges} == {
        "L1: token·token",
        "L1: writes lag",
        "L2: copies L1.lag",
        "L3: L2.L1.lag·offset",
        "L3: copies token",
        "output: L3.token",
    }
    assert {str(edge) for edge in found.constant} == {
        "L1: token·offset",
        "L2: token·offset",
        "L3: token·offset",
    }
    assert found.faithfulness > 0.9999
    assert "constant edges" in found.summary()


@pytest.mark.slow
def test_the_circuit_of_two_steps_is_its_own_edges():
    found = minimal_circuit(
        two_step(TASK.transition, 3, 16, *CONSTANTS),
        TASK.sample(24, 16, seed=1).tokens,
        faithfulness=0.99999,
    )
    assert {str(edge) for edge in found.edges} == {
        "L1: token·token",
        "L1: writes lag",
        "L2: copies L1.lag",
        "L3: L2.L1.lag·offset",
        "L3: writes lag",
        "L4: L3.lag·L1.lag",
        "L4: copies L1.lag",
        "L5: L2.L1.lag·offset",
        "L5: L4.L1.lag·offset",
        "L5: copies token",
        "output: L5.token",
    }


def test_all_edges_are_the_model_and_cutting_one_is_seen():
    model = one_step(TASK.transition, 3, LENGTH, BETA)
    found = minimal_circuit(model, BASE[:16], faithfulness=0.999)
    kept = ablate_edges(model, BASE[:16], found.edges)
    assert torch.allclose(kept, model(BASE[:16])[:, -1].double(), atol=1e-5)
    without = ablate_edges(model, BASE[:16], [edge for edge in found.edges if edge.layer != 1])
    assert (without - kept).abs().max() > 0.05
    with pytest.raises(
        ValueError, match=r"has no edge L9: writes lag; its edges are L1: token·offset"
    ):
        ablate_edges(model, BASE[:16], [Edge(9, "lag", "lag")])


@pytest.mark.parametrize("name", ["disentangled-m4-T64", "standard-m4-T64"])
def test_a_trained_models_circuit_is_the_constructions(name):
    checkpoint = load_checkpoint(name)
    found = minimal_circuit(
        checkpoint.model, checkpoint.task.sample(32, 64, seed=1).tokens, faithfulness=0.95
    )
    own = {
        "L1: token·token",
        "L1: writes lag",
        "L2: copies L1.lag",
        "L3: L2.L1.lag·offset",
        "L3: copies token",
        "output: L3.token",
    }
    assert own <= {str(edge) for edge in found.edges}
    assert len(found.edges) <= 10


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_path_patching_moves_one_edge_and_what_follows(build):
    """Γ reaches the answer by one edge alone: patching it is the algorithm with the source's Γ."""
    model = build(TASK.transition, 3, LENGTH, BETA)
    base, source = BASE[:16], SOURCE[:16]
    mean = mean_responsibilities(TASK.transition, source, 3)
    expected = predict_next(TASK.transition, base, (BETA * mean).softmax(-1))
    for edge in (Edge(3, "position", "L2.L1.lag"), Edge(2, "copy", "L1.lag")):
        assert torch.allclose(patch_paths(model, base, source, [edge]), expected, atol=1e-5)
    unread = patch_paths(
        model, base, source, [Edge(2, "copy", "token"), Edge(3, "position", "L1.lag")]
    )
    assert torch.allclose(unread, model(base)[:, -1].double(), atol=1e-5)
    everything = patch_paths(model, base, source, [Edge(0, "output", "L3.token")])
    assert torch.allclose(everything, model(source)[:, -1].double(), atol=1e-5)
    with pytest.raises(ValueError, match="expected the tokens' shape"):
        patch_paths(model, base, source[:3], [])


def small(**changes):
    """A random model on three tokens."""
    torch.manual_seed(0)
    made = new_model("disentangled", 3, 9, d_rel=2, **changes)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval()


def test_all_edges_of_any_model_are_the_model():
    task = MTDTask.random(3, 2, seed=0)
    tokens = task.sample(16, 9, seed=1).tokens
    for made in (small(n_layers=2, n_heads=2), small(logits=True)):
        everything = ablate_edges(
            made, tokens, minimal_circuit(made, tokens, faithfulness=1.0).effects
        )
        assert torch.allclose(
            everything, made.to_probabilities(made(tokens)[:, -1]).double(), atol=1e-5
        )
    with pytest.raises(ValueError, match="hidden layer before the output mixes all blocks"):
        minimal_circuit(small(d_mlp=4), tokens)
    with pytest.raises(ValueError, match="at least 8 different sequences"):
        minimal_circuit(small(), tokens[:1].expand(9, -1))
    with pytest.raises(ValueError, match=r"expected a share in 0\.\.1, got 99"):
        minimal_circuit(small(), tokens, faithfulness=99)


def test_a_models_own_attention_is_no_transplant_with_several_heads():
    task = MTDTask.random(3, 2, seed=0)
    made, data = small(n_heads=2), task.sample(16, 9, seed=1)
    assert transplant_attention(made, task, data, 0, made).difference == pytest.approx(0, abs=1e-6)


def test_what_cannot_be_answered_is_said():
    task = MTDTask.random(3, 2, seed=0)
    tokens, other = (task.sample(16, 9, seed=seed).tokens for seed in (1, 2))
    with pytest.raises(
        ValueError, match="a model of 2 layers has no site for mean_responsibilities"
    ):
        interchange(small(n_layers=2), task, tokens, other)
    with pytest.raises(
        ValueError, match="task: expected a vocabulary of 3 tokens, like the model, got 5"
    ):
        interchange(small(), TASK, tokens, other)
    with torch.no_grad():  # as notebooks have it
        assert interchange(small(), task, tokens, other, learn_rank=1).learned.rank == 1
    assert math.isnan(interchange(small(), task, tokens, tokens).r2)
    assert math.isnan(dose_response(small(), task, tokens, [0.5, 0.5], doses=(0.0,)).explained)
    with pytest.raises(ValueError, match="doses: expected at least one"):
        dose_response(small(), task, tokens, [0.5, 0.5], doses=())
