"""Snapshots are spaced logarithmically, and a run that is interrupted ends with the same ones."""

import itertools
import shutil
from functools import partial

import pytest
import torch
from faults.injection import kill_at
from hypothesis import given
from hypothesis import strategies as st

from mtdinterp import CheckpointError, MTDTask, load_checkpoint, save_checkpoint
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.sweep.runs import copy_run
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.recipes import MOST_SNAPSHOTS
from mtdinterp.training.run import new_run, resumed_run
from mtdinterp.training.snapshots import spaced_steps

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 8
HELD_OUT = HeldOut.prepare(TASK, LENGTH, n_sequences=32, bayes=False)
RECIPE = Recipe(
    steps=20, batch_size=4, learning_rate=1e-2, evaluate_every=10, save_every=9, snapshots=5
)
STEPS = [0, 1, 2, 4, 9, 20]
"""The run saves its state at step 9 too: the snapshot must come first."""


def begin(path, recipe=RECIPE):
    model = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2))
    return new_run(path, model, TASK, recipe, {"model": 0}, HELD_OUT)


def finish(path):
    with resumed_run(path, HELD_OUT) as run:
        run.train()


def weights_at(path):
    """The weights of every snapshot, by step."""
    found = load_checkpoint(path).snapshots
    return {step: snapshot.load().state_dict() for step, snapshot in found.items()}


