"""Where interchange looks for a variable: named blocks, single heads, and models of any depth."""

import math
import re
from dataclasses import replace

import pytest
import torch

from mtdinterp import explain, load_checkpoint
from mtdinterp.construction import one_step
from mtdinterp.errors import NotApplicable
from mtdinterp.formatting import counted
from mtdinterp.interventions import dose_response, interchange, transplant_attention
from mtdinterp.interventions.interchange import _r2_stderr
from mtdinterp.interventions.sites import candidate_sites
from mtdinterp.metrics import r_squared
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
)
from mtdinterp.tasks import MTDTask
from mtdinterp.tasks.lag_specific import LagSpecificMTDTask

LENGTH, BETA = 24, 12.0
TASK = MTDTask.random(5, 3, seed=0)
BASE = TASK.sample(64, LENGTH, seed=1).tokens
SOURCE = TASK.sample(64, LENGTH, seed=2).tokens


def random_weights(model):
    """The model with weights large enough to attend unevenly."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def wider_construction(n_layers=3, n_heads=1, head=0):
    """The one-step construction in one head of a wider model; other heads and layers are idle."""
    single = one_step(TASK.transition, 3, LENGTH, BETA)
    config = DisentangledConfig(
        vocab_size=5,
        length=LENGTH,
        n_layers=n_layers,
        n_heads=n_heads,
        d_rel=single.config.d_rel,
        exact_length=True,
    )
    model = DisentangledTransformer(config)

    def new_name(block):
        return re.sub(r"L(\d)", rf"L\1.H{head + 1}", block) if n_heads > 1 else block

    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        for layer, attn in enumerate(single.attention):
            wide = model.attention[layer]
            wide.R_V[head] = attn.R_V[0]
            reads = single.streams[layer]
            for block, columns in reads.items():
                here = model.stream[new_name(block)]
                wide.R_A[head, :, here] = attn.R_A[0, :, columns]
                for key_block, keys in reads.items():
                    there = model.stream[new_name(key_block)]
                    wide.W_A[head, here, there] = attn.W_A[0, columns, keys]
        output = model.stream[new_name("L3.token")]
        model.W_U[output] = single.W_U[single.stream["L3.token"]]
    return model.eval()


def test_the_wider_construction_is_the_construction():
    expected = one_step(TASK.transition, 3, LENGTH, BETA)(BASE)[:, -1]
    for model in (wider_construction(4), wider_construction(3, 2, 1)):
        assert torch.allclose(model(BASE)[:, -1], expected, atol=1e-5)


@pytest.mark.parametrize("head", [0, 1])
def test_interchange_names_the_head_that_holds_a_variable(head):
    model = wider_construction(3, 2, head)
    explanation = explain(model, TASK)
    name = f"H{head + 1}"
    expected = {
        "responsibilities": f"L1.{name}.lag before layer 2",
        "mean_responsibilities": f"L2.{name}.L1.{name}.lag before layer 3",
        "weights": f"attention of layer 3, head {head + 1}",
    }
    for variable, site in expected.items():
        found = interchange(model, TASK, BASE, SOURCE, variable, explanation=explanation)
        assert found.site == site
        assert found.r2 == pytest.approx(1, abs=1e-5)
        assert max(found.control_r2, found.mismatched_r2) < 0.5
    # The idle head's attention does nothing; both heads together do what the working one does.
    assert found.sites[f"attention of layer 3, head {2 - head}"] == pytest.approx(0, abs=1e-5)
    assert found.sites["attention of layer 3"] == pytest.approx(1, abs=1e-5)


def test_heads_of_layers_may_differ_in_number():
    task = MTDTask.random(3, 2, seed=0)
    base, source = (task.sample(16, 9, seed=seed).tokens for seed in (1, 2))
    for heads in ((2, 1, 1), (1, 1, 3)):
        config = DisentangledConfig(vocab_size=3, length=9, d_rel=2, n_heads=heads)
        model = random_weights(DisentangledTransformer(config))
        explanation = explain(model, task)
        for variable in ("responsibilities", "weights"):
            found = interchange(model, task, base, source, variable, explanation=explanation)
            assert math.isfinite(found.control_r2)


def test_without_a_construction_the_general_sites_find_the_variables():
    """Four layers have no known construction, but the first three can still be one step."""
    model = wider_construction(4)
    three = explain(one_step(TASK.transition, 3, LENGTH, BETA), TASK)
    four = explain(model, TASK)
    explanation = replace(
        four, algorithm=three.algorithm, constants=three.constants, identified=True, at_bound=()
    )
    assert explanation.implementation is None
    expected = {
        "responsibilities": "attention of layer 1",
        "mean_responsibilities": "all that layer 2 writes",
        "weights": "attention of layer 3",
    }
    for variable, site in expected.items():
        found = interchange(model, TASK, BASE, SOURCE, variable, explanation=explanation)
        assert found.site == site
        assert found.r2 == pytest.approx(1, abs=1e-5)
        assert "No construction is known for 4 layers" in found.summary()


@pytest.mark.parametrize("n_layers", [1, 2, 4, 6])
def test_every_depth_gets_an_answer_or_a_sentence(n_layers):
    task = MTDTask.random(3, 2, seed=0)
    config = StandardConfig(vocab_size=3, length=9, n_layers=n_layers, d_model=8)
    model = random_weights(StandardTransformer(config))
    data = task.sample(16, 9, seed=1)
    explanation = explain(model, task)
    depth = counted(n_layers, "layer")
    for variable in explanation.algorithm.variables:
        if candidate_sites(model, explanation, variable):
            found = interchange(
                model,
                task,
                data.tokens,
                data.tokens.roll(1, 0),
                variable.name,
                explanation=explanation,
            )
            assert found.claims()[0].reason
            assert f"known for {depth}" in found.summary()
        else:
            assert n_layers < 3
            with pytest.raises(NotApplicable, match=f"{depth} has no site for"):
                interchange(
                    model, task, data.tokens, data.tokens, variable.name, explanation=explanation
                )
    with pytest.raises(NotApplicable, match=f"No construction is known for {depth}"):
        transplant_attention(model, task, data, 0, "uniform", explanation=explanation)


def test_a_task_without_one_matrix_gets_an_answer_or_a_sentence():
    task = LagSpecificMTDTask.random(3, 2, seed=0)
    config = DisentangledConfig(vocab_size=3, length=9, d_rel=2)
    model = random_weights(DisentangledTransformer(config))
    data = task.sample(16, 9, seed=1)
    explanation = explain(model, task)
    source = data.tokens.roll(1, 0)
    found = interchange(model, task, data.tokens, source, "weights", explanation=explanation)
    assert "needs one transition matrix" in found.summary()
    assert dose_response(model, task, data.tokens, [1.0, 0.0]).n_sequences == 16
    with pytest.raises(NotApplicable, match="needs one transition matrix that all lags share"):
        transplant_attention(model, task, data, 0, "responsibilities", explanation=explanation)


def test_an_algorithm_that_does_not_move_has_no_r2():
    """Dividing by a movement that is rounding once gave R² of -6e13."""
    model = one_step(TASK.transition, 3, LENGTH, BETA)
    still = replace(explain(model, TASK), constants={"beta": 1e-9})
    found = interchange(model, TASK, BASE, SOURCE, "weights", explanation=still)
    assert math.isnan(found.r2)
    assert math.isnan(found.r2_stderr)
    claim = found.claims()[0]
    assert claim.passed is None
    assert "does not move" in claim.reason


def test_the_standard_error_of_r2_is_that_of_a_jackknife():
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    moved = expected + 0.5 * torch.randn(200, 4, generator=generator, dtype=torch.float64)
    without = []
    for pair in range(200):
        kept = torch.arange(200) != pair
        without.append(r_squared(moved[kept], expected[kept]))
    values = torch.tensor(without, dtype=torch.float64)
    jackknife = (199 / 200 * (values - values.mean()).square().sum()).sqrt().item()
    assert _r2_stderr(moved, expected) == pytest.approx(jackknife, rel=0.02)


def test_a_given_explanation_is_used():
    model = one_step(TASK.transition, 3, LENGTH, BETA)
    explanation = explain(model, TASK, seed=3)
    given = interchange(model, TASK, BASE, SOURCE, seed=3, explanation=explanation)
    assert given.explanation is explanation
    assert given.r2 == interchange(model, TASK, BASE, SOURCE, seed=3).r2


ZOO_SITES = {
    "disentangled-m4-T64": (
        "L1.lag before layer 2",
        "L2.L1.lag before layer 3",
        "attention of layer 3",
    ),
    "standard-m3-T64": (
        "all that layer 1 writes",
        "all that layer 2 writes",
        "attention of layer 3",
    ),
}


@pytest.mark.parametrize("name", ZOO_SITES)
def test_the_sites_of_trained_models(name):
    """The sites that these models had before sites were derived from the algorithm."""
    checkpoint = load_checkpoint(name)
    model = checkpoint.model
    task = checkpoint.task
    base, source = (task.sample(128, 64, seed=seed).tokens for seed in (1, 2))
    explanation = explain(model, task)
    variables = ("responsibilities", "mean_responsibilities", "weights")
    for variable, site in zip(variables, ZOO_SITES[name], strict=True):
        found = interchange(model, task, base, source, variable, explanation=explanation)
        assert found.site == site
        assert found.r2 > 0.9
        assert 0 < found.r2_stderr < 0.02
        assert found.claims()[0].passed
