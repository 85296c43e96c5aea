"""The models that ship with the package: they load by name from anywhere, and are what their
history says."""

import json
import subprocess
import sys

import pytest
import torch

from mtdinterp import CheckpointError, load_checkpoint
from mtdinterp.checkpoint_files import ZOO, zoo_names
from mtdinterp.metrics import score
from mtdinterp.readings import predictions_of, read, readable_sequences
from mtdinterp.training import Recipe
from mtdinterp.training.evaluation import held_out_data
from mtdinterp.training.zoo import ENTRIES


@pytest.mark.parametrize("name", zoo_names())
def test_a_model_reproduces_its_stored_kl_and_branch(name):
    checkpoint = load_checkpoint(name)
    data = held_out_data(checkpoint.task, checkpoint.model.config.length)
    last = checkpoint.history[-1]
    assert score(
        data.next_probs, predictions_of(checkpoint.model, data.tokens)
    ).kl == pytest.approx(last["kl"], abs=1e-4)
    reading = read(checkpoint.model, checkpoint.task, readable_sequences(data.tokens))
    assert reading.branch == last["branch"]
    assert reading.beta.value == pytest.approx(last["beta"], rel=1e-3)
    recipe = Recipe.from_dict(checkpoint.config["recipe"])
    assert last["step"] == recipe.steps
    steps = [entry["step"] for entry in checkpoint.history]
    assert steps == sorted(set(steps))


@pytest.mark.parametrize("name", zoo_names())
def test_a_name_says_what_the_model_is(name):
    checkpoint = load_checkpoint(name)
    parts = name.split("-")
    assert parts[0] == checkpoint.model.config.architecture
    assert parts[1] == f"m{checkpoint.task.order}"
    assert parts[2] == f"T{checkpoint.model.config.length}"
    assert ("L5" in parts) == (checkpoint.model.config.n_layers == 5)
    assert ("paper" in parts) == (checkpoint.config["recipe"]["name"].startswith("paper"))
    assert {entry.name for entry in (ZOO / name).iterdir()} == {
        "config.json",
        "model.safetensors",
        "history.jsonl",
    }


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_model_is_made_as_the_script_would_make_it(entry):
    assert entry.made(load_checkpoint(entry.name).config)


def test_the_zoo_is_complete():
    assert set(zoo_names()) == {entry.name for entry in ENTRIES}


def test_the_zoo_is_light():
    assert sum(path.stat().st_size for path in ZOO.rglob("*") if path.is_file()) < 15e6


def test_a_zoo_name_works_from_any_directory(tmp_path):
    code = (
        "from mtdinterp import load_checkpoint; "
        f"print(load_checkpoint({zoo_names()[0]!r}).model.config.length)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(result.stdout) == load_checkpoint(zoo_names()[0]).model.config.length


def test_an_unknown_name_suggests_a_known_one():
    with pytest.raises(CheckpointError, match="did you mean the zoo's disentangled-m4-T64"):
        load_checkpoint("disentangled-m4-T65")


def test_a_directory_comes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "disentangled-m4-T64").mkdir()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_checkpoint("disentangled-m4-T64")


def test_histories_are_plain_json():
    for name in zoo_names():
        for line in (ZOO / name / "history.jsonl").read_text().splitlines():
            entry = json.loads(line)
            assert torch.isfinite(torch.tensor(entry["kl"]))


def test_a_checkpoint_shows_itself_in_one_line():
    assert repr(load_checkpoint("disentangled-m4-T64")).startswith(
        "Checkpoint(disentangled-m4-T64: disentangled, 3 layers, m = 4, T = 64; step 8000: KL 0.01"
    )
