"""A user's own π and prior on the command line: from a file to a checkpoint, and one sentence for
every mistake."""

import json

import numpy as np
import pytest

from mtdinterp import LagSpecificMTDTask, MTDTask, load_checkpoint
from mtdinterp.cli import main
from mtdinterp.errors import NotApplicable
from mtdinterp.registry import TASKS
from mtdinterp.tasks import Task

ROWS = np.random.default_rng(0).dirichlet(np.full(6, 0.5), size=6).round(3)
"""Probabilities as a user has them: three digits, so that some rows sum to 0.999."""
NORMALISED = ROWS / ROWS.sum(-1, keepdims=True)
PER_LAG = np.random.default_rng(1).dirichlet(np.ones(3), size=(2, 3))
FEW_STEPS = ["--steps", "20", "--evaluate-every", "10", "--batch-size", "8"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A working directory with a rounded CSV, and one matrix per lag as NPY and JSON."""
    monkeypatch.chdir(tmp_path)
    np.savetxt("pi.csv", ROWS, fmt="%.3f", delimiter=",")
    np.save("lags.npy", PER_LAG)
    (tmp_path / "lags.json").write_text(json.dumps(PER_LAG.tolist()))
    np.save("one-lag.npy", PER_LAG[:1])
    return tmp_path


def test_a_rounded_matrix_is_trained_on_resumed_and_probed(files, capsys):
    own = ["train", "--transition", "pi.csv", "--normalise", "--order", "2", "--length", "16"]
    assert main([*own, *FEW_STEPS, "--concentration", "0.5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    path = files / "out" / "pi-disentangled-m2-T16-a0.5"
    assert result["checkpoint"] == str(path)
    assert result["warning"]
    loaded = load_checkpoint(path)
    assert isinstance(loaded.task, MTDTask)
    assert np.abs(loaded.task.transition.numpy() - NORMALISED).max() < 1e-15
    assert loaded.task.concentration == 0.5
    assert loaded.task.describe.endswith("6 tokens, m = 2, prior Dirichlet(0.5, 0.5)")
    assert loaded.model.config.vocab_size == 6
    # The task's probabilities were not drawn, so there is no seed that repeats them.
    assert loaded.config["seeds"] == {"model": 0}
    # A second run of the same name is refused, never written over the first.
    assert main([*own, *FEW_STEPS, "--concentration", "0.5"]) == 2
    assert "expected a new or empty directory" in capsys.readouterr().err
    assert main(["train", "--resume", str(path)]) == 0
    assert "step 20 of 20" in capsys.readouterr().out
    assert main(["probe", str(path), "--probe", "recover_beta", "--json"]) == 0
    assert "recover_beta" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["lags.npy", "lags.json"])
def test_one_matrix_per_lag_decides_the_order(files, capsys, name):
    chosen = ["--task", "lag-specific", "--transition", name, "--length", "8"]
    assert main(["train", *chosen, *FEW_STEPS, "--concentration", "1", "2"]) == 0
    name = f"lag-specific-{name.split('.')[0]}-disentangled-m2-T8-a1-2"
    assert load_checkpoint(files / "out" / name).task == LagSpecificMTDTask(PER_LAG, (1.0, 2.0))


def test_construct_writes_the_matrix_and_says_where_it_came_from(files, capsys):
    own = ["--transition", "pi.csv", "--normalise", "--order", "3", "--length", "16"]
    prior = ["--concentration", "0.5", "1", "2", "--sequences", "50", "--beta", "5"]
    assert main(["construct", *own, *prior, "--out", "made"]) == 0
    table = capsys.readouterr().out
    assert "task: 6 tokens, order 3, length 16, transition probabilities from pi.csv" in table
    assert "prior Dirichlet(0.5, 1, 2)" in table
    loaded = load_checkpoint("made")
    assert loaded.task == MTDTask(NORMALISED, 3, (0.5, 1.0, 2.0))
    assert loaded.config["seeds"] == {"tuning": 0}


@pytest.mark.parametrize("command", ["train", "construct"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["pi.csv"], "row 2 of 6 sums to 0.999 instead of 1; if its entries were rounded, divide"),
        (["nowhere.csv"], "nowhere.csv: cannot be read (No such file or directory)"),
        (["pi.csv", "--normalise", "--vocab-size", "5"], "--vocab-size 5: pi.csv has 6 tokens"),
        (["pi.csv", "--normalise", "--task-seed", "0"], "leave it out with --transition"),
        (["pi.csv", "--normalise", "--order", "70"], "--order must be less than --length 64"),
        (["lags.npy", "--order", "3"], "--order 3: lags.npy has 2 lags; leave out --order"),
        (["one-lag.npy"], "one-lag.npy: expected matrices for at least 2 lags, got 1"),
        (
            ["pi.csv", "--normalise", "--concentration", "1", "2", "3"],
            "--concentration: expected one number, or one per lag (4); got 3",
        ),
    ],
)
def test_flags_that_contradict_the_file_are_one_sentence(files, capsys, command, flags, message):
    assert main([command, "--transition", *flags]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1, "refused before anything is imported"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["lags.npy"], "for one matrix per lag use --task lag-specific"),
        (["pi.csv", "--normalise", "--task", "lag-specific"], "JSON files can hold several"),
    ],
)
def test_a_task_that_needs_other_matrices_says_which(files, capsys, flags, message):
    assert main(["train", "--transition", *flags]) == 2
    assert message in capsys.readouterr().err


def test_sizes_that_agree_with_the_file_may_be_given(files, capsys):
    sizes = ["--vocab-size", "3", "--order", "2", "--length", "8"]
    chosen = ["--task", "lag-specific", "--transition", "lags.npy"]
    assert main(["train", *chosen, *sizes, *FEW_STEPS, "--out", "run"]) == 0


def test_normalise_needs_a_file(files, capsys):
    assert main(["train", "--normalise"]) == 2
    assert "--normalise applies only with --transition FILE" in capsys.readouterr().err


def test_a_random_task_takes_a_prior_too(files, capsys):
    sizes = ["--vocab-size", "3", "--order", "2", "--length", "8"]
    assert main(["train", *sizes, *FEW_STEPS, "--concentration", "3"]) == 0
    loaded = load_checkpoint(files / "out" / "disentangled-m2-T8-a3")
    assert loaded.task == MTDTask.random(3, 2, seed=0, concentration=3.0)


@pytest.mark.parametrize("extreme", ["1e300", "1e-300"])
def test_a_prior_beyond_all_numbers_is_one_sentence(files, capsys, extreme):
    assert main(["train", "--concentration", extreme]) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "concentration: expected entries between 1e-09 and 1e+09, got" in sentence


def test_a_task_that_is_not_made_from_probabilities_says_so():
    class Silent(Task):
        name = "silent"

    with pytest.raises(NotApplicable, match="the task 'silent' cannot be made from a file"):
        Silent.from_transition(NORMALISED, 2)


@pytest.mark.parametrize("name", ["mtd", "lag-specific"])
def test_the_probabilities_of_a_task_make_the_same_task(name):
    task = TASKS[name].random(4, 3, seed=5, concentration=2.0)
    own = getattr(task, "transition", None)
    probabilities = task.matrices if own is None else own
    assert TASKS[name].from_transition(probabilities.numpy(), 3, 2.0) == task
