"""`mtdinterp reproduce --from`: models of a sweep, found by how they were trained."""

import json
import shutil
from pathlib import Path

import pytest
from sweep_files import Made, write_files

from mtdinterp.checkpoint_files import CONFIG, ZOO
from mtdinterp.checkpoints.provenance import recorded_weights, weights_digest
from mtdinterp.cli import main
from mtdinterp.commands import reproduce
from mtdinterp.reproduce.models import ListedModels, available, say_missing
from mtdinterp.sweep.grid import expand
from mtdinterp.sweep.planning import plan
from mtdinterp.training.zoo import Entry

WANTED = Entry(4, 64)
OTHERS = (
    Entry(3, 64),
    Entry(4, 128),
    Entry(4, 64, "standard"),
    Entry(4, 64, seed=1),
    Entry(4, 64, changes={"steps": 20_000}),
    Entry(4, 64, recipe="paper", suffix="-paper"),
)


def with_config(target, **changes):
    """A copy of a model of the zoo whose configuration says something else."""
    shutil.copytree(ZOO / WANTED.name, target)
    config = json.loads((target / CONFIG).read_text())
    (target / CONFIG).write_text(json.dumps({**config, **changes}))
    return target


@pytest.fixture
def sweep(tmp_path):
    """A sweep of two finished cells, with models of the zoo, and a waiting one."""
    cells = [Made({"order": 4}, {"kl": 1.0}), Made({"order": 3}, {"kl": 1.0}), Made({"order": 5})]
    sweep = write_files(tmp_path / "sweep", cells, ("order",))
    for name, directory in zip(
        (WANTED.name, "disentangled-m3-T128"), sweep.directories, strict=False
    ):
        (directory / "checkpoint").rmdir()
        shutil.copytree(ZOO / name, directory / "checkpoint")
    return sweep


def test_a_model_is_found_by_its_settings_and_not_by_its_name():
    paths = {"first": ZOO / "disentangled-m3-T128", "second": ZOO / WANTED.name}
    models = ListedModels(paths, "the sweep")
    found = models.get(WANTED)
    assert found is not None
    assert found.config["model"]["length"] == 64
    assert models.used == {"second": ZOO / WANTED.name}


@pytest.mark.parametrize("entry", OTHERS, ids=lambda entry: f"{entry.name}-{len(entry.changes)}")
def test_a_model_of_other_settings_is_not_taken(entry):
    models = ListedModels({"only": ZOO / WANTED.name}, "the sweep")
    assert models.get(entry) is None
    assert models.used == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"parent": {"name": "a shorter one", "weights_sha256": "0"}},
        {"seeds": {"task": 0, "model": 7}},
        {"task": {"kind": "of a plugin that is not loaded"}},
        {"model": {"architecture": "of a plugin that is not loaded", "length": 64}},
        {"model": None},
        {"task": []},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_model_that_was_trained_otherwise_is_not_taken(tmp_path, changes):
    path = with_config(tmp_path / "changed", **changes)
    assert ListedModels({"only": path}, "the sweep").get(WANTED) is None


def test_the_first_of_two_equal_models_is_taken():
    paths = {"first": ZOO / WANTED.name, "second": ZOO / WANTED.name}
    models = ListedModels(paths, "the sweep")
    models.get(WANTED)
    assert list(models.used) == ["first"]


def test_missing_models_are_named_with_the_place_that_lacks_them():
    models = ListedModels({}, "the sweep")
    found, missing = available(models, [WANTED, Entry(3, 64)])
    assert found == {}
    assert say_missing(missing, models) == (
        "Not shown, because not in the sweep: disentangled-m4-T64, disentangled-m3-T64.",
    )
    assert say_missing([], models) == ()


def test_cells_of_a_grid_are_the_entries_of_the_zoo():
    grid = expand(
        {
            "order": [3, 5],
            "length": [64, 256],
            "architecture": ["disentangled", "standard"],
            "recipe": ["fast", "paper"],
            "seed": [0, 1],
        }
    )
    cells = plan(grid, Path()).cells
    assert len(cells) == 32
    for cell in cells:
        settings = cell.settings
        entry = Entry(*(settings[name] for name in ("order", "length", "architecture")), 3)
        usual = settings["recipe"] == "fast" and settings["seed"] == 0
        config = {
            "model": cell.model,
            "task": cell.task,
            "recipe": cell.recipe,
            "seeds": cell.seeds,
        }
        assert entry.made(config) == usual


def test_a_figure_shows_the_models_of_a_sweep(sweep, tmp_path, capsys):
    out = tmp_path / "out"
    assert (
        main(["reproduce", "attention", "--from", str(sweep.path), "-o", str(out), "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)["attention"]
    assert list(found["numbers"]) == [WANTED.name]
    assert found["measured"][-1] == "Not shown, because not in the sweep: standard-m4-T64."


def test_the_page_says_which_models_of_which_sweep_it_shows(sweep, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(reproduce, "chosen", lambda names: ["dimensions", "attention"])
    out = tmp_path / "out"
    assert main(["reproduce", "all", "--from", str(sweep.path), "-o", str(out)]) == 0
    sentence = f"Trained models are those of the sweep in {sweep.path}."
    command = f"mtdinterp reproduce all --from {sweep.path}"
    page = (out / "index.html").read_text()
    assert sentence in page
    assert command in page
    text = (out / "index.md").read_text()
    assert sentence in " ".join(text.split())
    assert f"Made by `{command}`" in text
    assert recorded_weights(text) == {sweep.entries[0].name: weights_digest(WANTED.name)}


def test_a_directory_without_a_sweep_is_an_error_at_once(tmp_path, capsys):
    assert main(["reproduce", "attention", "--from", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"mtdinterp reproduce: {tmp_path}: not a sweep (sweep.json is missing)\n"
    )


def test_models_are_trained_or_taken_from_a_sweep_but_not_both(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "attention", "--from", str(tmp_path), "--train"])
    assert "--train: not allowed with argument --from" in capsys.readouterr().err
