"""The Slurm engine, through submitit: on this machine's processes, and on a real Slurm."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mtdinterp.checkpoint_files import CheckpointError
from mtdinterp.sweep import attempts
from mtdinterp.sweep.attempts import Record
from mtdinterp.sweep.cells import DONE
from mtdinterp.sweep.directory import Sweep
from mtdinterp.sweep.driving import Driver
from mtdinterp.sweep.engines import Engine, EngineError, Resources
from mtdinterp.sweep.engines.local import LocalEngine
from mtdinterp.sweep.engines.slurm import SlurmEngine
from mtdinterp.sweep.status import Status
from mtdinterp.training.state import read_state
from sweep import real_slurm
from sweep.small import small_sweep, weights_of

LONG = {"length": 12, "seed": 0, "steps": 1000}
"""Settings of one cell that can be disturbed while it trains."""
LONGER = {"length": 12, "seed": 0, "steps": 900_000, "evaluate_every": 1000}
"""Settings of one cell that does not finish by itself."""
ON_THIS_MACHINE = ["cluster=local"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The weights of the small sweep from the local engine."""
    sweep = small_sweep(tmp_path_factory.mktemp("local") / "sweep")
    drive(sweep, LocalEngine(Resources()))
    return weights_of(sweep)


@pytest.fixture(scope="module")
def slurm() -> Iterator[None]:
    """A real Slurm on this machine."""
    real_slurm.install()
    with ExitStack() as stack:
        try:
            stack.enter_context(real_slurm.real_slurm())
        except real_slurm.NotStarted as error:
            pytest.skip(f"Slurm does not start on this machine: {error}")
        yield


def drive(
    sweep: Sweep, engine: Engine, at_work: Callable[[Record], bool] | None = None
) -> dict[str, Status]:
    """Run a sweep.

    Args:
        sweep: the sweep.
        engine: what runs it.
        at_work: called once with an attempt that has saved; the sweep is stopped if it returns
            True.

    Returns:
        The states of all cells.
    """
    stop: list[bool] = []
    called: list[Record] = []

    def watch(found: dict[str, Status]) -> None:
        if at_work is None or called:
            return
        for directory in sweep.directories:
            newest = attempts.newest(directory)
            if newest is not None and has_saved(newest):
                called.append(newest)
                stop.append(at_work(newest))
                return

    try:
        return Driver(sweep, engine, watch, lambda: any(stop)).run()
    finally:
        engine.close()


def has_saved(record: Record) -> bool:
    """Whether an attempt that still runs has saved training steps."""
    if record.end is not None:
        return False
    try:
        return read_state(record.path / attempts.RUN)["step"] > 0
    except CheckpointError:
        return False


def kill_process(record: Record) -> bool:
    """Kill the process of an attempt on this machine."""
    assert record.owner is not None
    os.kill(record.owner.pid, signal.SIGKILL)
    return False


def assert_each_finished_once(sweep: Sweep, found: dict[str, Status]) -> None:
    """Every cell is finished, by exactly one attempt."""
    assert {name: status.state for name, status in found.items()} == dict.fromkeys(found, "done")
    for directory in sweep.directories:
        ends = [record.end for record in attempts.records(directory) if record.end]
        assert [end["how"] for end in ends].count("done") == 1


@pytest.mark.slow
@pytest.mark.promise
def test_the_grid_on_submitits_local_executor_has_the_weights_of_the_local_engine(
    tmp_path: Path, expected: dict[str, str]
) -> None:
    sweep = small_sweep(tmp_path / "sweep")
    found = drive(sweep, SlurmEngine(Resources(), sweep.path, ON_THIS_MACHINE))
    assert_each_finished_once(sweep, found)
    assert weights_of(sweep) == expected
    assert len(expected) == 4


@pytest.mark.slow
@pytest.mark.promise
def test_a_killed_job_is_started_again_and_resumes(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "sweep", **LONG)
    engine = SlurmEngine(Resources(), sweep.path, ON_THIS_MACHINE)
    found = drive(sweep, engine, kill_process)
    assert_each_finished_once(sweep, found)
    killed, resumed = attempts.records(sweep.directories[0])
    assert killed.end is None
    assert resumed.owner is not None
    assert resumed.owner.step > 0


@pytest.mark.slow
@pytest.mark.promise
def test_stopping_leaves_cells_that_resume(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "sweep", **LONGER)
    engine = SlurmEngine(Resources(), sweep.path, ON_THIS_MACHINE)
    found = drive(sweep, engine, lambda record: True)
    assert [status.state for status in found.values()] == ["waiting"]
    (record,) = attempts.records(sweep.directories[0])
    assert record.end == {"how": "stopped"}
    assert engine.jobs == {}


