"""The driver starts every cell when it can run, and ends when nothing can run any more."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mtdinterp.sweep import attempts, driving
from mtdinterp.sweep.attempts import attempting, records
from mtdinterp.sweep.cells import DONE, FAILED, Measure, read_cell
from mtdinterp.sweep.directory import longest_first, read_sweep
from mtdinterp.sweep.driving import Driver, retry_failed, summary
from mtdinterp.sweep.engines import Resources, local
from mtdinterp.sweep.engines.local import LocalEngine
from mtdinterp.sweep.running import run_cell
from mtdinterp.sweep.status import statuses
from mtdinterp.sweep.table import read_rows
from sweep.disturbing import die_in_attempt, kill
from sweep.small import SETTINGS, small_sweep, weights_of


class FakeEngine:
    """Finishes, fails or loses cells at once, as it is told."""

    name = "fake"

    def __init__(self, room=2, outcomes=None):
        self.most = room
        self.outcomes = outcomes or {}
        self.order = []
        self.over = []
        self.threads = {}

    def has_room(self, threads):
        return len(self.over) < self.most

    def start(self, directory, threads):
        self.threads[directory.name] = threads
        self.order.append(directory.name)
        self.over.append(directory.name)
        outcome = self.outcomes.get(directory.name, ["done"])
        how = outcome.pop(0) if len(outcome) > 1 else outcome[0]
        if how == "vain":
            return
        with attempting(directory, 0, "fake", most_crashes=99) as attempt:
            if how == "done":
                measure = read_cell(directory).measure.to_dict()
                (directory / DONE).write_text(json.dumps({"measure": measure}))
            if how == "failed":
                attempts.write_json(directory / FAILED, {"error": "of its own"})
            if how != "dies":
                attempt.end(how)

    def ended(self):
        names, self.over = self.over, []
        return names

    def last_words(self, directory):
        return "Traceback\nImportError: no torch"

    def stop(self):
        self.stopped = True
        return 0

    def kill(self):
        self.over.clear()

    def close(self):
        self.kill()


def drive(sweep, engine, **options):
    return Driver(sweep, engine, lambda found: None, **options).run()


def states(found):
    return [status.state for status in found.values()]


def test_all_cells_are_started_once_the_longest_first(tmp_path):
    sweep = small_sweep(tmp_path / "s")
    engine = FakeEngine()
    found = drive(sweep, engine)
    assert states(found) == ["done"] * 4
    assert sorted(engine.order) == sorted(entry.name for entry in sweep.entries)
    assert "-T16-" in engine.order[0]
    assert summary(found) == "4 of 4 cells finished"


def test_only_what_is_missing_runs_again(tmp_path):
    sweep = small_sweep(tmp_path / "s")
    drive(sweep, FakeEngine())
    more = small_sweep(tmp_path / "s", seed=[0, 1, 2])
    engine = FakeEngine()
    found = drive(more, engine)
    assert states(found) == ["done"] * 6
    assert len(engine.order) == 2
    assert all("-s2-" in name for name in engine.order)


def test_a_changed_value_reruns_only_what_it_changes(tmp_path):
    drive(small_sweep(tmp_path / "s"), FakeEngine())
    changed = small_sweep(tmp_path / "s", length=[12, 20])
    engine = FakeEngine()
    drive(changed, engine)
    assert all("-T20-" in name for name in engine.order)
    assert len(engine.order) == 2


def test_a_cell_that_died_is_started_again(tmp_path):
    sweep = small_sweep(tmp_path / "s")
    name = sweep.entries[1].name
    engine = FakeEngine(outcomes={name: ["dies", "dies", "done"]})
    assert states(drive(sweep, engine)) == ["done"] * 4
    assert engine.order.count(name) == 3


def test_a_failed_cell_does_not_stop_the_others(tmp_path):
    sweep = small_sweep(tmp_path / "s")
    name = sweep.entries[0].name
    found = drive(sweep, FakeEngine(outcomes={name: ["failed"]}))
    assert states(found) == ["failed", "done", "done", "done"]
    assert found[name].reason == "of its own"
    engine = FakeEngine()
    drive(sweep, engine)
    assert engine.order == [], "a failure is not forgotten by itself"
    assert retry_failed(sweep) == 1
    assert states(drive(sweep, engine)) == ["done"] * 4


def test_a_process_that_cannot_begin_is_not_started_for_ever(tmp_path):
    sweep = small_sweep(tmp_path / "s")
    name = sweep.entries[0].name
    engine = FakeEngine(outcomes={name: ["vain"]})
    found = drive(sweep, engine)
    expected = "its process ended before training started: ImportError: no torch"
    assert found[name].reason == expected
    assert engine.order.count(name) == 3


def test_a_failed_start_is_forgotten_once_a_process_begins(tmp_path):
    sweep = small_sweep(tmp_path / "s")
    name = sweep.entries[0].name
    outcomes = ["vain", "vain", "dies", "vain", "vain", "done"]
    found = drive(sweep, FakeEngine(outcomes={name: outcomes}))
    assert found[name].state == "done"


def test_a_cell_that_was_given_up_can_be_tried_again(tmp_path):
    sweep = small_sweep(tmp_path / "s", length=12, seed=0)
    (directory,) = sweep.directories
    for _ in range(5):
        die_in_attempt(directory)
    assert (
        run_cell(directory).reason == "5 attempts in a row died without saving a new training step"
    )
    assert retry_failed(sweep) == 1
    assert run_cell(directory, stopping=lambda: True).how == "stopped"


def test_an_engine_is_told_the_threads_of_each_cell(tmp_path):
    sweep = small_sweep(tmp_path / "s", length=12, seed=0, threads=[1, 2])
    engine = FakeEngine()
    drive(read_sweep(sweep.path), engine)
    assert sorted(engine.threads.values()) == [1, 2]


def test_processors_are_shared_by_threads(monkeypatch):
    monkeypatch.setattr(local, "processors", lambda: 4)
    process = subprocess.Popen(["true"])
    process.wait()
    engine = LocalEngine(Resources())
    engine.running = {"a": local.Running(process, 2)}
    assert engine.has_room(2)
    assert not engine.has_room(3)
    engine.running = {}
    assert engine.has_room(8), "a cell with more threads than processors runs alone"
    limited = LocalEngine(Resources(most_at_once=1))
    limited.running = {"a": local.Running(process, 1)}
    assert not limited.has_room(1)


def test_a_directory_that_cannot_be_read_for_a_moment_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(driving, "LOOK", 0.0)
    monkeypatch.setattr(driving, "LOOK_SHARE", 1.0)
    sweep = small_sweep(tmp_path / "s", length=12, seed=0)
    calls = []

    def unreliable(sweep, known=None):
        calls.append(1)
        if len(calls) in (2, 3):
            raise OSError("input/output error")
        return statuses(sweep, known)

    monkeypatch.setattr(driving, "statuses", unreliable)
    assert states(drive(sweep, FakeEngine(outcomes={}))) == ["done"]


def test_a_child_waits_for_its_parent(tmp_path):
    sweep = small_sweep(tmp_path / "s", length=[12, 16, 20], seed=0, **{"from": "length"})
    engine = FakeEngine(room=4)
    drive(sweep, engine)
    assert engine.order == [entry.name for entry in sweep.entries]


def test_children_of_a_failed_cell_are_blocked(tmp_path):
    sweep = small_sweep(tmp_path / "s", length=[12, 16, 20], seed=0, **{"from": "length"})
    first, second, third = [entry.name for entry in sweep.entries]
    found = drive(sweep, FakeEngine(outcomes={first: ["failed"]}))
    assert states(found) == ["failed", "blocked", "blocked"]
    assert found[second].reason == f"it starts from {first}, which failed"
    assert third in found


def test_a_chain_starts_before_single_cells(tmp_path):
    grids = [{"length": [12, 14, 16], "from": "length", "seed": 0}, {"length": 16, "seed": 1}]
    from mtdinterp.sweep.directory import write_sweep
    from mtdinterp.sweep.grid import expand
    from mtdinterp.sweep.planning import plan

    planned = plan(expand({**SETTINGS, "length": 16, "grids": grids}), tmp_path)
    sweep = write_sweep(tmp_path / "s", planned, "")
    order = [entry.name for entry in longest_first(sweep.entries)]
    assert order[0] == sweep.entries[0].name


def test_a_cell_that_somebody_else_runs_is_waited_for(tmp_path):
    sweep = small_sweep(tmp_path / "s", length=12, seed=0)
    (directory,) = sweep.directories
    engine = FakeEngine()
    shown = []

    def show(found):
        shown.append(states(found)[0])
        if len(shown) == 3:
            measure = Measure(("recover_beta",), "none", 64).to_dict()
            (directory / DONE).write_text(json.dumps({"measure": measure}))

    with attempting(directory, 0, "somebody"):
        found = Driver(sweep, engine, show).run()
    assert shown[0] == "running"
    assert states(found) == ["done"]
    assert engine.order == []


def test_stopping_asks_the_engine_and_returns(tmp_path):
    sweep = small_sweep(tmp_path / "s")
    engine = FakeEngine()
    found = drive(sweep, engine, stopping=lambda: len(engine.order) > 0)
    assert engine.stopped
    assert states(found).count("done") == 2


def test_processes_of_this_machine_finish_a_sweep(tmp_path):
    sweep = small_sweep(tmp_path / "s", length=12)
    engine = LocalEngine(Resources(most_at_once=2))
    found = drive(sweep, engine)
    engine.close()
    assert states(found) == ["done", "done"]
    assert all(len(records(directory)) == 1 for directory in sweep.directories)
    assert len(set(weights_of(sweep).values())) == 2


def command(path, *words):
    words = ["sweep", "run", str(path / "grid.json"), "--out", str(path / "s"), *words]
    return [sys.executable, "-m", "mtdinterp", *words]


def table_of(sweep):
    """The table without the columns that tell where and how long cells ran."""
    rows = []
    for row in read_rows(sweep):
        rows.append({name: row[name] for name in row if not name.startswith("run.")})
    return rows


def processes_of(sweep):
    """The living processes that run a cell."""
    found = []
    for directory in sweep.directories:
        newest = attempts.newest(directory)
        if newest is not None and newest.owner is not None and newest.is_alive():
            found.append(newest.owner.pid)
    return found


def children_of(pid):
    """The processes that a process has started, such as those of Ray; none if it has ended."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


