"""A cell belongs to one process at a time, and to the next as soon as that process is gone."""

import os
import time

import pytest

from mtdinterp.sweep import attempts
from mtdinterp.sweep.attempts import (
    Busy,
    GivenUp,
    Lost,
    attempting,
    crashes_without_progress,
    newest,
    records,
)
from sweep.disturbing import die_in_attempt


@pytest.fixture
def cell(tmp_path):
    path = tmp_path / "cell"
    path.mkdir()
    return path


def elsewhere(monkeypatch):
    """From now on, this process is on another machine."""
    monkeypatch.setattr(attempts, "this_machine", lambda: ("elsewhere", "another boot"))


def age(path, seconds):
    """Make a heartbeat older."""
    before = time.time() - seconds
    os.utime(path / attempts.PROGRESS, (before, before))


def test_two_processes_never_run_one_cell(cell):
    with (
        attempting(cell, 0, "first"),
        pytest.raises(Busy, match=r"process \d+ on .* \(first\)"),
        attempting(cell, 0, "second"),
    ):
        pass
    assert len(records(cell)) == 1


def test_a_cell_is_free_as_soon_as_its_process_is_killed(cell):
    die_in_attempt(cell)
    assert not newest(cell).is_alive()
    with attempting(cell, 0, "next") as attempt:
        assert attempt.number == 2


def test_elsewhere_the_heartbeat_decides(cell, monkeypatch):
    die_in_attempt(cell)
    elsewhere(monkeypatch)
    assert newest(cell).is_alive(), "its lock cannot be seen from here"
    with pytest.raises(Busy), attempting(cell, 0, "too early"):
        pass
    age(newest(cell).path, attempts.STALE + 1)
    with attempting(cell, 0, "next") as attempt:
        assert attempt.number == 2


def test_without_locks_the_heartbeat_decides(cell, monkeypatch):
    monkeypatch.setattr(attempts, "_is_unlocked", lambda path: True)
    with attempting(cell, 0, "first"):
        assert newest(cell).is_alive()
        age(newest(cell).path, attempts.STALE + 1)
        assert not newest(cell).is_alive()


def test_a_paused_process_learns_that_it_was_replaced(cell, monkeypatch):
    with attempting(cell, 0, "paused") as paused:
        age(paused.path, attempts.STALE + 1)
        elsewhere(monkeypatch)
        with attempting(cell, 0, "next"):
            with pytest.raises(Lost):
                paused.check()
            paused.beat()
            assert paused.lost


def test_a_process_that_is_paused_for_long_loses_its_cell_here_too(cell):
    with attempting(cell, 0, "paused") as paused:
        age(paused.path, attempts.STALE + 1)
        with attempting(cell, 0, "next") as attempt:
            assert attempt.number == 2
        with pytest.raises(Lost):
            paused.check()


def test_a_process_that_is_killed_while_it_stops_has_not_crashed(cell):
    for _ in range(3):
        die_in_attempt(cell, stopping=lambda: True)
    assert crashes_without_progress(records(cell), 0) == 0
    die_in_attempt(cell)
    assert crashes_without_progress(records(cell), 0) == 1


def test_forgiven_crashes_do_not_count(cell):
    die_in_attempt(cell)
    die_in_attempt(cell)
    attempts.forgive(cell)
    assert crashes_without_progress(records(cell), 0) == 0
    with attempting(cell, 0, "alive"):
        attempts.forgive(cell)
        assert newest(cell).end is None, "a process that lives is left alone"


def test_of_two_that_begin_at_once_only_one_succeeds(cell, monkeypatch):
    """The other has seen no attempt, and then finds the directory taken."""
    with attempting(cell, 0, "first"):
        monkeypatch.setattr(attempts, "records", lambda cell: [])
        with pytest.raises(Busy, match="just begun"), attempting(cell, 0, "second"):
            pass


def test_how_an_attempt_ended_is_recorded(cell):
    with attempting(cell, 3, "engine") as attempt:
        attempt.end(attempts.STOPPED)
    (record,) = records(cell)
    assert record.end == {"how": "stopped"}
    assert (record.owner.step, record.owner.engine, record.owner.locked) == (3, "engine", True)
    assert not record.is_alive()


def test_an_attempt_that_dies_without_progress_is_not_repeated_for_ever(cell):
    for _ in range(3):
        die_in_attempt(cell)
    with pytest.raises(GivenUp), attempting(cell, 0, "fourth", most_crashes=3):
        pass
    with attempting(cell, 10, "with progress", most_crashes=3):
        pass


def test_only_the_last_deaths_in_a_row_count(cell):
    die_in_attempt(cell)
    with attempting(cell, 0, "stopped") as attempt:
        attempt.end(attempts.STOPPED)
    die_in_attempt(cell, step=5)
    die_in_attempt(cell, step=5)
    known = records(cell)
    assert crashes_without_progress(known, 5) == 2
    assert crashes_without_progress(known, 6) == 0


def test_nothing_is_left_next_to_the_attempts(cell):
    die_in_attempt(cell)
    with attempting(cell, 0, "next"):
        pass
    assert sorted(os.listdir(cell / attempts.ATTEMPTS)) == ["0001", "0002"]


def test_the_heartbeat_is_written_again_and_again(cell, monkeypatch):
    monkeypatch.setattr(attempts, "BEAT", 0.02)
    with attempting(cell, 0, "test") as attempt:
        attempt.says("training", step=7)
        deadline = time.monotonic() + 20
        while '"step": 7' not in (attempt.path / attempts.PROGRESS).read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