@pytest.mark.slow
@pytest.mark.promise
def test_a_job_at_its_time_limit_saves_and_is_requeued(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "sweep", **LONG)
    engine = SlurmEngine(Resources(), sweep.path, ON_THIS_MACHINE)

    def time_out(record: Record) -> bool:
        assert record.owner is not None
        os.kill(record.owner.pid, signal.SIGUSR2)
        return False

    found = drive(sweep, engine, time_out)
    assert_each_finished_once(sweep, found)
    first, second = attempts.records(sweep.directories[0])
    assert first.end == {"how": "stopped"}
    assert second.owner is not None
    assert second.owner.step > 0
    # It was the same job that went on.
    assert len(list((sweep.path / "slurm").glob("*_submitted.pkl"))) == 1


def test_the_last_words_of_a_job_that_cannot_begin_are_its_error(tmp_path: Path) -> None:
    sweep = small_sweep(tmp_path / "sweep", length=12, seed=0)
    resources = Resources(plugins=[tmp_path / "missing.py"])
    found = drive(sweep, SlurmEngine(resources, sweep.path, ON_THIS_MACHINE))
    (status,) = found.values()
    assert status.state == "failed"
    assert "missing.py" in status.reason


@pytest.mark.slow
@pytest.mark.usefixtures("slurm")
class TestRealSlurm:
    """The same on a real Slurm without accounting."""

    def test_an_array_has_the_weights_of_the_local_engine(
        self, tmp_path: Path, expected: dict[str, str]
    ) -> None:
        sweep = small_sweep(tmp_path / "sweep")
        found = drive(sweep, SlurmEngine(Resources(), sweep.path, ["time=60"]))
        assert_each_finished_once(sweep, found)
        assert weights_of(sweep) == expected
        (script,) = (sweep.path / "slurm").glob("*_submission.sh")
        assert "#SBATCH --array=0-3%4" in script.read_text()

    def test_a_killed_job_is_handed_out_again(self, tmp_path: Path) -> None:
        sweep = small_sweep(tmp_path / "sweep", **{**LONG, "seed": [0, 1]})
        engine = SlurmEngine(Resources(), sweep.path, ["time=60"])

        def kill(record: Record) -> bool:
            job = engine.jobs[record.path.parent.parent.name]
            subprocess.run(["scancel", "--signal=KILL", job.job_id], check=True)
            return False

        found = drive(sweep, engine, kill)
        assert_each_finished_once(sweep, found)
        numbers = [len(attempts.records(directory)) for directory in sweep.directories]
        assert sorted(numbers) == [1, 2]

    def test_a_job_at_its_time_limit_saves_and_is_requeued(self, tmp_path: Path) -> None:
        sweep = small_sweep(tmp_path / "sweep", **LONG)
        engine = SlurmEngine(Resources(), sweep.path, ["time=60"])

        def time_out(record: Record) -> bool:
            job = engine.jobs[record.path.parent.parent.name]
            subprocess.run(["scancel", "--signal=USR2", job.job_id], check=True)
            return False

        found = drive(sweep, engine, time_out)
        assert_each_finished_once(sweep, found)
        first, second = attempts.records(sweep.directories[0])
        assert first.end == {"how": "stopped"}
        assert second.owner is not None
        assert second.owner.step > 0
        assert len(list((sweep.path / "slurm").glob("*_submission.sh"))) == 1

    def test_stopping_empties_the_queue_and_leaves_cells_that_resume(self, tmp_path: Path) -> None:
        sweep = small_sweep(tmp_path / "sweep", **{**LONGER, "seed": [0, 1, 2]})
        begun = time.monotonic()
        found = drive(sweep, SlurmEngine(Resources(), sweep.path, ["time=60"]), lambda record: True)
        assert time.monotonic() - begun < 100
        assert real_slurm.queue() == []
        assert {status.state for status in found.values()} == {"waiting"}
        for directory in sweep.directories:
            assert not (directory / DONE).exists()
            for record in attempts.records(directory):
                assert record.end == {"how": "stopped"}

    def test_a_refusal_is_one_sentence(self, tmp_path: Path) -> None:
        sweep = small_sweep(tmp_path / "sweep", length=12, seed=0)
        with pytest.raises(EngineError, match="invalid partition"):
            drive(sweep, SlurmEngine(Resources(), sweep.path, ["partition=nowhere"]))