WHILE_A_CELL_RUNS = 0.8
"""The share of kills that wait until a cell runs."""


def wait_for_a_cell(sweep, driver, deadline):
    """Wait until a cell runs, or the driver has ended."""
    while driver.poll() is None and not processes_of(sweep) and time.monotonic() < deadline:
        time.sleep(0.05)


def kill_at_random(path, sweep, n_kills, words=()):
    """Run the command again and again, and kill it or a process of its at random moments.

    Half of the kills hit the driver; the others hit a cell, or with the same chance whatever else
    the driver has started, such as Ray's scheduler. Most kills come while a cell runs: on a busy
    machine, a fixed time would always hit processes that are still loading.

    Args:
        path: where grid.json is.
        sweep: the sweep, to find the processes of its cells.
        n_kills: how many processes to kill.
        words: further words of the command line.

    Returns:
        How many processes were killed.
    """
    chance = random.Random(0)
    killed = 0
    driver = None
    deadline = time.monotonic() + 60 * n_kills
    while killed < n_kills:
        assert time.monotonic() < deadline, "the sweep does not get on"
        if driver is None or driver.poll() is not None:
            if all(status.state == "done" for status in statuses(sweep).values()):
                break
            driver = subprocess.Popen(command(path, *words), stderr=subprocess.DEVNULL)
        if chance.random() < WHILE_A_CELL_RUNS:
            wait_for_a_cell(sweep, driver, deadline)
        time.sleep(chance.uniform(0.0, 3.0))
        kind = chance.choice(("driver", "driver", "cell", "child"))
        if kind == "driver":
            driver.kill()
            driver.wait()
            killed += 1
            continue
        running = processes_of(sweep) if kind == "cell" else children_of(driver.pid)
        if running:
            kill(chance.choice(running), signal.SIGKILL)
            killed += 1
    if driver is not None:
        driver.kill()
        driver.wait()
    return killed


