"""What the Slurm engine asks of Slurm: its options, its job arrays, and the queue.

Slurm is replaced by scripts that record what they are asked; see test_slurm for a real one.
"""

import os
import pickle
from pathlib import Path

import pytest

from mtdinterp.sweep.engines import EngineError, Resources
from mtdinterp.sweep.engines.slurm import SlurmEngine
from mtdinterp.sweep.engines.slurm_job import CellJob
from mtdinterp.sweep.engines.slurm_options import read_options

SCRIPTS = {
    "sbatch": """
if [ -e "$0.refuses" ]; then echo "sbatch: error: too many jobs" >&2; exit 1; fi
cp "$1" "$0.script"
env > "$0.environment"
echo "Submitted batch job 7"
""",
    "squeue": """
if [ -n "$SQUEUE_STATES" ] || [ -e "$0.fails" ]; then exit 1; fi
cat "$0.jobs"
""",
    "scancel": """
echo "$@" >> "$0.calls"
case "$*" in *signal=TERM*) : > "$(dirname "$0")/squeue.jobs" ;; esac
""",
    "srun": "",
}


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins for Slurm's programs, which are on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in SCRIPTS.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}")
        (folder / name).chmod(0o755)
    (folder / "squeue.jobs").write_text("")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def engine(tmp_path: Path, programs: Path) -> SlurmEngine:
    """An engine that has submitted two cells of three threads, both of which are in the queue."""
    engine = SlurmEngine(Resources(), tmp_path / "sweep", ["partition=long", "mem_gb=4"])
    for name in ("a", "b"):
        engine.start(tmp_path / name, threads=3)
    (programs / "squeue.jobs").write_text("7_0|RUNNING\n7_1|PENDING\n12|RUNNING\n")
    assert engine.ended() == []
    engine.look_at = 0.0
    return engine


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("partition", "expected NAME=VALUE"),
        ("=long", "expected NAME=VALUE"),
        ("partition=", "expected NAME=VALUE"),
        ("two words=3", "expected NAME=VALUE"),
        ("partition=long\nrm -r", "one line"),
        ("cluster=elsewhere", "expected slurm or local"),
        ("time=2h", "expected minutes"),
        ("time=10", "more than 10 minutes"),
        ("timeout_min=5", "more than 10 minutes"),
        ("mem_gb=lots", "expected gigabytes"),
        ("cpus-per-task=4", "use --cpus-per-cell"),
        ("array_parallelism=4", "use --max-concurrent"),
        ("signal=TERM", "leave it out"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence) as error:
        read_options([text])
    assert "\n" not in str(error.value)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(EngineError, match="given twice"):
        read_options(["mem-gb=1", "mem_gb=2"])


def test_options_are_translated() -> None:
    texts = ["partition=long", "time=120", "mem_gb=1.5", "mail-type=END", "exclusive=true"]
    texts += ["setup=module load python", "setup=umask 027", "srun_args=--overlap"]
    options = read_options(texts)
    assert options.cluster == "slurm"
    assert options.srun_args == ("--overlap",)
    assert options.parameters == {
        "name": "mtdinterp",
        "timeout_min": 120,
        "mem_gb": 1.5,
        "slurm_setup": ["module load python", "umask 027"],
        "slurm_additional_parameters": {
            "partition": "long",
            "mail_type": "END",
            "exclusive": True,
            "requeue": True,
        },
    }


def test_a_machine_without_slurm_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="sbatch is not on the path"):
        SlurmEngine(Resources(), tmp_path / "sweep", [])
    with pytest.raises(EngineError, match="path with %"):
        SlurmEngine(Resources(), tmp_path / "50%", ["cluster=local"])


