"""On models whose algorithm is known every probe must name it, with its constants."""

import copy
import math
from dataclasses import replace
from statistics import median, stdev

import pytest

from mtdinterp import load_checkpoint
from mtdinterp.construction import one_step, two_step
from mtdinterp.tasks import MTDTask
from probes import (
    compare_attention,
    decode_latents,
    identify_algorithm,
    recover_beta,
    recover_transition,
)

CONSTANTS = {"beta_first": 10.0, "sharpness": 8.0, "beta_mean": 5.0, "beta_reweighted": 15.0}


@pytest.fixture(scope="module")
def five_layers():
    task = MTDTask.random(5, 3, seed=0)
    return two_step(task.transition, 3, 48, **CONSTANTS), task


def test_beta_is_recovered_at_every_level(constructed):
    model, task, beta = constructed
    found = recover_beta(model, task)
    assert found.attention == pytest.approx(beta, rel=1e-4)
    assert found.output == pytest.approx(beta, rel=1e-2)
    assert found.attention_r2 > 0.999
    assert found.output_r2 > 0.999
    assert found.branch == "direct"
    if model.config.architecture == "disentangled":
        assert found.weights == pytest.approx(beta, rel=1e-4)
        assert found.weights_r2 > 0.999
    else:
        assert math.isnan(found.weights)
    assert found.theory == pytest.approx(task.order * (48 - task.order) / (task.order + 1))


def test_the_transition_matrix_is_recovered_by_every_estimate(constructed):
    model, task, _ = constructed
    found = recover_transition(model, task)
    assert found.branch == "direct"
    for name in ("attention", "output", "output_circuit", "behaviour"):
        assert found.row_kl[name] <= 1e-6, name
        assert found.total_variation[name] <= 1e-4, name
    # The paper's probe is exact here by its choice of gauge: rows of π sum to one.
    assert found.row_kl["attention_softmax"] <= 1e-6
    assert found.trusted is not None


def test_attention_is_the_constructions(constructed):
    model, task, beta = constructed
    found = compare_attention(model, task)
    assert found.constants["beta"] == pytest.approx(beta, rel=1e-4)
    first, second, third = found.layers
    assert first.total_variation[task.order :].max() <= 1e-5
    assert second.distance <= 1e-5
    assert second.distance_from_uniform <= 1e-5
    assert third.distance <= 1e-4
    assert first.mass_on_lags == pytest.approx(1, abs=1e-6)
    assert first.responsibility_correlation > 0.9999


def test_quantities_are_decoded_where_they_are_stored(constructed):
    model, task, _ = constructed
    found = decode_latents(model, task)
    names = (
        {
            "responsibilities": "L1.lag",
            "mean_responsibilities": "L2.L1.lag",
            "one_step_weights": "L3.attention",
        }
        if model.config.architecture == "disentangled"
        else {
            "responsibilities": "responsibilities",
            "mean_responsibilities": "mean_responsibilities",
            "one_step_weights": "L3.attention",
        }
    )
    for quantity, place in names.items():
        assert found.table[quantity][place].r2 >= 0.999, quantity
        assert found.table[quantity][place].shuffled_r2 < 0.1
        assert found.table[quantity][place].untrained_r2 < 0.2
    assert found.table["mean_responsibilities"]["token"].r2 < 0.2


def test_one_step_is_named_with_its_rate(constructed):
    model, task, beta = constructed
    found = identify_algorithm(model, task, n_sequences=400)
    assert found.best == "one_step"
    assert found.parameters["one_step"]["learning_rate"] == pytest.approx(
        beta / (task.order * (48 - task.order)), rel=1e-2
    )
    assert found.divergences["one_step"] < 1e-9
    assert found.explained > 0.999
    assert "one step of mirror descent" in found.summary()


def test_two_steps_are_named_with_their_constants(five_layers):
    model, task = five_layers
    found = identify_algorithm(model, task, n_sequences=600)
    assert found.best == "two_step_construction"
    assert set(found.best_shifted.values()) == {"two_step_construction"}
    assert found.parameters["two_step_construction"] == pytest.approx(CONSTANTS, rel=0.05)