@pytest.mark.slow
@pytest.mark.promise
def test_kills_of_cells_and_of_the_driver_lose_nothing(tmp_path):
    check_kills(tmp_path, n_kills=12, n_seeds=6, steps=3000)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_fifty_kills_of_cells_workers_and_the_driver_lose_nothing(engine, tmp_path):
    check_kills(tmp_path, n_kills=50, n_seeds=16, steps=6000, engine=engine)


def check_kills(path, n_kills, n_seeds, steps, engine="local"):
    """Kill processes of sweeps, and compare their tables with that of an undisturbed one.

    How many kills a sweep sees before it is finished depends on the machine's speed, so that as
    many sweeps are disturbed as it takes.
    """
    settings = {"steps": steps, "evaluate_every": 1000, "save_every": 200}
    grid = {**SETTINGS, **settings, "seed": list(range(n_seeds))}
    words = ("--max-concurrent", "2", "--attempts", "100")
    calm = planned(path / "calm", grid)
    finish(path / "calm", words)
    disturbing = (*words, "--engine", engine)
    killed = 0
    while killed < n_kills:
        place = path / f"disturbed-after-{killed}"
        sweep = planned(place, grid)
        kills = kill_at_random(place, sweep, n_kills - killed, disturbing)
        assert kills > 0, "the sweep ended before a process could be killed"
        killed += kills
        finish(place, disturbing)
        assert table_of(sweep) == table_of(calm)
        for directory in sweep.directories:
            ends = [record.end["how"] for record in records(directory) if record.end]
            assert ends.count("done") == 1


def planned(path, grid):
    """The sweep of a grid in a new directory, with the grid's file beside it."""
    path.mkdir()
    (path / "grid.json").write_text(json.dumps(grid))
    return small_sweep(path / "s", **{**grid, "length": 12})


def finish(path, words):
    """Run the sweep of a directory until all its cells are done."""
    subprocess.run(command(path, *words), check=True, capture_output=True)
