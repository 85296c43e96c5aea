"""The models that ship with the package: they load by name from anywhere, and are what their
history says."""

import json
import subprocess
import sys

import build_zoo
import pytest
import torch

from mtdinterp import CheckpointError, load_checkpoint, save_checkpoint
from mtdinterp.checkpoint_files import ZOO, zoo_names
from mtdinterp.checkpoints.save import parent_of
from mtdinterp.metrics import score
from mtdinterp.readings import predictions_of, read, readable_sequences
from mtdinterp.storage import write_file
from mtdinterp.sweep.cells import CHECKPOINT, DONE, read_cell
from mtdinterp.sweep.directory import write_sweep
from mtdinterp.sweep.grid import expand, find_grid, read_grid
from mtdinterp.sweep.planning import plan
from mtdinterp.training import Recipe, grow
from mtdinterp.training.evaluation import held_out_data
from mtdinterp.training.zoo import ENTRIES, Entry, entry_run, ladder


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


def test_the_cells_of_the_grid_are_the_models():
    path = find_grid("zoo")
    cells = plan(read_grid(path), path.parent).cells
    assert len(cells) == len(ENTRIES)
    for entry, cell in zip(ENTRIES, cells, strict=True):
        config = {"model": cell.model, "task": cell.task, "recipe": cell.recipe}
        config["seeds"] = cell.seeds
        if cell.parent is not None:
            config["parent"] = {}
        assert entry.made(config), entry.name


def test_finished_cells_are_stored_under_the_names_of_the_models(tmp_path):
    entries = [Entry(2, 12, seed=seed, suffix="-tiny") for seed in (0, 1)]
    out, zoo = tmp_path / "sweep", tmp_path / "zoo"
    sweep = write_sweep(out, plan(expand(build_zoo.zoo_grid(entries)), tmp_path), "a command")
    build_zoo.store(entries, out, zoo)
    assert not zoo.exists()
    finish(sweep.directories[1], entries[1])
    build_zoo.store(entries[:1], out, zoo)
    assert not zoo.exists()
    build_zoo.store(entries, out, zoo)
    (stored,) = zoo.iterdir()
    assert stored.name == "disentangled-m2-T12-s1-tiny"
    assert entries[1].made(load_checkpoint(stored).config)


def finish(directory, entry, parent=None):
    """Write what a finished cell has; its model is not trained."""
    save_checkpoint(
        directory / CHECKPOINT,
        entry.model(),
        entry.task,
        recipe=entry.full_recipe.to_dict(),
        seeds=entry.seeds,
        history=load_checkpoint(zoo_names()[0]).history,
        parent=parent,
    )
    done = {"measure": read_cell(directory).measure.to_dict()}
    write_file(directory / DONE, json.dumps(done).encode())


def test_a_ladder_becomes_a_chain_of_cells():
    entries = [*ladder(3, (12, 16, 24), task_seed=2), Entry(2, 12)]
    names = [entry.name for entry in entries]
    assert names[2] == "disentangled-m3-T24-task2"
    # The models that the last one grows from come along.
    grid = build_zoo.zoo_grid([entries[2], entries[3]])
    cells = plan(expand(grid), ZOO).cells
    assert [cell.parent for cell in cells] == [None, cells[0].name, cells[1].name, None]
    for entry, cell in zip(entries, cells, strict=True):
        config = {"model": cell.model, "task": cell.task, "recipe": cell.recipe}
        config["seeds"] = cell.seeds
        assert entry.made(config) is (cell.parent is None)
        assert entry.made({**config, "parent": {}}) is (cell.parent is not None)


def test_a_grown_model_is_stored_with_the_name_of_its_parent(tmp_path):
    short, long = ladder(2, (12, 16))
    out, zoo = tmp_path / "sweep", tmp_path / "zoo"
    grid = build_zoo.zoo_grid([long])
    sweep = write_sweep(out, plan(expand(grid), tmp_path), "a command")
    for directory, entry in zip(sweep.directories, (short, long), strict=True):
        finish(directory, entry, {"name": "a-cell", "length": 12} if entry is long else None)
    build_zoo.store([short, long], out, zoo)
    stored = load_checkpoint(zoo / long.name).config
    assert stored["parent"] == {"name": "disentangled-m2-T12", "length": 12}
    assert "parent" not in load_checkpoint(zoo / short.name).config


def test_a_grown_model_starts_from_the_weights_of_its_parent(tmp_path):
    short, long = ladder(2, (12, 16))
    save_checkpoint(tmp_path / "short", short.model(), short.task)
    parent = load_checkpoint(tmp_path / "short")
    with entry_run(long, tmp_path / "long", parent) as run:
        assert run.config["parent"] == parent_of("disentangled-m2-T12", parent.model)
        for name, weights in grow(parent.model, 16, 2).state_dict().items():
            assert torch.equal(run.trainer.model.state_dict()[name], weights)
    with (
        pytest.raises(ValueError, match="expected the model that it grows from"),
        entry_run(long, tmp_path / "other"),
    ):
        pass


@pytest.mark.parametrize(
    ("words", "names", "flags"),
    [
        ([], [], []),
        (["a", "b"], ["a", "b"], []),
        (["a", "--engine", "ray"], ["a"], ["--engine", "ray"]),
        (["--engine", "ray"], [], ["--engine", "ray"]),
    ],
)
def test_flags_of_a_sweep_follow_the_names(words, names, flags):
    assert build_zoo.names_and_flags(words) == (names, flags)


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
