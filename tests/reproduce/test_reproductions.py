"""Reproductions say what their numbers say: small settings, and truths that hold for them."""

import csv
import dataclasses
from functools import partial

import pytest
import torch

from mtdinterp import CheckpointError, load_checkpoint
from mtdinterp.checkpoint_files import zoo_names
from mtdinterp.errors import NotApplicable
from mtdinterp.estimators import Estimator, tune_learning_rate
from mtdinterp.metrics import row_kl, score
from mtdinterp.plugins import register_estimator
from mtdinterp.readings import predictions_of
from mtdinterp.registry import ESTIMATORS
from mtdinterp.reproduce.attention import attention_grids, attention_maps
from mtdinterp.reproduce.estimators import estimators
from mtdinterp.reproduce.figure import Context, write
from mtdinterp.reproduce.first_order import first_order
from mtdinterp.reproduce.gradient import gradient
from mtdinterp.reproduce.learning_rate import learning_rate
from mtdinterp.reproduce.lengths import METHODS, TRAINED, kl_against_length
from mtdinterp.reproduce.models import TrainedModels, ZooModels
from mtdinterp.reproduce.page import compose
from mtdinterp.reproduce.path import regularised_path
from mtdinterp.reproduce.registry import FIGURES
from mtdinterp.reproduce.scores import Scores
from mtdinterp.reproduce.steps import five_layers
from mtdinterp.reproduce.tables import dimensions, parameters
from mtdinterp.reproduce.transition import transition_matrices
from mtdinterp.training.evaluation import held_out_data
from mtdinterp.training.zoo import Entry, zoo_task

SMALL = {
    "attention": attention_maps,
    "kl-lengths": partial(kl_against_length, orders=(3,), lengths=(16, 64)),
    "transition": partial(transition_matrices, entries=(Entry(4, 64), Entry(4, 64, "standard"))),
    "five-layers": partial(five_layers, lengths=(64,), steps=(1, 2)),
    "regularised-path": partial(
        regularised_path, lengths=(64,), strengths=(0.5, 4.0, 200.0), steps=(1, 34, 144)
    ),
    "attention-grids": attention_grids,
    "dimensions": dimensions,
    "parameters": parameters,
    "first-order": partial(first_order, orders=(3,)),
    "learning-rate": partial(learning_rate, orders=(3,), lengths=(32, 64, 128), repeats=2),
    "gradient": partial(gradient, lengths=(64, 128, 256)),
    "estimators": partial(estimators, lengths=(32,)),
}


@pytest.fixture(scope="module")
def made():
    """Every figure once, on few sequences."""
    context = Context(ZooModels(), n_sequences=256)
    return {name: make(context) for name, make in SMALL.items()}


class NoModels:
    stored = True
    place = "the zoo"

    def get(self, entry):
        return None


def rows_of(found, **where):
    return [row for row in found.table if all(row[key] == value for key, value in where.items())]


def test_every_figure_of_the_registry_is_tested_under_its_name(made):
    assert set(made) == set(FIGURES)
    assert all(found.name == name for name, found in made.items())


