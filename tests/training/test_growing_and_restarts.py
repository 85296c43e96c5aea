"""`mtdinterp train --grow-from` and `--restarts`."""

import argparse
import json

import pytest
import torch

from mtdinterp import load_checkpoint
from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.cli import main
from mtdinterp.commands import restarts
from mtdinterp.commands.growing import make_grown, name_of_grown
from mtdinterp.commands.train import add_arguments
from mtdinterp.training import DivergedError
from mtdinterp.training.recipes import recipe_for
from mtdinterp.training.run import new_run, resumed_run

TINY = ["--batch-size", "2", "--steps", "4", "--evaluate-every", "2"]


@pytest.fixture(scope="module")
def short(tmp_path_factory):
    """A checkpoint with three lags, T = 12 and the task of seed 5."""
    path = tmp_path_factory.mktemp("short") / "model-T12"
    words = ["train", "--vocab-size", "3", "--order", "3", "--length", "12", "--task-seed", "5"]
    assert main([*words, *TINY, "--out", str(path)]) == 0
    return path


def grow(short, *words):
    return main(["train", "--grow-from", str(short), *words])


def test_a_grown_model_has_the_task_the_weights_and_the_recipe_of_growing(
    short, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert grow(short, "--length", "20", *TINY, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["checkpoint"].endswith("out/model-T20")
    before = load_checkpoint(short)
    grown = load_checkpoint("out/model-T20")
    assert grown.task == before.task
    assert grown.model.config.length == 20
    assert grown.config["seeds"] == {"task": 5, "model": 0}
    assert grown.config["recipe"]["name"] == "grown, changed"
    assert grown.config["parent"] == {
        "name": "model-T12",
        "length": 12,
        "weights_sha256": tensors_digest(before.model.state_dict()),
    }
    # Four steps at the rate of a warm-up change little.
    for name, weights in before.model.state_dict().items():
        now = dict(grown.model.state_dict())[name]
        if now.shape == weights.shape:
            assert (now - weights).abs().max() < 0.01


def test_a_run_of_a_grown_model_can_be_resumed(short, tmp_path):

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["--grow-from", str(short), "--length", "16", *TINY]
    made = make_grown(parser.parse_args(words))
    weights = []
    for stops in ((2,), ()):
        path = tmp_path / f"run{len(stops)}"
        made = make_grown(parser.parse_args(words))
        with new_run(
            path, made.model, made.task, made.recipe, made.seeds, parent=made.parent
        ) as run:
            run.train(lambda trainer, stops=stops: trainer.step not in stops)
        with resumed_run(path) as run:
            run.train()
            weights.append(run.trainer.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--length", "12"], "--length: a model of length 12 can only become longer, got 12"),
        (["--length", "9"], "--length: a model of length 12 can only become longer, got 9"),
        ([], "--grow-from needs the new --length; model-T12 has 12"),
        (
            ["--length", "20", "--order", "4"],
            "--order 4: model-T12 has 3, and growing changes only the length; leave out --order",
        ),
        (["--length", "20", "--task-seed", "1"], "--task-seed 1: model-T12 has 5"),
        (["--length", "20", "--layers", "5"], "--layers 5: model-T12 has 3"),
        (["--length", "20", "--architecture", "standard"], "model-T12 has disentangled"),
        (["--length", "20", "--transition", "pi.csv"], "leave out --transition"),
        (["--length", "20", "--concentration", "2"], "leave out --concentration"),
        (["--length", "20", "--setting", "x=1"], "leave out --setting"),
        (["--length", "20", "--initialisation", "small"], "leave out --initialisation"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(short, tmp_path, words, sentence, capsys):
    assert grow(short, *words, "--out", str(tmp_path / "grown")) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("mtdinterp train: ") == 1
    assert not (tmp_path / "grown").exists()


def test_flags_may_repeat_what_the_checkpoint_says(short, tmp_path):
    words = ["--order", "3", "--vocab-size", "3", "--task-seed", "5", "--layers", "3"]
    out = str(tmp_path / "grown")
    assert grow(short, "--length", "16", *words, *TINY, "--out", out) == 0


def test_the_grown_recipe_needs_a_model_to_start_from(capsys):
    assert main(["train", "--recipe", "grown"]) == 2
    assert "give it with --grow-from" in capsys.readouterr().err
    with pytest.raises(ValueError, match="recipe: grown depends on the length"):
        recipe_for("grown", "disentangled", 3)


@pytest.mark.parametrize(
    ("length", "steps", "batch_size", "rate"),
    [(96, 4000, 64, 5e-3), (256, 4000, 32, 5e-3), (500, 3000, 24, 4e-3), (1984, 1500, 16, 3e-3)],
)
def test_longer_models_grow_with_fewer_steps_and_sequences(length, steps, batch_size, rate):
    recipe = recipe_for("grown", "disentangled", 3, length=length)
    assert (recipe.name, recipe.steps, recipe.batch_size) == ("grown", steps, batch_size)
    assert recipe.learning_rate == pytest.approx(rate)
    assert recipe_for("grown", "standard", 3, length=length).learning_rate == pytest.approx(
        rate / 2
    )
    assert recipe_for("grown", "disentangled", 5, length=length).steps == 2.5 * steps


def outcome(kl, warning=None):
    return {"kl": kl, "ratio": kl, "branch": "direct", "warning": warning, "step": 4}


def run_restarts(tmp_path, kls, most=3):
    """Restart with models that reach the given KLs; bad ones have a KL of at least 1."""
    out = tmp_path / "model"

    def train(options, path):
        kl = kls[options.seed]
        path.mkdir()
        (path / "weights").write_text(str(kl))
        result = outcome(kl, "bad" if kl >= 1 else None)
        return {**result, "checkpoint": str(path)}, None

    options = argparse.Namespace(seed=0, restarts=most)
    first, _ = train(options, out)
    result, interrupted = restarts.restarted(options, out, first, train)
    assert interrupted is None
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    return result, float((out / "weights").read_text())


def test_a_good_model_is_not_trained_again(tmp_path):
    result, kept = run_restarts(tmp_path, [0.5])
    assert kept == 0.5
    assert [entry["seed"] for entry in result["tries"]] == [0]


def test_other_seeds_are_tried_until_one_is_good(tmp_path, capsys):
    result, kept = run_restarts(tmp_path, [3.0, 2.0, 0.9, 0.1])
    assert kept == result["kl"] == 0.9
    assert result["checkpoint"] == str(tmp_path / "model")
    assert [entry["seed"] for entry in result["tries"]] == [0, 1, 2]
    assert "trying seed 2 (restart 2 of 3)" in capsys.readouterr().err


def test_the_best_of_bad_models_is_kept(tmp_path):
    result, kept = run_restarts(tmp_path, [3.0, 2.0, 4.0, 2.5])
    assert kept == result["kl"] == 2.0
    assert len(result["tries"]) == 4


def test_restarts_of_the_command_keep_one_directory(tmp_path, capsys):
    words = ["train", "--vocab-size", "3", "--order", "2", "--length", "12", *TINY]
    out = tmp_path / "run"
    assert main([*words, "--restarts", "2", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    best = min(result["tries"], key=lambda entry: entry["ratio"])
    loaded = load_checkpoint(out)
    assert loaded.config["seeds"]["model"] == best["seed"]
    assert loaded.history[-1]["kl"] == result["kl"]
    assert result["warning"]


def test_a_directory_of_a_trial_that_is_taken_is_refused_before_any_training(tmp_path, capsys):
    (tmp_path / "run-seed-2").mkdir()
    (tmp_path / "run-seed-2" / "file").write_text("")
    words = ["train", "--order", "2", "--length", "12", *TINY, "--out", str(tmp_path / "run")]
    assert main([*words, "--restarts", "2"]) == 2
    assert "run-seed-2: expected a new or empty directory for a restart" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_seed_that_diverges_does_not_end_the_restarts(tmp_path, capsys):
    def train(options, path):
        path.mkdir()
        if options.seed == 1:
            raise DivergedError("the loss is nan")
        return {**outcome(0.5), "checkpoint": str(path)}, None

    options = argparse.Namespace(seed=0, restarts=3)
    (tmp_path / "model").mkdir()
    result, _ = restarts.restarted(options, tmp_path / "model", outcome(2.0, "bad"), train)
    assert [entry["seed"] for entry in result["tries"]] == [0, 1, 2]
    assert result["kl"] == 0.5
    assert "seed 1 diverged: the loss is nan" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_an_interrupted_restart_says_where_the_best_model_is(tmp_path, capsys):
    def train(options, path):
        path.mkdir()
        return {**outcome(3.0, "bad"), "checkpoint": str(path)}, 2

    options = argparse.Namespace(seed=0, restarts=3)
    (tmp_path / "model").mkdir()
    result, signal = restarts.restarted(options, tmp_path / "model", outcome(2.0, "bad"), train)
    assert signal == 2
    assert result["checkpoint"].endswith("model-seed-1")
    best = f"the best model so far (seed 0) is in {tmp_path / 'model'}"
    assert best in capsys.readouterr().err


def test_the_name_of_a_grown_model_has_the_new_length_and_seed(short, monkeypatch):
    monkeypatch.chdir(short)
    for seed, name in ((0, "model-T20"), (3, "model-T20-seed3")):
        options = argparse.Namespace(grow_from=".", length=20, seed=seed)
        assert name_of_grown(options) == name