def test_waiting_jobs_take_room(
    engine: SlurmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.most_at_once = 3
    assert engine.has_room(1)
    engine.start(tmp_path / "c", threads=1)
    assert not engine.has_room(1)


def test_cells_with_other_threads_are_another_array(
    engine: SlurmEngine, programs: Path, tmp_path: Path
) -> None:
    engine.start(tmp_path / "c", threads=1)
    engine.ended()
    script = (programs / "sbatch.script").read_text()
    assert "#SBATCH --cpus-per-task=1\n" in script
    assert engine.burst == {}
    assert set(engine.errors) == {"a", "b", "c"}


def test_cells_that_start_together_are_one_array(engine: SlurmEngine, programs: Path) -> None:
    lines = (programs / "sbatch.script").read_text().splitlines()
    for flag in (
        "array=0-1%2",
        "cpus-per-task=3",
        "mem=4GB",
        "partition=long",
        "requeue",
        "time=720",
    ):
        assert f"#SBATCH --{flag}" in lines
    (command,) = [line for line in lines if line.startswith("srun")]
    assert " --cpus-per-task=3 " in command
    assert "OMP_NUM_THREADS=3" in (programs / "sbatch.environment").read_text().splitlines()


def test_a_job_that_left_the_queue_has_ended(
    engine: SlurmEngine, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")  # which would hide running jobs
    (programs / "squeue.jobs").write_text("7_1|PENDING\n")
    assert engine.ended() == ["a"]
    assert engine.ended() == []
    engine.look_at = 0.0
    (programs / "squeue.jobs").write_text("7_1|COMPLETING\n")
    assert engine.ended() == []
    engine.look_at = 0.0
    engine.jobs["b"].paths.result_pickle.touch()
    assert engine.ended() == ["b"]


def test_a_queue_that_does_not_answer_ends_nothing(
    engine: SlurmEngine, programs: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (programs / "squeue.fails").touch()
    assert engine.ended() == []
    assert "squeue failed" in caplog.text


def test_stopping_cancels_waiting_jobs_and_lets_running_ones_save(
    engine: SlurmEngine, programs: Path
) -> None:
    engine.stop()
    calls = (programs / "scancel.calls").read_text().splitlines()
    assert calls == [
        "--quiet --state=PENDING 7_0 7_1",
        "--quiet --state=RUNNING --signal=TERM 7_0 7_1",
    ]
    assert engine.ended() == ["a", "b"]


def test_a_first_refusal_is_an_error_and_a_later_one_is_tried_again(
    engine: SlurmEngine, programs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (programs / "sbatch.refuses").touch()
    other = SlurmEngine(Resources(), tmp_path / "other", [])
    other.start(tmp_path / "c", threads=1)
    with pytest.raises(EngineError, match=r"too many jobs.*--max-concurrent"):
        other.ended()
    engine.start(tmp_path / "c", threads=1)
    assert engine.ended() == []
    assert "trying again" in caplog.text
    (programs / "sbatch.refuses").unlink()
    engine.ended()
    assert "c" not in engine.jobs
    engine.submit_at = 0.0
    (programs / "squeue.jobs").write_text("7|RUNNING\n7_0|RUNNING\n7_1|RUNNING\n")
    engine.look_at = 0.0
    assert engine.ended() == []
    assert "c" in engine.jobs


def test_a_driver_within_a_job_hides_that_job_from_its_own_jobs(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "3")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    monkeypatch.setenv("SLURM_CONF", "/somewhere")
    engine = SlurmEngine(Resources(), tmp_path / "sweep", [])
    engine.start(tmp_path / "a", threads=1)
    engine.ended()
    environment = (programs / "sbatch.environment").read_text()
    assert "SLURM_JOB_ID" not in environment
    assert "SLURM_MEM_PER_CPU" not in environment
    assert "SLURM_CONF=/somewhere" in environment
    assert os.environ["SLURM_JOB_ID"] == "3"


def test_a_requeued_job_runs_the_same_cell_again(tmp_path: Path) -> None:
    job = CellJob(3, (tmp_path / "plugin.py",))
    for method in (job.checkpoint, job.__submitit_checkpoint__):
        again = pickle.loads(pickle.dumps(method("a cell")))
        assert again.function == job
        assert again.args == ("a cell",)
