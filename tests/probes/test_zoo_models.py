"""What the probes find on trained models: the promises of the project, model by model."""

from statistics import median

import pytest

from mtdinterp import load_checkpoint
from mtdinterp.checkpoint_files import ZOO, read_config, zoo_names
from probes import identify_algorithm, recover_beta, recover_transition, trace_development

USUAL = [name for name in zoo_names() if "paper" not in name]
LENGTHS = {name: read_config(ZOO / name)["model"]["length"] for name in USUAL}
SHORT = [name for name in USUAL if LENGTHS[name] == 64]
LONG = [name for name in USUAL if 64 < LENGTHS[name] <= 256]
LONGEST = [name for name in USUAL if LENGTHS[name] > 256]


def beta_is_near_the_optimum(name):
    checkpoint = load_checkpoint(name)
    found = recover_beta(checkpoint.model, checkpoint.task)
    # Long models attend less sharply than one step should, though they predict as well.
    within = 0.1 if LENGTHS[name] <= 256 else 0.2
    if checkpoint.model.config.n_layers == 3:  # five layers do not weigh lags by one step's β
        assert found.attention == pytest.approx(found.optimal, rel=within)
    assert found.output == pytest.approx(found.optimal, rel=0.1)
    assert found.branch == ("mirrored" if "mirrored" in name else "direct")


@pytest.mark.parametrize("name", SHORT)
def test_beta_is_near_the_optimum(name):
    beta_is_near_the_optimum(name)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("name", LONG)
def test_beta_is_near_the_optimum_on_long_sequences(name):
    beta_is_near_the_optimum(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGEST)
def test_beta_is_near_the_optimum_on_the_longest_sequences(name):
    beta_is_near_the_optimum(name)


def test_the_transition_matrix_is_seen_in_attention_and_output():
    checkpoints = [load_checkpoint(name) for name in SHORT]
    found = [recover_transition(entry.model, entry.task).row_kl for entry in checkpoints]
    assert median(row["attention"] for row in found) <= 0.08
    assert median(row["attention"] / row["attention_softmax"] for row in found) <= 0.5
    assert median(row["output"] for row in found) <= 0.03


def test_three_layers_take_one_step():
    checkpoint = load_checkpoint("disentangled-m3-T64")
    found = identify_algorithm(checkpoint.model, checkpoint.task, n_sequences=512)
    assert found.best == "one_step"
    assert found.divergences["one_step"] < found.divergences["exact_bayes"] / 2


def test_five_layers_take_more_than_one():
    checkpoint = load_checkpoint("disentangled-m3-T64-L5")
    found = identify_algorithm(checkpoint.model, checkpoint.task, n_sequences=512)
    # At this length two steps and the posterior mean are as near to each other as the model is to
    # either.
    assert {found.best, *found.tied} & {
        "mirror_descent_2",
        "mirror_descent_3",
        "two_step_construction",
    }
    assert "one_step" not in (found.best, *found.tied)
    assert found.divergences["one_step"] > 1.5 * found.divergences["mirror_descent_2"]


def test_the_moments_of_a_training_history():
    found = trace_development("disentangled-m4-T64")
    assert found.final_branch == "direct"
    assert 0 < found.events["branch"] <= found.events["left_plateau"] < found.steps[-1]
    assert found.series["beta"][-1] > 10
    with pytest.raises(ValueError, match="a history contains numbers"):
        trace_development("disentangled-m4-T64", {"anything": lambda checkpoint: 0.0})


def test_a_series_of_checkpoints_can_be_probed():
    names = ["disentangled-m4-T64", "disentangled-m4-T64-mirrored"]
    found = trace_development(
        names, {"layers": lambda checkpoint: checkpoint.model.config.n_layers}
    )
    assert found.series["layers"] == (3, 3)
    assert found.series["branch"] == ("direct", "mirrored")
    assert found.final_branch == "mirrored"
