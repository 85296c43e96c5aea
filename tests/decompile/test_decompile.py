"""A model becomes a program: exactly for constructions, nearly for trained models."""

import json

import numpy as np
import pytest
import torch

from mtdinterp import LagSpecificMTDTask, MTDTask, load_checkpoint
from mtdinterp.cli import main
from mtdinterp.construction import (
    leaky_lag_mass,
    leaky_one_step,
    one_step,
    token_weighted_one_step,
    two_step,
)
from mtdinterp.criteria import OUTPUT_FLOOR
from mtdinterp.decompile import decompile
from mtdinterp.decompile.terms import BASE, NAMES, TERMS
from mtdinterp.errors import NotApplicable
from mtdinterp.metrics import kl_divergence, to_distribution
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.readings import predictions_of
from mtdinterp.readings.concatenated import as_concatenated

TASK = MTDTask.random(vocab_size=4, order=3, seed=2)
LENGTH = 24


@pytest.fixture(scope="module")
def constructed():
    return one_step(TASK.transition, TASK.order, LENGTH, beta=7.0, dtype=torch.float64)


@pytest.fixture(scope="module")
def exact(constructed):
    return decompile(constructed, TASK, n_sequences=64)


@pytest.fixture(scope="module")
def trained():
    return load_checkpoint("disentangled-m4-T64")


@pytest.fixture(scope="module")
def found(trained):
    return decompile(trained.model, trained.task, n_sequences=512)


def names_of(found):
    return tuple(term.name for term in found.terms)


def run(source, tokens):
    """What a written program predicts; it may use NumPy only."""
    names = {}
    exec(source, names)
    return torch.from_numpy(names["predict"](np.asarray(tokens)))


def test_a_construction_is_its_own_two_terms(exact):
    assert exact.kl <= 1e-9
    assert names_of(exact) == exact.short_terms == BASE
    assert exact.noise == ()
    assert exact.short_truth == pytest.approx(0, abs=1e-12)
    assert exact.complete


def test_large_scores_do_not_overflow_and_single_precision_is_exact_enough():
    model = one_step(TASK.transition, TASK.order, LENGTH, 7.0, delta=1000.0, dtype=torch.float64)
    found = decompile(model, TASK, n_sequences=64)
    assert found.kl <= 1e-9
    assert names_of(found) == BASE
    assert decompile(one_step(TASK.transition, 3, LENGTH, 7.0), TASK, n_sequences=64).complete


def test_a_program_is_for_sequences_of_one_length(exact):
    with pytest.raises(ValueError, match="expected sequences of 24 tokens, got 20"):
        exact.predict(TASK.sample(4, 20, seed=0).tokens)


@pytest.mark.parametrize("architecture", ["disentangled", "standard"])
def test_varied_constructions_have_the_terms_of_their_variation(architecture):
    tokens = TASK.sample(256, LENGTH, seed=5).tokens
    mass = leaky_lag_mass(TASK.transition, tokens, 3, 0.05).mean(0)
    settings = {"architecture": architecture, "dtype": torch.float64}
    leaky = leaky_one_step(TASK.transition, 3, LENGTH, 7.0, 0.05, mass, **settings)
    found = decompile(leaky, TASK, n_sequences=64)
    assert found.kl <= 1e-9
    assert {*BASE, "leak", "averaging", "far"} == set(names_of(found))
    weights = torch.tensor([1.0, 2.0, 0.5, 0.1])
    weighted = token_weighted_one_step(TASK.transition, 3, LENGTH, 7.0, weights, **settings)
    found = decompile(weighted, TASK, n_sequences=64)
    assert found.kl <= 1e-9
    assert names_of(found) == (*BASE, "averaging")


def test_the_constants_of_a_construction_are_those_it_was_built_with(exact):
    constants = {}
    exec(exact.short_source, constants)
    assert constants["BETA"] == pytest.approx(7.0)
    # Attention does not depend on a number that is added to all scores of a query.
    offset = constants["PAIRS"] - TASK.transition.log().T.numpy()
    np.testing.assert_allclose(offset, np.broadcast_to(offset[:, :1], offset.shape))
    np.testing.assert_allclose(constants["OUTPUT"], TASK.transition)
    np.testing.assert_allclose(constants["BIAS"], np.full(3, constants["BIAS"][0]), atol=1e-9)


def test_every_program_of_a_construction_predicts_the_same(constructed, exact):
    tokens = TASK.sample(16, LENGTH, seed=9).tokens
    expected = predictions_of(constructed, tokens)
    for source in (exact.source, exact.short_source):
        torch.testing.assert_close(run(source, tokens), expected, atol=1e-9, rtol=0)


