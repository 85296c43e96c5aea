"""Readings of untrained models: no start of any architecture looks like a mechanism."""

import pytest
import torch

from mtdinterp.readings import read
from mtdinterp.registry import ARCHITECTURES
from mtdinterp.tasks import MTDTask

LENGTH = 40
STARTS = []
for name, architecture in ARCHITECTURES.items():
    STARTS.extend((name, start) for start in architecture.starts)


@pytest.mark.parametrize(("name", "start"), STARTS)
def test_an_untrained_model_is_undecided(name, start):
    task = MTDTask.random(5, 4, seed=0)
    architecture = ARCHITECTURES[name]
    model = architecture.new_model(5, LENGTH, n_components=4)
    torch.manual_seed(0)
    with torch.no_grad():
        architecture.starts[start](model)
    reading = read(model, task, task.sample(128, LENGTH, seed=1).tokens)
    assert reading.branch == "undecided"
    assert reading.gain.r2 < 0.1