def assert_equal(found, wanted):
    assert list(found) == list(wanted)
    for step, weights in wanted.items():
        for name, tensor in weights.items():
            assert torch.equal(found[step][name], tensor), (step, name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run stopped after three steps, and whole."""
    root = tmp_path_factory.mktemp("runs")
    with begin(root / "stopped") as run:
        run.train(after_step=lambda trainer: trainer.step < 3)
    with begin(root / "whole") as run:
        run.train()
    return root


@pytest.fixture
def whole(runs, tmp_path):
    """A copy of the whole run."""
    return shutil.copytree(runs / "whole", tmp_path / "whole")


@given(count=st.integers(1, 300), last=st.integers(1, 10**6))
def test_steps_rise_from_the_first_to_the_last(count, last):
    steps = spaced_steps(count, last)
    assert steps[0] == 0
    assert steps[-1] == last
    assert list(steps) == sorted(set(steps))
    if count > 1:
        assert steps[1] == 1
        assert len(steps) == min(count, last) + 1


@given(count=st.integers(2, 40), last=st.integers(10**6, 10**9))
def test_late_steps_have_equal_factors(count, last):
    late = [step for step in spaced_steps(count, last) if step > 1000]
    factors = [after / before for before, after in itertools.pairwise(late)]
    assert max(factors, default=1) <= min(factors, default=1) * 1.01


def test_without_a_number_there_are_none(tmp_path):
    assert spaced_steps(0, 100) == ()
    with begin(tmp_path / "run", Recipe(steps=2, batch_size=2, learning_rate=1e-2)) as run:
        run.train()
    assert load_checkpoint(tmp_path / "run").snapshots == {}
    assert not (tmp_path / "run" / "snapshots").exists()


def test_a_recipe_asks_for_a_sensible_number():
    with pytest.raises(ValueError, match="snapshots: expected at most 1,000"):
        Recipe(steps=1, batch_size=1, learning_rate=1, snapshots=MOST_SNAPSHOTS + 1)
    with pytest.raises(ValueError, match="snapshots"):
        Recipe(steps=1, batch_size=1, learning_rate=1, snapshots=-1)


def test_a_recipe_of_an_older_version_has_none():
    older = {name: value for name, value in RECIPE.to_dict().items() if name != "snapshots"}
    assert Recipe.from_dict(older).snapshots == 0


def test_snapshots_are_the_weights_at_their_steps(tmp_path):
    seen = {}

    def remember(trainer):
        weights = trainer.model.state_dict()
        seen[trainer.step] = {name: tensor.clone() for name, tensor in weights.items()}
        return True

    with begin(tmp_path / "run") as run:
        remember(run.trainer)
        run.train(after_step=remember)
    found = weights_at(tmp_path / "run")
    assert list(found) == STEPS
    assert_equal(found, {step: seen[step] for step in STEPS})
    assert_equal({20: found[20]}, {20: load_checkpoint(tmp_path / "run").model.state_dict()})


def test_a_snapshot_is_a_fresh_model_in_evaluation_mode(whole):
    snapshot = load_checkpoint(whole).snapshots[4]
    first = snapshot.load()
    assert not first.training
    assert first is not snapshot.load()
    assert first.config == load_checkpoint(whole).model.config


@pytest.mark.parametrize("stop_at", [1, 4, 8])
def test_a_resumed_run_has_the_same_snapshots(stop_at, runs, tmp_path):
    with begin(tmp_path / "run") as run:
        run.train(after_step=lambda trainer: trainer.step < stop_at)
    finish(tmp_path / "run")
    assert_equal(weights_at(tmp_path / "run"), weights_at(runs / "whole"))


def test_a_run_that_is_killed_at_any_call_has_the_same_snapshots(runs, tmp_path):
    wanted = weights_at(runs / "whole")
    path = tmp_path / "run"
    place = 0
    while True:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(runs / "stopped", path)
        if not kill_at(place, partial(finish, path)):
            break
        weights_at(path)  # every snapshot that is there is complete
        finish(path)
        assert_equal(weights_at(path), wanted)
        names = [entry.name for entry in (path / "snapshots").iterdir()]
        assert sorted(names) == sorted(f"{step}.safetensors" for step in STEPS)
        place += 1
    assert place > 30


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "a changed bit": (flip, "damaged"),
    "a file that ends early": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "damaged"),
    "an empty file": (lambda path: path.write_bytes(b""), "damaged"),
    "a foreign file": (lambda path: path.write_text("import os"), "damaged"),
    "no file": (lambda path: path.unlink(), "missing"),
    "a directory": (lambda path: (path.unlink(), path.mkdir()), "expected a regular file"),
    "a device": (lambda path: (path.unlink(), path.symlink_to("/dev/zero")), "expected a regular"),
    "another step": (lambda path: shutil.copy(path.with_name("9.safetensors"), path), "step 9"),
    "the weights of the end": (
        lambda path: shutil.copy(path.parent.parent / "model.safetensors", path),
        "step 20",
    ),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_snapshot_is_named_and_the_rest_is_not_affected(what, whole):
    damage, reason = DAMAGES[what]
    snapshots = load_checkpoint(whole).snapshots
    damage(whole / "snapshots" / "4.safetensors")
    with pytest.raises(CheckpointError, match=reason) as caught:
        snapshots[4].load()
    assert str(caught.value).startswith(str(whole / "snapshots" / "4.safetensors"))
    assert "\n" not in str(caught.value)
    snapshots[9].load()
    assert load_checkpoint(whole).model.config.length == LENGTH


def test_a_snapshot_of_a_run_that_was_replaced_is_refused(whole, tmp_path):
    snapshots = load_checkpoint(whole).snapshots
    with begin(tmp_path / "other", Recipe(**{**RECIPE.to_dict(), "batch_size": 5})) as run:
        run.train()
    shutil.rmtree(whole)
    shutil.copytree(tmp_path / "other", whole)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        snapshots[4].load()


def saved_again(path, checkpoint, **changes):
    """Save a checkpoint elsewhere with everything that belongs to its run."""
    return save_checkpoint(
        path,
        checkpoint.model,
        checkpoint.task,
        recipe=checkpoint.config["recipe"],
        seeds=checkpoint.config["seeds"],
        history=checkpoint.history,
        **changes,
    )


def test_a_saved_checkpoint_keeps_snapshots_and_is_replaced_with_them(runs, tmp_path):
    checkpoint = load_checkpoint(runs / "whole")
    path = saved_again(tmp_path / "saved", checkpoint, snapshots=checkpoint.snapshots)
    assert_equal(weights_at(path), weights_at(runs / "whole"))
    saved = load_checkpoint(path)
    saved_again(path, saved, snapshots=saved.snapshots)  # on itself
    assert_equal(weights_at(path), weights_at(runs / "whole"))
    saved_again(path, saved)
    assert not (path / "snapshots").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["saved"]


def test_a_model_of_another_kind_cannot_have_these_snapshots(runs, tmp_path):
    other = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=3))
    snapshots = load_checkpoint(runs / "whole").snapshots
    with pytest.raises(CheckpointError, match="a model with the same configuration"):
        save_checkpoint(tmp_path / "other", other, TASK, snapshots=snapshots)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("name", ["notes.txt", "007.safetensors", "4.safetensors.bak"])
def test_foreign_files_between_snapshots_are_ignored_and_never_removed(name, runs, tmp_path):
    checkpoint = load_checkpoint(runs / "whole")
    path = saved_again(tmp_path / "saved", checkpoint, snapshots=checkpoint.snapshots)
    (path / "snapshots" / name).write_text("mine")
    assert list(load_checkpoint(path).snapshots) == STEPS
    with pytest.raises(CheckpointError, match=f"contains snapshots/{name}"):
        saved_again(path, checkpoint)
    assert (path / "snapshots" / name).read_text() == "mine"


def test_a_file_in_the_place_of_the_directory_is_foreign_too(runs, tmp_path):
    checkpoint = load_checkpoint(runs / "whole")
    path = saved_again(tmp_path / "saved", checkpoint)
    (path / "snapshots").write_text("mine")
    assert load_checkpoint(path).snapshots == {}
    with pytest.raises(CheckpointError, match="contains snapshots"):
        saved_again(path, checkpoint)


def test_a_copied_run_continues_with_its_snapshots(runs, tmp_path):
    copy_run(runs / "stopped", tmp_path / "copy")
    assert list(weights_at(tmp_path / "copy")) == [0, 1, 2]
    finish(tmp_path / "copy")
    assert_equal(weights_at(tmp_path / "copy"), weights_at(runs / "whole"))
