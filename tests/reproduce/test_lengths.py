"""The figures over lengths show every model there is, and say where its curve ends."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
import torch

from mtdinterp.checkpoints import Checkpoint
from mtdinterp.construction import one_step
from mtdinterp.reproduce import lengths, steps
from mtdinterp.reproduce.figure import Context, write
from mtdinterp.reproduce.models import ZooModels, say_ends
from mtdinterp.reproduce.scores import (
    model_kl,
    paper_scores,
    say_sequences,
)
from mtdinterp.training.evaluation import held_out_data
from mtdinterp.training.zoo import ENTRIES, Entry, zoo_task

USUAL = re.compile(r"(disentangled|standard)-m\d-T\d+(-task\d+)?")


class Constructions:
    """A place whose models are constructions, more or less well tuned."""

    stored = True
    place = "the shelf"

    def get(self, entry):
        beta = 12.0 + entry.seed
        built = one_step(entry.task.transition, entry.order, entry.length, beta)
        return Checkpoint(built, entry.task, {}, [], Path(entry.name))


def rows_of(found, **where):
    return [row for row in found.table if where.items() <= row.items()]


@pytest.fixture(scope="module")
def grown():
    """`kl-lengths` of a zoo with a ladder, a shorter ladder and another task."""
    entries = (
        Entry(3, 12),
        Entry(3, 24),
        Entry(3, 12, "standard"),
        Entry(3, 12, task_seed=7),
        Entry(3, 24, task_seed=7),
        Entry(3, 48, suffix="-mirrored"),
        Entry(3, 48, layers=5),
    )
    said: list[str] = []
    context = Context(Constructions(), n_sequences=64, announce=said.append)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lengths, "ENTRIES", entries)
        patch.setattr(lengths, "LENGTHS", (16,))
        found = lengths.kl_against_length(context, orders=(3,))
    return found, said


def test_the_axis_is_the_papers():
    assert (lengths.LENGTHS[0], lengths.LENGTHS[-1]) == (64, 1984)


def test_every_unmodified_three_layer_model_of_the_zoo_is_shown():
    shown = {entry.name for entry in ENTRIES if lengths._is_usual(entry)}
    assert shown == {entry.name for entry in ENTRIES if USUAL.fullmatch(entry.name)}
    assert {"disentangled-m3-T64", "standard-m4-T128"} <= shown


def test_models_of_other_lengths_extend_the_axis_and_no_estimator_ends_early(grown):
    found, said = grown
    for method in set(lengths.METHODS) - set(lengths.TRAINED):
        rows = rows_of(found, method=method, task=0)
        assert [row["length"] for row in rows] == [12, 16, 24]
    main = ["m = 3, T = 12", "m = 3, T = 16", "m = 3, T = 24"]
    assert said == [*main, "m = 3, T = 12, task 7", "m = 3, T = 24, task 7"]


def test_a_curve_that_ends_early_is_named_with_the_reason(grown):
    found, _ = grown
    ends = [sentence for sentence in found.measured if "end at" in sentence]
    assert ends == [
        "The trained standard models end at T = 12 (m = 3): the shelf has no longer ones."
    ]
    assert say_ends("standard", {3: 64, 4: 512}, (64, 512), ZooModels()) == (
        "The trained standard models end at T = 64 (m = 3): the zoo has no longer ones.",
    )


def test_models_of_other_tasks_are_compared_with_one_step_on_their_own_task(grown, tmp_path):
    found, _ = grown
    tasks = [(row["length"], row["task"]) for row in rows_of(found, method="model")]
    assert tasks == [(12, 0), (24, 0), (12, 7), (24, 7)]
    (one,) = rows_of(found, method="one_step", length=12, task=7)
    (model,) = rows_of(found, method="model", length=12, task=7)
    assert model["over_one_step"] == pytest.approx(model["kl"] / one["kl"])
    data = held_out_data(zoo_task(3, seed=7), 12, 64)
    built = Constructions().get(Entry(3, 12, task_seed=7)).model
    assert model["kl"] == pytest.approx(model_kl(built, data).mean().item())
    ratios = [row["over_one_step"] for row in rows_of(found, method="model", length=12)]
    assert found.numbers["model_over_one_step"]["m3-T12"] == ratios[0]
    spread = found.numbers["over_tasks"]["model"]["m3-T12"]
    assert spread == {
        "mean": pytest.approx(mean(ratios)),
        "spread": pytest.approx(stdev(ratios)),
        "tasks": 2,
    }
    (sentence,) = [text for text in found.measured if "other π" in text]
    assert f"{mean(ratios):.3f} ± {stdev(ratios):.3f} over 2 tasks (m = 3, T = 12)" in sentence
    write(found, tmp_path)


def test_five_layers_at_every_length_that_has_a_model(monkeypatch, tmp_path):
    entries = tuple(Entry(3, 24, layers=5, seed=seed) for seed in (0, 1, 2))
    monkeypatch.setattr(steps, "ENTRIES", (*entries, Entry(4, 32, layers=5), Entry(3, 40)))
    monkeypatch.setattr(steps, "LENGTHS", (16, 48))
    found = steps.five_layers(Context(Constructions(), n_sequences=64), steps=(1, 2))
    rows = rows_of(found, method="exact_bayes")
    assert [row["length"] for row in rows] == [16, 24, 48]
    (over,) = found.numbers["mean_over_seeds"]
    assert (over["length"], over["seeds"]) == (24, 3)
    assert over["over_two_step_spread"] > 0
    assert "The trained five-layer models end at T = 24 (m = 3)" in found.measured[-1]
    write(found, tmp_path)


def test_a_trained_model_above_the_panel_raises_its_top(monkeypatch):
    from matplotlib.figure import Figure

    row = {"length": 64, "method": "model", "seeds": 3, "kl": 0.01, "kl_spread": 0.001}
    high = {**row, "over_two_step": 1.4, "over_two_step_spread": 0.1}
    for seeds, top in (([high], 1.515), ([], steps.HIGHEST)):
        figure = Figure()
        steps._draw(figure, [], seeds, (64, 128))
        assert figure.axes[1].get_ylim()[1] == pytest.approx(top)


def test_bayes_and_the_construction_reach_the_end_of_the_papers_axis():
    task = zoo_task(5)
    data = task.sample(8, 1984, seed=3)
    values = paper_scores(task, data, steps=(1,))
    assert set(values) == {"one_step", "construction", "exact_bayes"}
    assert all(len(kl) == 8 for kl in values.values())
    torch.testing.assert_close(values["construction"], values["one_step"], rtol=1e-2, atol=1e-6)
    assert values["exact_bayes"].mean() < values["one_step"].mean()


def test_the_number_of_sequences_is_said():
    counts = {64: 4096, 512: 4096, 1024: 2048, 1984: 1057}
    rows = [{"length": length, "sequences": count} for length, count in counts.items()]
    assert say_sequences([*rows, *rows]) == (
        "All methods are scored on the same sequences: 4,096 sequences (T = 64, 512), 2,048 "
        "sequences (T = 1024), 1,057 sequences (T = 1984)."
    )
    context = Context(ZooModels())
    assert len(context.data(zoo_task(3), 64, 5).tokens) == 5
    assert len(replace(context, seed=1).data(zoo_task(3), 64, 5).tokens) == 5
    assert len(replace(context, n_sequences=3).data(zoo_task(3), 64, 5).tokens) == 3
