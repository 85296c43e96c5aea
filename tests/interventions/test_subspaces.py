"""Learned subspaces: their layer, their rank, and what learning leaves as it was."""

from dataclasses import replace

import pytest
import torch

from mtdinterp import explain
from mtdinterp.construction import one_step, one_step_standard
from mtdinterp.errors import NotApplicable
from mtdinterp.interventions import Edit, FromRun, patch
from mtdinterp.interventions.subspaces import SubspaceLearner, reading_layer
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.tasks import MTDTask

LENGTH = 9
TASK = MTDTask.random(3, 2, seed=0)
BASE, SOURCE = (TASK.sample(8, LENGTH, seed=seed).tokens for seed in (1, 2))
MODEL = one_step(TASK.transition, 2, LENGTH, 8.0)


@pytest.fixture(scope="module")
def explanation():
    return explain(MODEL, TASK, n_sequences=64)


def random_model(n_heads=(2, 1, 3), n_layers=3):
    torch.manual_seed(0)
    config = DisentangledConfig(
        vocab_size=3, length=LENGTH, d_rel=2, n_layers=n_layers, n_heads=n_heads
    )
    made = DisentangledTransformer(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def test_the_layer_that_reads_a_variable(explanation):
    algorithm = explanation.algorithm
    mean = algorithm.variable("mean_responsibilities")
    unnamed = replace(explanation, implementation=None)
    assert reading_layer(MODEL, explanation, mean) == 2
    assert reading_layer(MODEL, unnamed, mean) == 2
    deeper = random_model((1, 1, 1, 1), n_layers=4)
    assert reading_layer(deeper, unnamed, mean) == 3
    assert reading_layer(deeper, explanation, mean) == 2
    assert reading_layer(deeper, explanation, algorithm.variable("weights")) == 3
    with pytest.raises(
        NotApplicable,
        match=r"^learn_rank: a subspace can be learned .* only, not for responsibilities$",
    ):
        reading_layer(MODEL, explanation, algorithm.variable("responsibilities"))


def test_a_learned_rank_fits_into_the_stream():
    width = MODEL.layers[2].reads.stop
    assert SubspaceLearner(MODEL, 2, BASE, SOURCE, width, 0).rank == width
    with pytest.raises(
        ValueError, match=f"learn_rank: expected at most {width}, .* got {width + 1}"
    ):
        SubspaceLearner(MODEL, 2, BASE, SOURCE, width + 1, 0)
    with pytest.raises(ValueError, match="learn_rank: expected an integer ≥ 1, got 0"):
        SubspaceLearner(MODEL, 2, BASE, SOURCE, 0, 0)


def test_learning_is_reproducible_and_leaves_the_model_as_it_was(monkeypatch):
    monkeypatch.setattr("mtdinterp.interventions.subspaces.LEARNING_STEPS", 3)
    model = one_step_standard(TASK.transition, 2, LENGTH, 8.0)
    frozen = next(iter(model.parameters()))
    frozen.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evidence = TASK.evidence(BASE)
    unswapped = evidence.predict(evidence.uniform)
    swapped = evidence.predict(torch.eye(2, dtype=torch.float64)[[0] * 8])
    random_state = torch.get_rng_state()
    found = [
        SubspaceLearner(model, 2, BASE, SOURCE, 1, seed).learn(unswapped, swapped)
        for seed in (0, 0, 1)
    ]
    assert found[0] == found[1] != found[2]
    assert found[0].rank == 1
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not frozen.requires_grad
    assert sum(not parameter.requires_grad for parameter in model.parameters()) == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_subspace_of_the_whole_stream_is_the_whole_swap(monkeypatch):
    monkeypatch.setattr("mtdinterp.interventions.subspaces.LEARNING_STEPS", 0)
    model = one_step_standard(TASK.transition, 2, LENGTH, 8.0)
    learner = SubspaceLearner(model, 2, BASE, SOURCE, model.cfg.d_model, 0)
    edit = Edit("resid_pre", FromRun(SOURCE), layer=2, position=-1)
    found = patch(model, BASE, [edit])
    movement = learner._trained_movement(found.before.double())
    assert movement.abs().max() > 1e-3
    assert torch.allclose(movement, (found.after - found.before)[4:], atol=1e-4)
