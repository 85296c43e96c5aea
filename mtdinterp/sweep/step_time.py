"""Measure on this machine how long the parts of a cell take, in a process of their own.

`python -m mtdinterp.sweep.step_time` reads a request as JSON from standard input and writes the
answer as JSON to standard output; `estimating` starts it, with the cell's number of threads.

All times are those of a machine that does nothing else: the smaller of the time that passed and of
the processor time. What would take many seconds is measured on fewer sequences and scaled, and
`scaled` says so.
"""

import contextlib
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import torch

from mtdinterp.bench.measure import peak_megabytes
from mtdinterp.checkpoints import load_checkpoint, save_checkpoint
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.mirror_descent import tune_learning_rate
from mtdinterp.evidence import Evidence
from mtdinterp.plugins import load_plugin
from mtdinterp.registry import ESTIMATORS
from mtdinterp.sweep.cells import CHECKPOINT, Cell
from mtdinterp.sweep.costs import Parts
from mtdinterp.sweep.measuring import measured
from mtdinterp.sweep.running import new_model
from mtdinterp.tasks import Task, task_from_dict
from mtdinterp.training import HeldOut, Recipe, Trainer, initialise
from mtdinterp.training.data import Batch, targets_of
from mtdinterp.training.evaluation import MIRROR_DESCENT_STEPS, held_out_data, n_bayes

STEP_SECONDS = 1.0
"""Steps are timed for so long."""
LEAST_STEPS = 3
MOST_SECONDS = 2.5
"""A part that would take longer is measured on fewer sequences."""
DRAWN_TOKENS = 2**18
FEW = 8
TUNING_SEQUENCES = 5000
"""What `tune_learning_rate` draws."""
SAFE_RATE = 1e-9
"""Steps at any usual learning rate take as long, and these cannot diverge."""


def measured_parts(cell: Cell, probed_lengths: list[int]) -> Parts:
    """Measure all parts of a cell.

    Args:
        cell: the cell.
        probed_lengths: lengths at which probes and report are timed, on an untrained model.

    Returns:
        The parts.
    """
    stopwatch = Stopwatch()
    parts = Parts(startup=time.process_time())
    task = task_from_dict(cell.task)
    recipe = replace(Recipe.from_dict(cell.recipe), learning_rate=SAFE_RATE)
    length = cell.model["length"]
    model = new_model(cell)
    initialise(model, recipe.initialisation, cell.seeds["model"])
    held_out = HeldOut(task, held_out_data(task, length), {}, None)
    trainer = Trainer(model, task, recipe, cell.seeds["model"], held_out)
    _measure_steps(trainer, parts, stopwatch)
    _measure_evaluation(trainer, parts, stopwatch)
    _measure_preparation(task, length, parts, stopwatch)
    for probed in probed_lengths:
        shorter = replace(cell, model={**cell.model, "length": probed})
        probe = _probing_of(shorter, task)
        # Only at the cell's own length does the memory say something about the cell.
        timed = stopwatch.weigh if probed == length else stopwatch.time
        parts.probing[probed] = timed(probe)
    parts.megabytes = stopwatch.base_megabytes + stopwatch.peak_megabytes
    parts.load = stopwatch.passed / max(stopwatch.seconds, 1e-9)
    return parts


class Stopwatch:
    """Times actions, and keeps the largest rise of memory."""

    def __init__(self) -> None:
        self.base_megabytes = highest_megabytes()
        self.peak_megabytes = 0.0
        self.passed = 0.0
        self.seconds = 0.0

    def time(self, action: Callable[[], object]) -> float:
        """The seconds that an action takes.

        Returns:
            The smaller of the time that passed and of the processor time. Other programs lengthen
            the first, several threads the second.
        """
        started, worked = time.perf_counter(), time.process_time()
        action()
        passed = time.perf_counter() - started
        seconds = min(passed, time.process_time() - worked)
        self.passed += passed
        self.seconds += seconds
        return seconds

    def weigh(self, action: Callable[[], object], scale: float = 1.0) -> float:
        """The seconds that an action takes, as in `time`; the rise of memory is noted.

        It takes milliseconds more than `time`, and slows what follows.

        Args:
            action: what to time.
            scale: how many times more memory the full action needs.

        Returns:
            The seconds.
        """
        before = highest_megabytes()
        found: list[float] = []
        rise = peak_megabytes(lambda: found.append(self.time(action)))
        if rise is None:
            rise = highest_megabytes() - before
        self.peak_megabytes = max(self.peak_megabytes, rise * scale)
        return found[0]


def highest_megabytes() -> float:
    """The most memory that this process has used so far."""
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, Linux kilobytes.
    return highest / (2**20 if sys.platform == "darwin" else 2**10)


