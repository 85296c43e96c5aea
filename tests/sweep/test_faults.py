"""Every file-system call of finishing a cell fails once, and kills the process once."""

import shutil

import pytest
from faults.injection import fail_at, kill_at, recorded

from mtdinterp.sweep import running
from mtdinterp.sweep.attempts import records
from mtdinterp.sweep.cells import CHECKPOINT, DONE, FAILED, is_done, read_cell, read_json
from mtdinterp.sweep.running import run_cell
from sweep.small import small_sweep

NUMBERS = {"metrics": {"kl": 0.5}, "probes": {}}


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A cell that is trained but not measured; measuring it takes no time."""
    directory = small_sweep(tmp_path / "original", length=12, seed=0).directories[0]
    run_cell(directory)
    (directory / DONE).unlink()
    shutil.rmtree(directory / "attempts")
    monkeypatch.setattr(running, "measured", lambda *arguments: NUMBERS)
    monkeypatch.setattr(running.HeldOut, "prepare", lambda *arguments: None)
    return directory


def copied(trained, tmp_path, number):
    target = tmp_path / f"copy-{number}" / trained.name
    shutil.copytree(trained, target)
    return target


def check_finished(directory):
    """The next call finishes the cell, once, and leaves nothing behind."""
    assert run_cell(directory).how == "done"
    assert is_done(directory, read_cell(directory))
    assert read_json(directory / DONE)["metrics"] == NUMBERS["metrics"]
    ends = [record.end["how"] for record in records(directory) if record.end]
    assert ends.count("done") == 1
    names = {path.name for path in directory.iterdir()}
    assert names == {"cell.json", "attempts", CHECKPOINT, DONE}
    left = [path.name for path in directory.rglob("*") if path.name.startswith(".")]
    assert left == []


def test_a_kill_at_any_call_loses_nothing(trained, tmp_path):
    n_calls = len(recorded(lambda: run_cell(copied(trained, tmp_path, "counted"))))
    assert n_calls > 20
    killed = 0
    for place in range(n_calls):
        directory = copied(trained, tmp_path, place)
        killed += kill_at(place, lambda directory=directory: run_cell(directory))
        if not is_done(directory, read_cell(directory)):
            check_finished(directory)
    # The heartbeat may write a moment earlier or later, so the last calls may not be reached.
    assert killed >= n_calls - 8


def test_a_failure_of_any_call_is_one_sentence(trained, tmp_path):
    n_calls = len(recorded(lambda: run_cell(copied(trained, tmp_path, "counted"))))
    for place in range(n_calls):
        directory = copied(trained, tmp_path, place)
        error = fail_at(place, lambda directory=directory: run_cell(directory))
        if error is not None:
            assert "\n" not in str(error)
        failure = read_json(directory / FAILED)
        if failure is not None:
            assert "No space left on device" in failure["error"]
            (directory / FAILED).unlink()
        if not is_done(directory, read_cell(directory)):
            check_finished(directory)
