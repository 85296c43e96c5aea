"""Models whose answer is known."""

import pytest

from mtdinterp.construction import one_step, one_step_standard
from mtdinterp.tasks import MTDTask

LENGTH = 48
CASES = [(2, 1.0), (3, 60.0), (4, 16.0), (5, 8.0)]


@pytest.fixture(params=CASES, ids=lambda case: f"m{case[0]}-β{case[1]:g}")
def case(request):
    """A task and a β."""
    order, beta = request.param
    return MTDTask.random(5, order, seed=order), beta


@pytest.fixture(params=[one_step, one_step_standard], ids=["disentangled", "standard"])
def constructed(request, case):
    """A constructed model, its task and its β."""
    task, beta = case
    return request.param(task.transition, task.order, LENGTH, beta), task, beta
