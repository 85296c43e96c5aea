"""Findings are expensive to collect, so each model is measured once per process."""

import pytest

from mtdinterp import MTDTask, load_checkpoint, save_checkpoint
from mtdinterp.construction import one_step
from mtdinterp.estimators import tune_learning_rate
from mtdinterp.report import collect

HOSTILE = "<script>document.title = 'taken'<|`*$\\\\bad$"
"""What somebody else's checkpoint might be called."""


@pytest.fixture(scope="session")
def task():
    return MTDTask.random(5, 3, seed=0)


@pytest.fixture(scope="session")
def construction(tmp_path_factory, task):
    """A construction with a hostile name, and with the training history of another model."""
    history = load_checkpoint("disentangled-m4-T64").history
    model = one_step(task.transition, 3, 24, tune_learning_rate(task, 24).beta)
    path = save_checkpoint(
        tmp_path_factory.mktemp("models") / HOSTILE, model, task, history=history
    )
    return collect(load_checkpoint(path))


@pytest.fixture(scope="session")
def mirrored():
    return collect(load_checkpoint("disentangled-m4-T64-mirrored"))
