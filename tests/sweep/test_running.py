"""A cell is trained once, measured as asked for, and its numbers are written once."""

import dataclasses
import json
import os
import shutil
import signal
import time

import pytest

from mtdinterp import load_checkpoint
from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.storage import AlreadyThere
from mtdinterp.sweep import attempts, running
from mtdinterp.sweep.attempts import attempting, records
from mtdinterp.sweep.cells import (
    CELL,
    CHECKPOINT,
    DONE,
    FAILED,
    CellError,
    Measure,
    read_cell,
    read_json,
    write_cell,
)
from mtdinterp.sweep.running import run_cell
from mtdinterp.sweep.runs import copy_run, newest_run
from mtdinterp.sweep.status import statuses
from mtdinterp.sweep.table import read_rows
from mtdinterp.training import DivergedError, evaluation
from sweep.disturbing import die_in_attempt
from sweep.small import small_sweep, weights_of


@pytest.fixture
def directory(tmp_path):
    return small_sweep(tmp_path / "s", length=12, seed=0).directories[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The directory of a finished cell; not to be changed."""
    sweep = small_sweep(tmp_path_factory.mktemp("finished") / "s", length=12, seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "N_SEQUENCES", 256)
        assert run_cell(sweep.directories[0]).how == "done"
    return sweep.directories[0]


def copy_of(finished, tmp_path):
    target = tmp_path / "copy" / finished.name
    shutil.copytree(finished, target)
    return target


def die_while_training(directory, step):
    """Run the cell in another process and kill it after a step."""
    child = os.fork()
    if child == 0:

        def stopping():
            progress = attempts.newest(directory).path / attempts.RUN / "training.pt"
            if progress.exists() and newest_run(directory)[1] >= step:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

        run_cell(directory, stopping=stopping)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)


def test_a_finished_cell_has_its_numbers(finished):
    done = read_json(finished / DONE)
    assert done["metrics"]["step"] == 30
    assert done["metrics"]["kl"] > 0
    assert "recover_beta.attention" in done["probes"]
    assert done["run"]["attempts"] == 1
    assert load_checkpoint(finished / CHECKPOINT).history[-1]["step"] == 30
    (record,) = records(finished)
    assert record.end["how"] == "done"
    assert not (record.path / attempts.RUN).exists(), "the training state is not needed any more"


def test_running_a_finished_cell_does_nothing(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
    assert run_cell(finished).how == "done"
    assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before


def test_a_killed_cell_continues_with_the_same_bits(directory, finished):
    die_while_training(directory, step=10)
    start, step = newest_run(directory)
    assert step >= 10
    assert run_cell(directory).how == "done"
    assert weights_in(directory) == weights_in(finished)
    assert records(directory)[1].owner.step == step
    assert start.parent == records(directory)[0].path


def test_a_killed_cell_ends_with_the_same_snapshots(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "N_SEQUENCES", 256)
    found = []
    for name in ("whole", "killed"):
        sweep = small_sweep(tmp_path / name, length=12, seed=0, snapshots=4, probes="none")
        directory = sweep.directories[0]
        if name == "killed":
            die_while_training(directory, step=10)
        assert run_cell(directory).how == "done"
        snapshots = load_checkpoint(directory / CHECKPOINT).snapshots
        digests = {}
        for step, snapshot in snapshots.items():
            digests[step] = tensors_digest(snapshot.load().state_dict())
        found.append(digests)
    assert list(found[0]) == [0, 1, 3, 9, 30]
    assert found[0] == found[1]


def weights_in(directory):
    return read_json(directory / DONE)["weights_sha256"]


def test_a_cell_that_is_asked_to_stop_saves_and_continues(directory, finished):
    seen = []

    def stopping():
        seen.append(1)
        return len(seen) > 15

    assert run_cell(directory, stopping=stopping).how == "stopped"
    assert records(directory)[0].end == {"how": "stopped"}
    assert newest_run(directory)[1] > 0
    assert run_cell(directory).how == "done"
    assert weights_in(directory) == weights_in(finished)


def test_the_run_that_came_furthest_is_continued(directory):
    die_while_training(directory, step=15)
    first = records(directory)[0].path / attempts.RUN
    with attempting(directory, 0, "test") as attempt:
        copy_run(first, attempt.run)
        (attempt.run / "training.pt").write_bytes(b"damaged")
    assert newest_run(directory)[0] == first
    assert run_cell(directory).how == "done"


def test_a_second_process_finds_the_cell_busy(directory):
    with attempting(directory, 0, "somebody"):
        ended = run_cell(directory)
    assert ended.how == "busy"
    assert "(somebody)" in ended.reason


def test_a_process_that_was_replaced_changes_nothing(directory, monkeypatch):
    """It is paused in training, another one finishes the cell, and then it continues."""
    other = []

    def stopping():
        newest = attempts.newest(directory)
        if not other and newest is not None and (newest.path / attempts.RUN).exists():
            other.append(1)
            before = time.time() - attempts.STALE - 1
            os.utime(newest.path / attempts.PROGRESS, (before, before))
            monkeypatch.setattr(attempts, "this_machine", lambda: ("elsewhere", ""))
            assert run_cell(directory).how == "done"
            other.append(read_json(directory / DONE))
        return False

    ended = run_cell(directory, stopping=stopping)
    assert ended.how == "busy"
    assert read_json(directory / DONE) == other[1]
    assert [record.end["how"] for record in records(directory)] == ["lost", "done"]


def test_the_first_numbers_stay(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    before = (directory / DONE).read_bytes()
    with attempting(directory, 30, "late") as attempt, pytest.raises(AlreadyThere):
        running._publish(directory, read_cell(directory), attempt, {"other": 1})
    assert (directory / DONE).read_bytes() == before


def test_a_cell_that_somebody_finishes_at_the_last_moment_is_not_run_again(
    directory, finished, monkeypatch
):
    """Another engine finishes the cell after this one has seen that it is not finished."""
    published = []

    def slow(path):
        monkeypatch.setattr(running, "newest_run", newest_run)
        assert run_cell(directory).how == "done"
        published.append((directory / DONE).read_bytes())
        return newest_run(path)

    monkeypatch.setattr(running, "newest_run", slow)
    assert run_cell(directory).how == "done"
    assert [(directory / DONE).read_bytes()] == published
    assert [record.end["how"] for record in records(directory)] == ["done", "lost"]


def test_what_an_engine_runs_is_logged_with_its_attempt(directory, capfd):
    def progress(line):
        os.write(2, f"{line}\n".encode())

    assert run_cell(directory, progress=progress, capture=True).how == "done"
    log = (records(directory)[0].path / attempts.LOG).read_text()
    assert "step 30 of 30" in log
    assert capfd.readouterr().err == ""
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_only_the_newest_training_state_is_kept(directory):
    die_while_training(directory, step=5)
    assert run_cell(directory, stopping=stops_after(directory, 2)).how == "stopped"
    kept = [(record.path / attempts.RUN).exists() for record in records(directory)]
    assert kept == [False, True]


def stops_after(directory, number):
    """A function that asks to stop once the attempt with this number has written its run."""

    def stopping():
        newest = attempts.newest(directory)
        return newest.number == number and (newest.path / attempts.RUN).exists()

    return stopping


def test_deaths_before_the_model_was_trained_do_not_count_after_it(finished, tmp_path):
    """The process that has trained the model dies before it writes the numbers."""
    directory = copy_of(finished, tmp_path)
    (directory / DONE).unlink()
    for step in (0, 10, 20):
        die_in_attempt(directory, step)
    assert run_cell(directory, most_crashes=3).how == "done"
    assert records(directory)[-1].owner.step == 30
    assert weights_in(directory) == weights_in(finished)


def test_a_failure_of_one_probe_does_not_prevent_another(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    (directory / DONE).unlink()
    cell = read_cell(directory)
    running._fail(directory, cell, "the probe failed")
    assert run_cell(directory).how == "failed"
    asked = dataclasses.replace(cell, measure=Measure(("recover_transition",), "none", 64))
    write_cell(directory, asked)
    assert run_cell(directory).how == "done"
    assert not (directory / FAILED).exists()


def test_a_failed_training_stays_failed_whatever_is_measured(directory):
    cell = read_cell(directory)
    running._fail(directory, cell, "the loss is nan")
    write_cell(directory, dataclasses.replace(cell, measure=Measure((), "none", 64)))
    assert run_cell(directory).how == "failed"


def test_other_probes_are_measured_without_training_again(finished, tmp_path):
    directory = copy_of(finished, tmp_path)
    cell = read_cell(directory)
    asked = dataclasses.replace(cell, measure=Measure(("recover_transition",), "none", 64))
    write_cell(directory, asked)
    assert asked.name == cell.name
    assert run_cell(directory).how == "done"
    done = read_json(directory / DONE)
    assert any(name.startswith("recover_transition.") for name in done["probes"])
    assert not any(name.startswith("recover_beta.") for name in done["probes"])
    assert weights_in(directory) == weights_in(finished)
    assert records(directory)[-1].owner.step == 30, "the model is trained"
    earlier = read_json(records(directory)[-1].path / running.REPLACED)
    assert any(name.startswith("recover_beta.") for name in earlier["probes"])


def test_numbers_of_other_probes_are_not_in_the_table(finished, tmp_path):
    sweep = small_sweep(tmp_path / "s", length=12, seed=0)
    shutil.copytree(finished, sweep.directories[0], dirs_exist_ok=True)
    assert len(read_rows(sweep)) == 1
    other = small_sweep(tmp_path / "s", length=12, seed=0, probes="recover_transition")
    assert read_rows(other) == []
    assert statuses(other)[other.entries[0].name].state == "waiting"


def test_an_error_of_the_cell_is_recorded_and_not_raised(directory, monkeypatch):
    def fail(*arguments):
        raise DivergedError("the loss is nan at step 3")

    monkeypatch.setattr(running, "_train", fail)
    ended = run_cell(directory)
    assert (ended.how, ended.reason) == ("failed", "the loss is nan at step 3")
    assert read_json(directory / FAILED)["error"] == "the loss is nan at step 3"
    assert "Traceback" in records(directory)[0].end["traceback"]
    assert run_cell(directory).how == "failed", "and it is not tried again by itself"
    assert len(records(directory)) == 1


def test_a_cell_that_dies_again_and_again_fails(directory):
    for _ in range(2):
        child = os.fork()
        if child == 0:
            run_cell(directory, stopping=lambda: os.kill(os.getpid(), signal.SIGKILL))
            os._exit(0)
        os.waitpid(child, 0)
    ended = run_cell(directory, most_crashes=2)
    assert ended.how == "failed"
    assert ended.reason == "2 attempts in a row died without saving a new training step"


def test_a_chain_starts_from_the_model_before(tmp_path):
    sweep = small_sweep(tmp_path / "s", length=[12, 16], seed=0, **{"from": "length"})
    first, second = sweep.directories
    assert run_cell(second).how == "waiting"
    assert run_cell(first).how == "done"
    assert run_cell(second).how == "done"
    config = load_checkpoint(second / CHECKPOINT).config
    assert config["parent"] == {
        "name": first.name,
        "length": 12,
        "weights_sha256": weights_in(first),
    }
    alone = small_sweep(tmp_path / "alone", length=16, seed=0).directories[0]
    assert alone.name != second.name, "the parent belongs to what decides the numbers"
    assert run_cell(alone).how == "done"
    assert weights_in(alone) != weights_in(second)


def test_cells_of_other_code_are_refused(directory, monkeypatch):
    monkeypatch.setattr(running, "sources_digest", lambda: "other")
    with pytest.raises(CellError, match="another version of mtdinterp"):
        run_cell(directory)
    assert records(directory) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "expected a JSON object"),
        ("{", "not valid JSON"),
        ("{}", "expected cell schema 1"),
        ('{"schema": 1}', "not written by mtdinterp sweep"),
    ],
)
def test_damaged_cells_are_refused(directory, content, message):
    (directory / CELL).write_text(content)
    with pytest.raises(CellError, match=message):
        run_cell(directory)


def test_a_cell_whose_settings_were_edited_is_refused(directory):
    values = json.loads((directory / CELL).read_text())
    values["recipe"]["steps"] = 60
    (directory / CELL).write_text(json.dumps(values))
    with pytest.raises(CellError, match="was changed"):
        run_cell(directory)


def test_plugins_are_named_and_compared(tmp_path):
    cell = read_cell(small_sweep(tmp_path / "s", length=12, seed=0).directories[0])
    with pytest.raises(CellError, match=r"needs the plugin file mine\.py; name it with --plugin"):
        running.check_code(dataclasses.replace(cell, plugins={"mine.py": "1234"}))


def test_two_equal_sweeps_have_equal_weights(tmp_path, finished):
    again = small_sweep(tmp_path / "again", length=12, seed=0)
    assert run_cell(again.directories[0]).how == "done"
    assert set(weights_of(again).values()) == {weights_in(finished)}