@pytest.mark.parametrize("name", list(SMALL))
def test_a_figure_draws_and_its_table_comes_back_from_its_file(name, made, tmp_path):
    png, pdf, table = write(made[name], tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert pdf.read_bytes().startswith(b"%PDF")
    with table.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert read == [{key: str(value) for key, value in row.items()} for row in made[name].table]


def test_drawing_leaves_no_figure_and_no_setting_behind(made, tmp_path):
    import matplotlib as mpl
    from matplotlib import pyplot

    def settings():
        return {key: value for key, value in mpl.rcParams.items() if not key.startswith("backend")}

    before = settings()
    write(made["gradient"], tmp_path)
    assert settings() == before
    assert pyplot.get_fignums() == []


def test_mirror_descent_is_bayes_to_first_order_at_one_rate_only(made):
    found = made["first-order"].numbers["m3"]
    assert found["equivalent"] == pytest.approx(2, abs=0.1)
    assert found["other"] == pytest.approx(1, abs=0.05)


def test_rates_are_those_of_the_library_and_constants_are_below_their_bounds(made):
    for row in made["learning-rate"].table:
        steps, order = row["length"] - 3, 3
        bounds = [row[key] for key in ("tangent_bound", "full_bound", "paper_bound")]
        assert bounds == [steps * (order - 1), steps * order, steps * order**2]
        assert row["tangent_measured"] < row["tangent_bound"]
        assert row["tangent_measured"] < row["full_measured"] < row["full_bound"]
    wide = tune_learning_rate(zoo_task(3), 32).learning_rate
    assert rows_of(made["learning-rate"], length=32)[0]["tuned_rate"] == pytest.approx(
        wide, rel=0.05
    )


def test_the_gradient_grows_linearly_where_there_is_evidence(made):
    uneven, uniform = (made["gradient"].numbers[name] for name in ("uneven", "uniform"))
    assert sum(uneven["slope"]) == pytest.approx(4)
    assert uneven["slope"] == sorted(uneven["slope"], reverse=True)  # as the true weights are
    assert uneven["unexplained"] < 1e-3
    assert uneven["power_of_centred"] > 0.8
    assert uniform["power_of_centred"] == pytest.approx(0.5, abs=0.1)


def test_widths_are_those_of_real_models_and_one_of_the_papers_is_not(made):
    found = made["dimensions"]
    for name in zoo_names():
        checkpoint = load_checkpoint(name)
        if (
            checkpoint.model.config.architecture == "disentangled"
            and checkpoint.model.config.n_layers == 3
        ):
            (row,) = rows_of(found, order=checkpoint.task.order, layer=3)
            assert row["stream_here"] == checkpoint.model.W_U.shape[0]
    for row in found.table:
        assert (row["stream_here"] - row["stream_paper"]) == (
            row["order"] if row["layer"] == 3 else 0
        )
        assert row["added_here"] - row["added_paper"] == (row["order"] if row["layer"] == 3 else 0)


def test_kl_is_that_of_the_models_on_the_held_out_sequences(made):
    checkpoint = load_checkpoint("disentangled-m3-T64")
    data = held_out_data(checkpoint.task, 64, 256)
    expected = score(data.next_probs, predictions_of(checkpoint.model, data.tokens))
    (row,) = rows_of(made["kl-lengths"], length=64, method="model")
    assert row["kl"] == pytest.approx(expected.kl)
    assert row["kl_stderr"] == pytest.approx(expected.stderr)


def test_estimators_are_in_the_order_that_theory_gives_them(made):
    found = made["kl-lengths"]
    for length in (16, 64):
        one, built, bayes = (
            rows_of(found, length=length, method=method)[0]
            for method in ("one_step", "construction", "exact_bayes")
        )
        assert built["kl"] == pytest.approx(one["kl"], rel=1e-4)
        assert bayes["kl"] < one["kl"]
        assert one["over_one_step"] == 1
    two, bayes = (
        rows_of(made["five-layers"], method=method)[0]
        for method in ("mirror_descent_2", "exact_bayes")
    )
    assert bayes["over_one_step"] < two["over_one_step"] < 1


def test_seeds_are_averaged(made):
    found = made["five-layers"]
    seeds = [row["over_two_step"] for row in found.table if row["method"].startswith("model")]
    (over,) = found.numbers["mean_over_seeds"]
    assert over["seeds"] == len(seeds) == 3
    assert over["over_two_step"] == pytest.approx(sum(seeds) / 3)
    assert over["over_two_step_spread"] == pytest.approx(
        torch.tensor(seeds, dtype=torch.float64).std().item()
    )


def test_entropy_of_the_right_sign_and_stopping_early_beat_the_mle(made):
    found = made["regularised-path"].numbers["T64"]
    mle = found["maximum_likelihood"]["kl"]
    assert found["entropic"]["strength"] == 4.0
    assert max(found[method]["kl"] for method in ("exact_bayes", "entropic", "early_stopped")) < mle
    assert found["entropic_written"]["kl"] > mle


def test_readings_of_the_transition_matrix_have_the_row_kl_that_is_said(made):
    found = made["transition"]
    for reading in ("attention_softmax", "attention"):
        rows = rows_of(found, model="disentangled-m4-T64", reading=reading)
        matrix = torch.tensor(
            [[row[f"to_{token}"] for token in range(5)] for row in rows], dtype=torch.float64
        )
        torch.testing.assert_close(matrix.sum(1), torch.ones(5, dtype=torch.float64))
        assert row_kl(zoo_task(4).transition, matrix) == pytest.approx(rows[0]["row_kl"])
    numbers = found.numbers["disentangled-m4-T64"]
    assert numbers["attention"] < numbers["attention_softmax"] < numbers["control"]


@pytest.mark.parametrize(("name", "count"), [("attention", 3), ("attention-grids", 4)])
def test_attention_of_every_query_adds_to_one(made, name, count):
    totals: dict[tuple, float] = {}
    for row in made[name].table:
        key = (row["order"], row["method"], row["layer"], row["query"])
        totals[key] = totals.get(key, 0.0) + row["attention"]
    assert len(totals) == count * 3 * 64
    assert list(totals.values()) == pytest.approx([1.0] * len(totals), abs=1e-4)


def test_the_figure_of_estimators_has_every_registered_one_and_theory_orders_them(made):
    found = made["estimators"]
    assert {row["method"] for row in found.table} == set(ESTIMATORS)
    kl = {row["method"]: row["kl"] for row in found.table}
    assert kl["exact_bayes"] < kl["one_step"] < kl["uniform"]
    assert kl["entropic"] < kl["maximum_likelihood"]


@pytest.fixture
def fixed_lag():
    """A new estimator, registered for one test."""

    class FixedLag(Estimator):
        name, label = "fixed_lag", "always lag 1"

        def weights(self, evidence, **constants):
            weights = torch.zeros_like(evidence.uniform)
            weights[:, 0] = 1
            return weights

    register_estimator(FixedLag)
    yield FixedLag
    ESTIMATORS.remove("fixed_lag")


def test_a_new_estimator_is_drawn_and_described_without_a_change(fixed_lag, tmp_path):
    found = estimators(Context(NoModels(), n_sequences=64), lengths=(16,))
    (row,) = rows_of(found, method="fixed_lag")
    (one,) = rows_of(found, method="one_step")
    assert row["kl"] > one["kl"]
    assert "always lag 1" in found.measured[0]
    write(found, tmp_path)


def test_an_estimator_without_a_result_is_left_out_with_its_reason(fixed_lag, monkeypatch):
    def refuse(self, evidence, **constants):
        raise NotApplicable("It has no answer here.")

    monkeypatch.setattr(fixed_lag, "weights", refuse)
    found = estimators(Context(NoModels(), n_sequences=64), lengths=(16,))
    assert rows_of(found, method="fixed_lag") == []
    assert "Not shown at T = 16: always lag 1. It has no answer here." in found.measured


def test_what_is_not_in_the_zoo_is_said_and_left_out(tmp_path):
    context = Context(NoModels(), n_sequences=64)
    found = SMALL["kl-lengths"](context)
    assert {row["method"] for row in found.table} == set(METHODS) - set(TRAINED)
    assert (
        found.measured[-1]
        == "Not shown, because not in the zoo: disentangled-m3-T64, standard-m3-T64."
    )
    write(found, tmp_path)
    maps = attention_maps(context)
    assert {row["method"] for row in maps.table} == {"construction"}
    write(maps, tmp_path)


@pytest.mark.parametrize("name", ["transition", "five-layers"])
def test_a_figure_without_any_model_is_still_drawn(name, tmp_path):
    found = SMALL[name](Context(NoModels(), n_sequences=64))
    assert found.measured[-1].startswith("Not shown, because not in the zoo: disentangled-")
    assert all(path.stat().st_size > 0 for path in write(found, tmp_path)[:2])
    compose([found], tmp_path, "command", "origin")


def test_another_seed_means_other_sequences():
    task = zoo_task(3)
    usual, other = (
        Context(NoModels(), seed=seed, n_sequences=8).data(task, 16).tokens for seed in (0, 1)
    )
    torch.testing.assert_close(usual, held_out_data(task, 16, 8).tokens)
    assert not torch.equal(usual, other)


def test_the_error_of_a_ratio_is_that_of_paired_means():
    torch.manual_seed(0)
    base = torch.rand(4000, dtype=torch.float64) + 0.5
    above = 1.2 * base + 0.1 * torch.randn(4000, dtype=torch.float64)
    spread = torch.stack(
        [above[part].mean() / base[part].mean() for part in torch.arange(4000).view(40, 100)]
    ).std()
    ratio = Scores({"one_step": base, "above": above}).ratio("above")
    assert ratio.stderr == pytest.approx(spread.item() / 40**0.5, rel=0.35)
    assert ratio.stderr < 0.5 * Scores({"one_step": base, "above": above}).kl("above").stderr


def test_training_goes_on_where_it_stopped_and_is_not_repeated(tmp_path):
    entry = Entry(3, 8, changes={"steps": 6, "batch_size": 4, "evaluate_every": 2, "save_every": 2})
    said: list[str] = []

    class Stopped(Exception):
        pass

    def stop(words):
        said.append(words)
        if "step 4" in words:
            raise Stopped

    with pytest.raises(Stopped):
        TrainedModels(tmp_path, stop).get(entry)
    assert [words.split(",")[0] for words in said] == [
        f"training {entry.name}: step {step} of 6" for step in (0, 2, 4)
    ]
    resumed: list[str] = []
    checkpoint = TrainedModels(tmp_path, resumed.append).get(entry)
    assert [words.split(",")[0] for words in resumed] == [
        f"training {entry.name}: step {step} of 6" for step in (4, 6)
    ]
    assert [line["step"] for line in checkpoint.history] == [0, 2, 4, 6]
    again: list[str] = []
    assert TrainedModels(tmp_path, again.append).get(entry).history == checkpoint.history
    assert again == []
    # A finished run by another recipe is not this model.
    other = dataclasses.replace(entry, changes={**entry.changes, "learning_rate": 1e-4})
    with pytest.raises(CheckpointError, match="contains a run whose settings differ"):
        TrainedModels(tmp_path).get(other)
