"""Runs in directories: bit-identical after any interruption, loadable at any instant, never two in
one place."""

import dataclasses
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from mtdinterp import (
    CheckpointError,
    LagSpecificMTDTask,
    MTDTask,
    load_checkpoint,
    save_checkpoint,
)
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.training import DivergedError, HeldOut, Recipe
from mtdinterp.training.run import new_run, read_state, resumed_run

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 12
HELD_OUT = HeldOut.prepare(TASK, LENGTH, n_sequences=100, bayes=False)
RECIPE = Recipe(steps=40, batch_size=8, learning_rate=1e-2, evaluate_every=7, save_every=10)


def fresh():
    return DisentangledTransformer(DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2))


def begin(path, recipe=RECIPE):
    return new_run(path, fresh(), TASK, recipe, {"task": 0, "model": 5}, HELD_OUT)


def weights_of(path):
    return load_checkpoint(path).model.state_dict()


def equal(left, right):
    return all(torch.equal(left[name], right[name]) for name in left)


def without_time(history):
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in history]


@pytest.fixture
def uninterrupted(tmp_path):
    with begin(tmp_path / "whole") as run:
        run.train()
    return tmp_path / "whole"


@pytest.mark.parametrize("stop_at", [0, 1, 7, 13, 39])
def test_a_resumed_run_ends_with_the_same_bits(stop_at, tmp_path, uninterrupted):
    with begin(tmp_path / "parts") as run:
        if stop_at:
            run.train(after_step=lambda trainer: trainer.step < stop_at)
    for _ in range(20):  # a few steps at a time to the end
        with resumed_run(tmp_path / "parts", HELD_OUT) as run:
            end = run.trainer.step + 11
            run.train(after_step=lambda trainer, end=end: trainer.step < end)
        if run.trainer.finished:
            break
    assert equal(weights_of(uninterrupted), weights_of(tmp_path / "parts"))
    whole, parts = (load_checkpoint(path).history for path in (uninterrupted, tmp_path / "parts"))
    assert without_time(whole) == without_time(parts)


def test_a_run_on_another_kind_of_task_resumes_with_the_same_bits(tmp_path):
    task = LagSpecificMTDTask.random(3, 2, seed=0)
    held_out = HeldOut.prepare(task, LENGTH, n_sequences=100)
    for name, stop in (("whole", 40), ("parts", 13)):
        with new_run(tmp_path / name, fresh(), task, RECIPE, {"model": 5}, held_out) as run:
            run.train(after_step=lambda trainer, stop=stop: trainer.step < stop)
    with resumed_run(tmp_path / "parts", held_out) as run:
        assert run.trainer.task == task
        assert run.trainer.step == 13
        run.train()
    assert equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts"))
    whole, parts = (load_checkpoint(tmp_path / name) for name in ("whole", "parts"))
    assert without_time(whole.history) == without_time(parts.history)
    assert whole.task == parts.task == task


def test_what_was_trained_after_the_last_save_is_done_again(tmp_path, uninterrupted):
    with begin(tmp_path / "parts") as run:
        run.train(after_step=lambda trainer: trainer.step < 17)
        run.trainer.run(after_step=lambda trainer: trainer.step < 33)  # lost: the process ends here
    with resumed_run(tmp_path / "parts", HELD_OUT) as run:
        assert run.trainer.step == 17
        run.train()
    assert equal(weights_of(uninterrupted), weights_of(tmp_path / "parts"))


COMMAND = [
    sys.executable,
    "-m",
    "mtdinterp",
    "train",
    "--vocab-size",
    "3",
    "--order",
    "2",
    "--length",
    "12",
    "--batch-size",
    "8",
    "--steps",
    "3000",
    "--evaluate-every",
    "50",
    "--save-every",
    "3",
]


def environment(threads=1):
    return {**os.environ, "OMP_NUM_THREADS": str(threads)}


def saved_at(path):
    """When the state was last written, if ever."""
    return (path / "training.pt").stat().st_mtime_ns if (path / "training.pt").exists() else None


MORE_KILLS = pytest.param(6, 2, marks=(pytest.mark.slow, pytest.mark.promise))