def test_a_trained_model_is_nearly_its_program(found):
    assert len(found.terms) == len(TERMS) <= 15
    assert found.complete
    assert found.kl == found.terms[-1].kl_after
    assert found.kl < found.terms[1].kl_after / 100
    assert {"leak", "averaging"} <= set(found.short_terms)
    assert set(found.noise) == set(NAMES) - set(found.short_terms)


def test_the_source_predicts_what_was_measured(trained, found):
    tokens = trained.task.sample(512, 64, seed=0).tokens
    expected = to_distribution(predictions_of(trained.model, tokens), OUTPUT_FLOOR)
    predicted = to_distribution(run(found.source, tokens), OUTPUT_FLOOR)
    assert kl_divergence(expected, predicted).mean().item() == pytest.approx(found.kl, rel=1e-9)
    torch.testing.assert_close(found.predict(tokens), run(found.source, tokens))
    short = to_distribution(run(found.short_source, tokens), OUTPUT_FLOOR)
    assert kl_divergence(expected, short).mean().item() == pytest.approx(found.short_kl, rel=1e-9)


def test_constants_are_counted_and_none_is_over_pairs_of_positions(found):
    assert found.n_constants == sum(term.n_constants for term in found.terms)
    assert found.short_n_constants < found.n_constants
    names = {}
    exec(found.source, names)
    for value in names.values():
        if isinstance(value, np.ndarray):
            assert sum(size >= 64 for size in value.shape) <= 1


def test_leak_and_averaging_matter_only_together(found):
    effects = {term.name: term for term in found.terms}
    assert effects["leak"].truth_effect < -10 * effects["leak"].truth_stderr
    assert effects["averaging"].truth_without > 10 * effects["averaging"].truth_without_stderr
    assert effects["output"].truth_without is None


def test_a_result_has_words_and_a_table(found):
    assert "Short program, output, step, leak, averaging" in found.summary()
    rows = found.table().rows
    assert len(rows) == len(TERMS)
    assert rows[0][4] == "—"
    plain = found.to_dict()
    assert plain["terms"][0]["name"] == "output"
    assert plain["n_sequences"] == 512


@pytest.mark.parametrize(
    ("model", "task", "words"),
    [
        (two_step(TASK.transition, 3, LENGTH, 2.0, 3.0, 4.0, 5.0), TASK, "three layers"),
        (
            DisentangledTransformer(
                DisentangledConfig(vocab_size=4, length=LENGTH, n_layers=3, n_heads=2)
            ),
            TASK,
            "one head each",
        ),
        (
            DisentangledTransformer(
                DisentangledConfig(vocab_size=4, length=LENGTH, n_layers=3, d_mlp=3)
            ),
            TASK,
            "hidden layer",
        ),
        (
            DisentangledTransformer(
                DisentangledConfig(vocab_size=4, length=LENGTH, n_layers=3, logits=True)
            ),
            TASK,
            "not a softmax",
        ),
    ],
)
def test_other_models_are_refused_with_the_reason(model, task, words):
    with pytest.raises(NotApplicable, match=words):
        decompile(model, task)


def test_a_model_of_another_form_is_not_interpreted():
    checkpoint = load_checkpoint("disentangled-m3-T64-paper")
    summary = decompile(checkpoint.model, checkpoint.task, n_sequences=32).summary()
    assert "the terms say nothing about it" in summary
    assert "Noise" not in summary


def test_one_matrix_per_lag_is_decompiled_too():
    task = LagSpecificMTDTask.random(vocab_size=3, order=2, seed=0)
    model = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=12, n_layers=3))
    assert decompile(model, task, n_sequences=16).kl >= 0


def test_a_standard_transformer_is_a_disentangled_one():
    checkpoint = load_checkpoint("standard-m4-T64")
    wide = as_concatenated(checkpoint.model)
    tokens = checkpoint.task.sample(16, 64, seed=1).tokens
    torch.testing.assert_close(
        predictions_of(wide, tokens), predictions_of(checkpoint.model, tokens), atol=1e-6, rtol=0
    )
    assert decompile(checkpoint.model, checkpoint.task, n_sequences=128).complete


def test_the_command_prints_and_writes_the_program(tmp_path, capsys):
    path = tmp_path / "new" / "program.py"
    words = ["decompile", "disentangled-m3-T64", "--sequences", "64"]
    assert main([*words, "--short", "--out", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Short program, output, step" in text
    assert str(path) in text
    tokens = MTDTask.random(5, 3, seed=0).sample(4, 64, seed=0).tokens
    assert run(path.read_text(), tokens).shape == (4, 5)
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == 0


def test_the_command_refuses_other_models_in_a_sentence(capsys):
    assert main(["decompile", "disentangled-m3-T64-L5"]) == 2
    assert "three layers with one head each, got 5 layers" in capsys.readouterr().err
