"""Sweeps on a real Ray: the same cells and weights as here, whatever dies in the middle."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from mtdinterp.sweep import attempts, driving
from mtdinterp.sweep.driving import Driver
from mtdinterp.sweep.engines import Engine, EngineError, Resources
from mtdinterp.sweep.engines.local import LocalEngine
from mtdinterp.sweep.engines.ray import STARTS, RayEngine
from mtdinterp.sweep.engines.ray_sessions import (
    LONGEST_FOLDER,
    OBJECT_STORE,
    remove_abandoned,
    session_folder,
)
from mtdinterp.sweep.running import run_cell
from sweep.disturbing import (
    LONG_ENOUGH,
    check_finished_once,
    drive,
    endings,
    in_training,
    kill,
    meanwhile,
    parent_of,
    weights_in_this_process,
)
from sweep.small import small_sweep

TWO_CELLS = Resources(most_at_once=2)


@pytest.fixture(autouse=True)
def on_this_machine(monkeypatch):
    """Keep Ray on the loopback interface, wherever it is imported first."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")


@pytest.fixture
def engine():
    """A Ray of our own with two workers."""
    engine = RayEngine(TWO_CELLS, None)
    yield engine
    engine.close()


@pytest.fixture
def cluster(monkeypatch):
    """A Ray cluster of two nodes with one processor each."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    from ray.cluster_utils import Cluster

    folder = session_folder()
    node = {"num_cpus": 1, "object_store_memory": OBJECT_STORE, "temp_dir": str(folder)}
    # Ray writes the cluster's address into its usual folder, too, and does not create that.
    (Path(tempfile.gettempdir()) / "ray").mkdir(exist_ok=True)
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        yield cluster
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def long_weights(tmp_path_factory):
    """The weights of the longer sweep on the local engine."""
    sweep = small_sweep(tmp_path_factory.mktemp("local") / "sweep", **LONG_ENOUGH)
    engine = LocalEngine(TWO_CELLS)
    try:
        return check_finished_once(sweep, drive(sweep, engine))
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.promise
def test_ray_finishes_every_cell_once_with_the_same_weights(tmp_path, engine):
    assert isinstance(engine, Engine)
    assert engine.most_queued == 4  # two that run, and two that follow without a pause
    sweep = small_sweep(tmp_path / "ray")
    weights = check_finished_once(sweep, drive(sweep, engine))
    for directory in sweep.directories:
        assert endings(directory) == [attempts.DONE]
        owner = attempts.newest(directory).owner
        assert owner.engine == "ray"
        log = attempts.newest(directory).path / attempts.LOG
        assert "step 30 of 30" in log.read_text()
    assert weights == weights_in_this_process(small_sweep(tmp_path / "here"))
    engine.close()
    assert not engine.folder.exists()


@pytest.mark.slow
@pytest.mark.promise
def test_a_killed_worker_and_a_removed_node_lose_nothing(tmp_path, cluster, long_weights, capfd):
    sweep = small_sweep(tmp_path / "sweep", **LONG_ENOUGH)
    engine = RayEngine(Resources(), cluster.address)
    (node,) = cluster.worker_nodes
    raylet = node.all_processes["raylet"][0].process.pid
    done = {}

    def disturb():
        for record in in_training(sweep):
            if parent_of(record.owner.pid) == raylet and "removed" not in done:
                cluster.remove_node(node, allow_graceful=False)
                done["removed"] = record.path
            elif "killed" not in done:
                kill(record.owner.pid, signal.SIGKILL)
                done["killed"] = record.path
        return len(done) == 2

    try:
        with meanwhile(disturb):
            states = drive(sweep, engine)
    finally:
        engine.close()
    assert check_finished_once(sweep, states) == long_weights
    assert set(done) == {"killed", "removed"}
    for path in done.values():
        assert not (path / attempts.END).exists()
        resumed = attempts.newest(path.parent.parent)
        assert resumed.owner.step > 0
    assert "(raylet)" not in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.promise
def test_a_stopped_sweep_is_saved_and_continues(tmp_path, engine, long_weights):
    sweep = small_sweep(tmp_path / "sweep", **LONG_ENOUGH)
    states = drive(sweep, engine, stopping=lambda: bool(in_training(sweep)))
    ends = [end for directory in sweep.directories for end in endings(directory)]
    assert attempts.STOPPED in ends
    assert set(ends) <= {attempts.STOPPED, attempts.DONE}
    assert "running" not in states.values()
    assert engine.tasks == {}
    assert check_finished_once(sweep, drive(sweep, engine)) == long_weights


@pytest.mark.slow
def test_a_forced_end_leaves_cells_that_can_be_resumed(tmp_path, engine, long_weights):
    sweep = small_sweep(tmp_path / "sweep", **LONG_ENOUGH)
    for directory in sweep.directories:
        engine.start(directory, threads=1)
    while not in_training(sweep):
        time.sleep(0.05)
    engine.kill()
    assert engine.tasks == {}
    assert check_finished_once(sweep, drive(sweep, engine)) == long_weights


@pytest.mark.slow
def test_a_process_that_dies_while_it_loads_is_not_started_forever(tmp_path):
    plugin = tmp_path / "dies.py"
    plugin.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    sweep = small_sweep(tmp_path / "sweep", length=12, seed=0)
    engine = RayEngine(Resources(most_at_once=2, plugins=[plugin]), None)
    try:
        found = Driver(sweep, engine, lambda states: None).run()
    finally:
        engine.close()
    (status,) = found.values()
    assert status.state == "failed"
    assert "ended before training started" in status.reason
    assert "died while they loaded" in status.reason
    assert not (sweep.directories[0] / STARTS).exists()


@pytest.mark.slow
def test_a_cell_that_always_crashes_fails_for_good(tmp_path, engine):
    sweep = small_sweep(tmp_path / "sweep", length=12, seed=0, **LONG_ENOUGH | {"save_every": 600})
    (directory,) = sweep.directories

    def disturb():
        newest = attempts.newest(directory)
        if newest is not None and newest.owner is not None and newest.is_alive():
            kill(newest.owner.pid, signal.SIGKILL)
        return False

    with meanwhile(disturb):
        states = drive(sweep, engine)
    assert set(states.values()) == {"failed"}
    assert endings(directory) == [None] * 5


class RetryingEngine(LocalEngine):
    """Does what Ray does when a machine dies: it runs the cell again at once, on another one."""

    def __init__(self):
        super().__init__(Resources(most_at_once=1))
        self.how = []
        self.over = []

    def start(self, directory, threads):
        if not self.how:
            begin_elsewhere(directory)
        self.how.append(run_cell(directory, self.name).how)
        self.over.append(directory.name)

    def ended(self):
        names, self.over = self.over, []
        return names


def begin_elsewhere(directory):
    """An attempt on another machine, which has just died."""
    path = directory / attempts.ATTEMPTS / "0001"
    path.mkdir(parents=True)
    owner = attempts.Owner("elsewhere", "boot", 1, "ray", step=0, locked=True)
    attempts.write_json(path / attempts.OWNER, asdict(owner))
    attempts.write_json(path / attempts.PROGRESS, {"phase": "training"})


def test_a_cell_whose_machine_died_is_handed_out_again_when_its_heartbeat_is_old(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(driving, "LOOK", 0.1)
    sweep = small_sweep(tmp_path / "sweep", length=12, seed=0)
    (directory,) = sweep.directories
    heartbeat = directory / attempts.ATTEMPTS / "0001" / attempts.PROGRESS
    seen = []

    def show(found):
        seen.append(found[directory.name].state)
        if seen.count("running") == 5:
            before = time.time() - 2 * attempts.STALE
            os.utime(heartbeat, (before, before))

    engine = RetryingEngine()
    driver = Driver(sweep, engine, show)
    driver.run()
    assert engine.how == ["busy", "done"]
    assert endings(directory) == [None, attempts.DONE]
    assert driver.failed_starts == {}


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=r"pip install 'mtdinterp\[ray\]'"):
        RayEngine(Resources(), None)


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nonsense"])
def test_an_address_without_a_cluster_is_an_error(address, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(EngineError) as caught:
        RayEngine(Resources(), address)
    assert address in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_folders_of_killed_processes_are_removed(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = tmp_path / f"mtd-ray-{gone.pid}-abc"
    ours = tmp_path / f"mtd-ray-{os.getpid()}-abc"
    other = tmp_path / "mtd-ray-notes"
    for folder in (left, ours, other):
        folder.mkdir()
    remove_abandoned(tmp_path)
    assert not left.exists()
    assert ours.exists()
    assert other.exists()


def test_the_folder_for_sockets_has_a_short_path(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = session_folder()
    folder.rmdir()
    assert len(str(folder)) <= LONGEST_FOLDER
    assert list(deep.iterdir()) == []
