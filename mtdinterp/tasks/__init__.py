"""Processes that emit sequences: one file per task, found by listing this package."""

from collections.abc import Mapping
from typing import Any

from mtdinterp.matrix_files import read_transition
from mtdinterp.providers import failures_named
from mtdinterp.registry import TASKS
from mtdinterp.tasks.base import HasTransition, Sample, Task, Variant, require_transition
from mtdinterp.tasks.lags import LagTask
from mtdinterp.tasks.mtd import MTDTask

__all__ = [
    "HasTransition",
    "LagTask",
    "MTDTask",
    "Sample",
    "Task",
    "Variant",
    "read_transition",
    "require_transition",
    "task_from_dict",
]


def task_from_dict(values: Mapping[str, Any]) -> Task:
    """The task that `Task.to_dict` described; without a "kind" it is an MTD task."""
    entries = dict(values)
    kind = entries.pop("kind", MTDTask.name)
    if not isinstance(kind, str):
        raise ValueError(f"task: expected its kind to be a name, got {kind!r:.60}")
    task = TASKS[kind]
    with failures_named("task", kind, TASKS.provider(kind)):
        return task.from_dict(entries)