@pytest.mark.parametrize(("kills", "threads"), [(3, 1), MORE_KILLS])
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bits(kills, threads, tmp_path):
    subprocess.run(
        [*COMMAND, "--out", str(tmp_path / "whole")],
        env=environment(threads),
        check=True,
        capture_output=True,
    )
    target, rng = tmp_path / "parts", random.Random(0)
    command = [*COMMAND, "--out", str(target)]
    steps = []
    for _ in range(kills):
        before = saved_at(target)
        process = subprocess.Popen(
            command, env=environment(threads), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        while (
            saved_at(target) == before and process.poll() is None
        ):  # it trains, after seconds of importing
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.3))
        process.kill()
        process.wait()
        steps.append(read_state(target)["step"])
        killed = load_checkpoint(target)  # at any instant
        if killed.history:
            assert HeldOut.prepare(killed.task, LENGTH, bayes=False).score(
                killed.model
            ).kl == pytest.approx(killed.history[-1]["kl"], abs=1e-9)
        command = [sys.executable, "-m", "mtdinterp", "train", "--resume", str(target)]
    assert steps == sorted(set(steps))
    assert 0 < steps[-1] < 3000
    subprocess.run(command, env=environment(threads), check=True, capture_output=True)
    assert equal(weights_of(tmp_path / "whole"), weights_of(target))
    assert without_time(load_checkpoint(tmp_path / "whole").history) == without_time(
        load_checkpoint(target).history
    )
    assert {entry.name for entry in target.iterdir()} == {
        "config.json",
        "model.safetensors",
        "training.pt",
        "history.jsonl",
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_being_asked_to_stop_saves_and_says_how_to_go_on(number, tmp_path):
    command = [
        *COMMAND[:-6],
        "--steps",
        "1000000",
        "--evaluate-every",
        "50",
        "--save-every",
        "1000000",
        "--out",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(
        command,
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A shell that starts the tests in the background ignores SIGINT, which is inherited.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    while not (tmp_path / "run" / "config.json").exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.7)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"mtdinterp train --resume {tmp_path / 'run'}" in errors
    step = read_state(tmp_path / "run")["step"]
    assert step > 0
    assert f"step {step} of 1000000" in output


LOSE_THE_TERMINAL = """
import os, pty, signal, sys, time
command = sys.argv[1:]
process, terminal = pty.fork()
if process == 0:
    # Tests that run under nohup inherit that the signal is ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.execv(command[0], command)
os.set_blocking(terminal, False)
seen = b""
while b"steps/s" not in seen:
    time.sleep(0.02)
    try:
        seen += os.read(terminal, 65536)
    except BlockingIOError:
        pass
os.close(terminal)
print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def test_losing_the_terminal_saves(tmp_path):
    """With the live line: writing it to a terminal that is gone must not get in the way."""
    command = [
        *COMMAND[:-6],
        "--steps",
        "1000000",
        "--evaluate-every",
        "1000000",
        "--save-every",
        "1000000",
        "--out",
        str(tmp_path / "run"),
    ]
    command[command.index("--batch-size") + 1] = (
        "20000"  # a step takes longer than the line's interval
    )
    result = subprocess.run(
        [sys.executable, "-c", LOSE_THE_TERMINAL, *command],
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.stdout.strip() == str(128 + signal.SIGHUP)
    assert read_state(tmp_path / "run")["step"] > 0


def test_two_runs_never_write_to_one_directory(tmp_path):
    with begin(tmp_path / "run"):
        with pytest.raises(CheckpointError, match="another run is writing to this directory"):
            resumed_run(tmp_path / "run", HELD_OUT).__enter__()
        (
            tmp_path / "run" / "training.pt"
        ).unlink()  # not even where it looks like a checkpoint and no more
        with pytest.raises(CheckpointError, match="another run is writing to this directory"):
            save_checkpoint(tmp_path / "run", fresh(), TASK)
        with pytest.raises(CheckpointError, match="new or empty directory"):
            begin(tmp_path / "run").__enter__()


def test_two_runs_that_begin_at_once_do_not_share(tmp_path):
    outcomes, barrier = [], threading.Barrier(4)

    def attempt():
        barrier.wait()
        try:
            with begin(tmp_path / "run"):
                outcomes.append("began")
                barrier.wait(10)
        except CheckpointError:
            outcomes.append("refused")
            barrier.wait(10)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["began", "refused", "refused", "refused"]


def test_a_run_is_not_replaced_by_a_checkpoint(stopped):
    with pytest.raises(CheckpointError, match="contains a run that can be resumed"):
        save_checkpoint(stopped, fresh(), TASK)
    resuming(stopped)


@pytest.fixture
def stopped(tmp_path):
    with begin(tmp_path / "run") as run:
        run.train(after_step=lambda trainer: trainer.step < 8)
    return tmp_path / "run"


def resuming(path):
    with resumed_run(path, HELD_OUT) as run:
        return run


def test_a_truncated_state_is_one_clear_error(stopped):
    content = (stopped / "training.pt").read_bytes()
    for size in (0, 10, len(content) // 2, len(content) - 1):
        (stopped / "training.pt").write_bytes(content[:size])
        with pytest.raises(CheckpointError, match=r"training\.pt: damaged"):
            resuming(stopped)
    (stopped / "training.pt").unlink()
    with pytest.raises(CheckpointError, match=r"training\.pt: missing"):
        resuming(stopped)


def test_a_state_of_another_version_is_refused(stopped):
    state = torch.load(stopped / "training.pt", weights_only=True)
    for foreign in ({**state, "schema": 99}, [1, 2, 3]):
        torch.save(foreign, stopped / "training.pt")
        with pytest.raises(CheckpointError, match="of checkpoint schema"):
            resuming(stopped)


def test_a_state_of_another_run_is_refused(stopped, tmp_path):
    with new_run(tmp_path / "other", fresh(), TASK, RECIPE, {"task": 0, "model": 6}, HELD_OUT):
        pass
    shutil.copy(tmp_path / "other" / "training.pt", stopped / "training.pt")
    with pytest.raises(CheckpointError, match="belongs to another config"):
        resuming(stopped)


def test_a_changed_recipe_is_noticed(stopped):
    config = json.loads((stopped / "config.json").read_text())
    config["recipe"]["steps"] = 100
    (stopped / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="belongs to another config"):
        resuming(stopped)


@pytest.mark.parametrize("file", ["history", "weights"])
def test_a_kill_between_the_files_of_a_save_tears_nothing_apart(
    file, tmp_path, uninterrupted, monkeypatch
):
    """The evaluation of step 28 is in one file and not in the other: neither in what is loaded, nor
    lost."""
    with begin(tmp_path / "parts") as run:
        run.train(after_step=lambda trainer: trainer.step < 27)

        def killed(*arguments):
            raise SystemExit

        monkeypatch.setattr(f"mtdinterp.training.run.write_{file}", killed)
        with pytest.raises(SystemExit):
            run.train()
        monkeypatch.undo()
    killed_run = load_checkpoint(tmp_path / "parts")
    assert killed_run.history[-1]["step"] == 21
    assert HELD_OUT.score(killed_run.model).kl == pytest.approx(
        killed_run.history[-1]["kl"], abs=1e-12
    )
    with resumed_run(tmp_path / "parts", HELD_OUT) as run:
        assert run.trainer.step == 27
        run.train()
    whole, parts = (load_checkpoint(path).history for path in (uninterrupted, tmp_path / "parts"))
    assert without_time(whole) == without_time(parts)


def test_a_run_that_goes_back_does_not_tear_them_apart_either(tmp_path, monkeypatch):
    """The state is older than the last evaluation: until it is overtaken, what is loaded is that
    evaluation."""
    with begin(tmp_path / "run", dataclasses.replace(RECIPE, save_every=1000)) as run:
        state = (tmp_path / "run" / "training.pt").read_bytes()
        run.train(after_step=lambda trainer: trainer.step < 30)
    (tmp_path / "run" / "training.pt").write_bytes(state)
    with resumed_run(tmp_path / "run", HELD_OUT) as run:
        monkeypatch.setattr("mtdinterp.training.run.write_weights", lambda *arguments: sys.exit())
        with pytest.raises(SystemExit):
            run.train()
    loaded = load_checkpoint(tmp_path / "run")
    assert loaded.history[-1]["step"] == 28
    assert HELD_OUT.score(loaded.model).kl == pytest.approx(loaded.history[-1]["kl"], abs=1e-12)


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    wild = dataclasses.replace(RECIPE, learning_rate=1e30, schedule="constant", save_every=1)
    with (
        begin(tmp_path / "run", wild) as run,
        pytest.raises(DivergedError, match="try a smaller learning rate"),
    ):
        run.train()
    assert all(tensor.isfinite().all() for tensor in weights_of(tmp_path / "run").values())
    resuming(tmp_path / "run")


def test_what_is_loaded_is_the_model_of_the_last_line_of_its_history(tmp_path):
    with begin(tmp_path / "run") as run:
        run.train(after_step=lambda trainer: trainer.step < 17)  # between two evaluations
        assert read_state(tmp_path / "run")["step"] == 17
        loaded = load_checkpoint(tmp_path / "run")
        assert loaded.history[-1]["step"] == 14
        assert HELD_OUT.score(loaded.model).kl == pytest.approx(loaded.history[-1]["kl"], abs=1e-12)


def test_slow_steps_are_saved_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr("mtdinterp.training.run.SAVE_SECONDS", 0.0)
    seen = []
    with begin(tmp_path / "run", dataclasses.replace(RECIPE, save_every=1000)) as run:
        run.train(
            after_step=lambda trainer: (
                seen.append(read_state(tmp_path / "run")["step"]) or trainer.step < 5
            )
        )
    assert seen == [1, 2, 3, 4, 5]


VARIANTS = {
    "sampled": {"targets": "sampled", "schedule": "constant"},
    "all positions": {"supervision": "all", "warmup": 9, "initialisation": "torch"},
    "micro-batches": {"micro_batch_size": 3, "adam_betas": (0.8, 0.9)},
    "two rates": {"later_rate": 0.3},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_recipe_resumes_with_the_same_bits(changes, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr("mtdinterp.training.data.CHUNK_TOKENS", 7 * 8 * LENGTH)  # several chunks
    recipe = dataclasses.replace(RECIPE, **changes)
    for name, stops in (("whole", [40]), ("parts", [11, 26, 40])):
        with new_run(
            tmp_path / name, fresh().to(dtype), TASK, recipe, {"model": 3}, HELD_OUT
        ) as run:
            run.train(after_step=lambda trainer, stops=stops: trainer.step < stops[0])
        for stop in stops[1:]:
            with resumed_run(tmp_path / name, HELD_OUT) as run:
                run.train(after_step=lambda trainer, stop=stop: trainer.step < stop)
    assert {tensor.dtype for tensor in weights_of(tmp_path / "parts").values()} == {dtype}
    assert equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts"))
    whole, parts = (load_checkpoint(tmp_path / name).history for name in ("whole", "parts"))
    assert without_time(whole) == without_time(parts)


def test_predictions_that_overflow_are_divergence(tmp_path):
    wild = dataclasses.replace(RECIPE, learning_rate=1e25, schedule="constant", steps=1)
    with begin(tmp_path / "run", wild) as run, pytest.raises(DivergedError, match="not finite"):
        run.train()
    resuming(tmp_path / "run")


def test_another_number_of_threads_is_said(stopped, caplog):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        resuming(stopped)
    finally:
        torch.set_num_threads(before)
    assert "its last bits will differ" in caplog.text


def test_a_run_follows_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        with begin(tmp_path / "run"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


class Hostile:
    def __reduce__(self):
        return os.system, (f"touch {self.witness}",)


def test_a_hostile_pickle_executes_nothing(stopped, tmp_path):
    Hostile.witness = tmp_path / "witness"
    for content in (
        {"schema": 1, "step": Hostile()},
        {**read_state(stopped), "seconds": Hostile()},
        Hostile(),
    ):
        torch.save(content, stopped / "training.pt")
        with pytest.raises(
            CheckpointError, match=r"training\.pt: damaged, or not written by mtdinterp"
        ):
            resuming(stopped)
        (stopped / "training.pt").write_bytes(pickle.dumps(content))
        with pytest.raises(
            CheckpointError, match=r"training\.pt: damaged, or not written by mtdinterp"
        ):
            resuming(stopped)
        load_checkpoint(stopped)  # does not look at it
    assert not (tmp_path / "witness").exists()


def test_a_flipped_bit_in_the_state_is_noticed(stopped):
    content = (stopped / "training.pt").read_bytes()
    good = read_state(stopped)
    noticed = 0
    for place in range(0, len(content), len(content) // 200):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (stopped / "training.pt").write_bytes(bytes(damaged))
        try:
            state = read_state(stopped)
        except CheckpointError:
            noticed += 1
            continue
        # What is left are bits that say nothing: times of the archive's entries, padding between
        # them.
        assert equal(state["model"], good["model"])
        assert state["history"] == good["history"]
    assert noticed > 150


def test_history_and_config_tell_how_it_came_to_be(uninterrupted):
    loaded = load_checkpoint(uninterrupted)
    assert Recipe.from_dict(loaded.config["recipe"]) == RECIPE
    assert loaded.config["seeds"] == {"task": 0, "model": 5}
    assert [entry["step"] for entry in loaded.history] == [0, 7, 14, 21, 28, 35, 40]
    assert loaded.history[-1]["kl"] == pytest.approx(HELD_OUT.score(loaded.model).kl, abs=1e-9)
    json.dumps(loaded.history)


def test_finished_runs_stay_as_they_are(uninterrupted):
    before = weights_of(uninterrupted)
    with resumed_run(uninterrupted, HELD_OUT) as run:
        assert run.trainer.finished
        run.train()
    assert equal(before, weights_of(uninterrupted))


def test_another_recipe_is_another_run(tmp_path, uninterrupted):
    with begin(tmp_path / "other", dataclasses.replace(RECIPE, learning_rate=5e-3)) as run:
        run.train()
    assert not equal(weights_of(uninterrupted), weights_of(tmp_path / "other"))