def test_two_steps_are_seen_in_attention_and_decoded(five_layers):
    model, task = five_layers
    found = compare_attention(model, task)
    assert max(layer.distance for layer in found.layers) < 1e-3
    assert found.layers[3].falls_with.value == pytest.approx(-CONSTANTS["sharpness"], rel=0.02)
    assert found.layers[3].falls_with.r2 > 0.999
    latents = decode_latents(model, task)
    assert latents.beta == pytest.approx(CONSTANTS["beta_first"], rel=1e-3)
    assert latents.table["one_step_weights"]["L3.lag"].r2 >= 0.999


def test_two_step_constants_come_with_what_is_known_of_them(five_layers):
    model, task = five_layers
    fit = recover_beta(model, task).two_step
    for name, value in fit.constants._asdict().items():
        assert abs(value - CONSTANTS[name]) <= 4 * fit.stderr[name] + 0.02 * CONSTANTS[name], name
    errors = [combination.stderr for combination in fit.combinations]
    assert errors == sorted(errors)
    assert fit.combinations[0].identified
    assert "identified" in fit.summary()


def test_zeros_in_the_transition_matrix_are_no_obstacle():
    task = MTDTask([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.5, 0, 0, 0.5]], 3)
    model = two_step(task.transition, 3, 32, **CONSTANTS)
    assert recover_beta(model, task).two_step.constants._asdict() == pytest.approx(
        CONSTANTS, rel=0.01
    )
    assert compare_attention(model, task).constants == pytest.approx(CONSTANTS, rel=0.05)
    assert identify_algorithm(model, task, n_sequences=300).best == "two_step_construction"


def test_a_model_on_the_plateau_is_called_that():
    task = MTDTask.random(5, 3, seed=0)
    model = one_step(task.transition, 3, 32, beta=0.0)
    found = identify_algorithm(model, task, n_sequences=300)
    assert found.best == "uniform"
    assert "infers nothing in context" in found.summary()
    beta = recover_beta(model, task)
    assert beta.output == 0
    assert beta.output_r2 == pytest.approx(0, abs=1e-3)
    assert recover_transition(model, task).trusted == "output"  # its output knows π all the same


def test_a_negative_beta_is_found():
    task = MTDTask.random(5, 3, seed=0)
    model = one_step(task.transition, 3, 32, beta=-10.0)
    assert recover_beta(model, task).output == pytest.approx(-10, rel=1e-2)
    assert identify_algorithm(model, task, n_sequences=300).best == "one_step"


@pytest.mark.parametrize("n_sequences", [32, 64])
def test_few_sequences_do_not_make_farther_families_tie(n_sequences):
    task = MTDTask.random(5, 3, seed=0)
    found = identify_algorithm(
        one_step(task.transition, 3, 32, 12.0), task, n_sequences=n_sequences
    )
    assert found.best == "one_step"
    assert set(found.best_shifted.values()) == {"one_step"}


def test_standard_errors_are_honest():
    """The spread of β over samples of a trained model is what the standard error says, to a
    factor."""
    checkpoint = load_checkpoint("disentangled-m4-T64")
    found = [
        recover_beta(checkpoint.model, checkpoint.task, n_sequences=256, seed=seed)
        for seed in range(12)
    ]
    for level in ("attention", "output"):
        spread = stdev(getattr(entry, level) for entry in found)
        assert 0.5 < spread / median(getattr(entry, level + "_stderr") for entry in found) < 2


def test_logits_are_read_as_logits():
    """The same predictions as logits of a softmax give the same answers at the output."""
    task = MTDTask.random(5, 3, seed=0)
    model = one_step(task.transition, 3, 32, 12.0)
    logits = copy.deepcopy(model)
    logits.config = replace(model.config, logits=True)
    logits.unembed.register_forward_hook(lambda module, inputs, outputs: outputs.log())
    assert recover_beta(logits, task).output == pytest.approx(12, rel=1e-2)
    assert (
        identify_algorithm(logits, task, names=["uniform", "one_step"], n_sequences=100).best
        == "one_step"
    )
