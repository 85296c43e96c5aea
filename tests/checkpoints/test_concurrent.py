"""A reader next to a writer never sees an error, whatever happens to the writer."""

import contextlib
import os
import random
import signal
import time
import traceback

import pytest
from faults.injection import without_exchange

from mtdinterp import MTDTask, load_checkpoint, save_checkpoint
from mtdinterp.construction import one_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.run import new_run, resumed_run

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 12
HELD_OUT = HeldOut.prepare(TASK, LENGTH, n_sequences=32, bayes=False)
RECIPE = Recipe(
    steps=2000, batch_size=2, learning_rate=1e-3, evaluate_every=2, save_every=3, warmup=10
)
LOADS_PER_KILL = 100
LOADS_PER_RUN = 500
"""A new run is begun after so many loads, because a long history takes long to read."""
ALL_LOADS = pytest.param(10_000, marks=(pytest.mark.slow, pytest.mark.promise))


def train(path):
    """Begin a run, or resume it, and train until killed."""
    if path.exists():
        running = resumed_run(path, HELD_OUT)
    else:
        config = DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2)
        model = DisentangledTransformer(config)
        running = new_run(path, model, TASK, RECIPE, {"model": 0}, HELD_OUT)
    with running as run:
        run.train()


def replace_again_and_again(path):
    """Replace a checkpoint by another one with a different configuration, until killed."""
    histories = ([], [{"step": 4, "kl": 0.5}])
    while True:
        for length, history in zip((LENGTH, 2 * LENGTH), histories, strict=True):
            model = one_step(TASK.transition, TASK.order, length, 3.0)
            save_checkpoint(path, model, TASK, seeds={"length": length}, history=history)


@pytest.fixture(scope="module", autouse=True)
def _warm(tmp_path_factory):
    """Train a few steps here, because a forked writer would spend its short life on imports."""
    path = tmp_path_factory.mktemp("warm") / "run"
    config = DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2)
    model = DisentangledTransformer(config)
    with new_run(path, model, TASK, RECIPE, {"model": 0}, HELD_OUT) as run:
        run.train(after_step=lambda trainer: trainer.step < 4)


class Writer:
    """A process that writes to a path, and can be killed and started again."""

    def __init__(self, work, path):
        self.work = work
        self.path = path
        self.start()

    def start(self):
        self.process = os.fork()
        if self.process == 0:
            try:
                self.work(self.path)
            except BaseException:
                traceback.print_exc()
            os._exit(1)

    def kill(self):
        """Kill the process, which must still be writing."""
        os.kill(self.process, signal.SIGKILL)
        _, status = os.waitpid(self.process, 0)
        assert os.WIFSIGNALED(status), "the writer failed by itself"


@contextlib.contextmanager
def writing(work, path):
    writer = Writer(work, path)
    try:
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, "the writer did not start"
            time.sleep(0.01)
        yield writer
    finally:
        writer.kill()


def load_beside(work, path, n_loads, check):
    """Load a checkpoint again and again, while its writer is killed and started again."""
    pause = random.Random(0)
    with writing(work, path) as writer:
        for number in range(n_loads):
            check(load_checkpoint(path))
            if number % LOADS_PER_KILL == LOADS_PER_KILL - 1:
                time.sleep(pause.random() / 50)
                writer.kill()
                check(load_checkpoint(path))
                writer.start()


@pytest.mark.parametrize("n_loads", [200, ALL_LOADS])
def test_loading_a_run_that_trains_saves_dies_and_resumes(n_loads, tmp_path):
    newest = 0

    def check(checkpoint):
        nonlocal newest
        steps = [entry["step"] for entry in checkpoint.history]
        assert steps == list(range(0, 2 * len(steps), 2))
        newest = max([newest, *steps])

    done = 0
    while done < n_loads:
        count = min(LOADS_PER_RUN, n_loads - done)
        load_beside(train, tmp_path / f"run-{done}", count, check)
        done += count
    assert newest > 0


@pytest.mark.parametrize("n_loads", [200, ALL_LOADS])
@pytest.mark.parametrize("system", [contextlib.nullcontext, without_exchange])
def test_loading_a_checkpoint_that_is_replaced_again_and_again(system, n_loads, tmp_path):
    seen = set()

    def check(checkpoint):
        length = checkpoint.model.config.length
        assert checkpoint.config["seeds"]["length"] == length
        assert len(checkpoint.history) == (0 if length == LENGTH else 1)
        seen.add(length)

    with system():
        load_beside(replace_again_and_again, tmp_path / "model", n_loads // 2, check)
    assert seen == {LENGTH, 2 * LENGTH}
    left = [path.name for path in tmp_path.iterdir()]
    assert len(left) <= 3, "what one killed writer leaves, the next one removes"