def _measure_steps(trainer: Trainer, parts: Parts, stopwatch: Stopwatch) -> None:
    """The time of a step: of the update, and of drawing the sequences.

    Sequences are drawn by a second thread. Where all processors run cells, that takes as much time
    from a cell as if it were done in the same thread.
    """
    recipe, task = trainer.recipe, trainer.task
    length = trainer.model.config.length
    n_drawn = max(recipe.batch_size, DRAWN_TOKENS // length)
    drawn: list[Batch] = []

    def draw() -> None:
        data = task.sample(n_drawn, length, seed=0)
        targets = targets_of(task, data, recipe)
        drawn.append(Batch(data.tokens.contiguous(), targets))

    drawing = stopwatch.weigh(draw) * recipe.batch_size / n_drawn

    def updating(n_sequences: int) -> Callable[[], object]:
        size = min(recipe.micro_batch_size or n_sequences, n_sequences)
        trainer.recipe = replace(recipe, micro_batch_size=size)
        batch = Batch(drawn[0].tokens[:n_sequences], drawn[0].targets[:n_sequences])
        return lambda: trainer.take_step(batch)

    few = min(recipe.batch_size, FEW * torch.get_num_threads())
    update = updating(few)
    update()  # the first step compiles and reserves memory
    guess = stopwatch.time(update) / few
    n_sequences = recipe.batch_size
    while n_sequences > few and guess * n_sequences * (LEAST_STEPS + 1) > MOST_SECONDS:
        n_sequences = max(few, n_sequences // 2)
    if n_sequences < recipe.batch_size:
        parts.scaled.append(f"steps ({n_sequences} of {recipe.batch_size} sequences)")
    share = n_sequences / recipe.batch_size
    update = updating(n_sequences)
    once = stopwatch.weigh(update, 1.0 if recipe.micro_batch_size else 1 / share)
    repeats = max(LEAST_STEPS, min(1000, int(STEP_SECONDS / max(once, 1e-4))))
    updating_seconds = median(stopwatch.time(update) for _ in range(repeats))
    parts.step = updating_seconds / share + drawing
    trainer.recipe = recipe


def _measure_evaluation(trainer: Trainer, parts: Parts, stopwatch: Stopwatch) -> None:
    """The time of an evaluation: of scoring all held-out sequences, and of reading the model."""
    full = trainer.held_out
    n_sequences = len(full.data.tokens)
    few = min(n_sequences, FEW * FEW)
    data = held_out_data(full.task, trainer.model.config.length, few)
    some = HeldOut(full.task, data, {}, None)
    stopwatch.time(lambda: some.score(trainer.model))
    scoring = stopwatch.weigh(lambda: some.score(trainer.model))
    if scoring * n_sequences / few <= MOST_SECONDS:
        parts.evaluation = stopwatch.weigh(trainer.evaluate)
        return
    trainer.held_out = some
    both = stopwatch.weigh(trainer.evaluate)
    parts.evaluation = both + scoring * (n_sequences / few - 1)
    parts.scaled.append(f"evaluation ({few} of {n_sequences} sequences)")
    trainer.held_out = full


def _measure_preparation(task: Task, length: int, parts: Parts, stopwatch: Stopwatch) -> None:
    """The time of `HeldOut.prepare`, from fewer sequences if it takes long."""
    few = TUNING_SEQUENCES // 50
    trial = stopwatch.time(partial(_tune, task, length, 1, few))
    if trial * TUNING_SEQUENCES / few * 3 <= MOST_SECONDS:
        parts.preparation = stopwatch.weigh(lambda: HeldOut.prepare(task, length))
        return
    some = TUNING_SEQUENCES // 10 if trial * 10 <= MOST_SECONDS else few
    scale = TUNING_SEQUENCES / some
    for steps in MIRROR_DESCENT_STEPS.values():
        tuning = partial(_tune, task, length, steps, some)
        parts.preparation += scale * stopwatch.weigh(tuning, scale)
    n_averaged = min(n_bayes(task.n_components), len(held_out_data(task, length).tokens))
    evidence = task.evidence(held_out_data(task, length, FEW).tokens)
    averaging = stopwatch.weigh(partial(_average, evidence))
    parts.preparation += averaging * n_averaged / FEW
    parts.scaled.append(
        f"preparation ({some} of {TUNING_SEQUENCES} sequences, and {FEW} of {n_averaged} for the "
        "exact posterior mean)"
    )


def _tune(task: Task, length: int, steps: int, n_sequences: int) -> None:
    # So few sequences may not determine the rate, which takes as long.
    with contextlib.suppress(CannotCompute):
        tune_learning_rate(task, length, steps, n_sequences=n_sequences)


def _average(evidence: Evidence) -> None:
    # A new object each time, because the estimator keeps its answer for one that it knows.
    ESTIMATORS["exact_bayes"].weights(evidence[:])


def _probing_of(cell: Cell, task: Task) -> Callable[[], object]:
    """An action that measures everything that a cell asks for, of an untrained model."""
    recipe = Recipe.from_dict(cell.recipe)
    model = new_model(cell)
    initialise(model, recipe.initialisation, cell.seeds["model"])
    data = held_out_data(task, cell.model["length"], FEW * FEW)
    held_out = HeldOut(task, data, {}, None)
    history = [Trainer(model, task, recipe, 0, held_out).evaluate()]

    def probe() -> None:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            save_checkpoint(
                directory / CHECKPOINT,
                model,
                task,
                recipe=recipe.to_dict(),
                seeds=dict(cell.seeds),
                history=history,
            )
            checkpoint = load_checkpoint(directory / CHECKPOINT)
            measured(checkpoint, cell, held_out, directory, lambda stage: None)

    return probe


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.stdin.buffer.read())
    for path in request["plugins"]:
        load_plugin(path)
    cell = Cell.from_dict(request["cell"])
    torch.set_num_threads(cell.threads)
    parts = measured_parts(cell, request["probed_lengths"])
    parts.worked = time.process_time()
    print(json.dumps(parts.to_dict()))


if __name__ == "__main__":
    main()
