"""A background sweep ends visibly, however it ends."""

import pytest

from mtdinterp.app.sweeps import Job


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt("a key"), MemoryError("too much"), ValueError("no")]
)
def test_a_sweep_that_ends_in_any_exception_has_failed_and_says_why(error, caplog):
    def run(progress):
        raise error

    job = Job(1)
    job.work(run)
    assert job.status == "failed"
    assert job.error == f"The sweep failed with {type(error).__name__}: {error}"
    assert job.finished.is_set()
    assert "sweep 1 failed" in caplog.text


def test_a_sweep_that_was_asked_to_stop_is_cancelled():
    job = Job(1)
    job.stop.set()
    job.work(lambda progress: progress(1, 2))
    assert job.status == "cancelled"
    assert job.error is None
    assert job.finished.is_set()


def test_a_sweep_that_ends_has_a_result():
    job = Job(1)
    job.work(lambda progress: {"kind": "heads"})
    assert job.status == "done"
    assert job.to_json()["result"] == {"kind": "heads"}
