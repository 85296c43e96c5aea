"""Probes on demand: every registered probe can be run on a checkpoint of the list.

A probe takes seconds to minutes. It works on a copy of the model, so that it neither sees the
hooks of other runs nor waits for them; only one probe runs at a time.
"""

import copy
import threading
from dataclasses import replace
from typing import Any

from mtdinterp.checkpoints import Checkpoint
from mtdinterp.plugins import Probe
from mtdinterp.readings import predictions_of
from mtdinterp.registry import PROBES


def known_probes() -> list[dict[str, str]]:
    """Name and label of every registered probe."""
    return [{"name": probe.name, "label": probe.label} for probe in PROBES.values()]


class ProbeRunner:
    """Runs one probe at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def summary(self, probe: Probe, checkpoint: Checkpoint) -> str:
        """Run a probe with its default settings.

        Args:
            probe: one of the registered ones.
            checkpoint: a copy that nothing else uses; see `private_copy`.

        Returns:
            The summary of the result.

        Raises:
            CannotCompute: if the probe has no answer for this model or task.
        """
        with self._lock:
            return _result(probe, checkpoint).summary()


def private_copy(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a copy of its model."""
    return replace(checkpoint, model=copy.deepcopy(checkpoint.model))


def _result(probe: Probe, checkpoint: Checkpoint) -> Any:
    """The result of a probe, called with what it needs."""
    model = checkpoint.model
    if probe.needs == "checkpoint":
        return probe.function(checkpoint)
    if probe.needs == "model":
        return probe.function(model, checkpoint.task)
    return probe.function(
        lambda tokens: predictions_of(model, tokens),
        checkpoint.task,
        length=model.config.length,
    )
