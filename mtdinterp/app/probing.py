"""Probes on demand: every registered probe, and the verdict, on a checkpoint of the list.

A probe takes seconds to minutes. It works on a copy of the model, so that it neither sees the
hooks of other runs nor waits for them; only one probe runs at a time.
"""

import copy
import threading
from dataclasses import replace

from mtdinterp.checkpoints import Checkpoint
from mtdinterp.errors import CannotCompute
from mtdinterp.registry import PROBES
from mtdinterp.report.collect import collect_probes
from mtdinterp.report.judge import judge
from mtdinterp.results import origin_of

VERDICT = "verdict"
"""The name under which the page requests the judgement on all probes together."""


def known_probes() -> dict[str, str]:
    """Labels of the verdict and of every registered probe, by name."""
    labels = {VERDICT: "the verdict on all probes together"}
    return labels | {name: probe.label for name, probe in PROBES.items()}


class ProbeRunner:
    """Runs one probe at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def summary(self, name: str, checkpoint: Checkpoint) -> str:
        """Run a probe with its default settings, or judge all of them.

        Args:
            name: the name of a registered probe, or `VERDICT`.
            checkpoint: a copy that nothing else uses; see `private_copy`.

        Returns:
            The summary of the result, or the sentences of the verdict.

        Raises:
            CannotCompute: if the probe has no answer for this model or task.
        """
        with self._lock:
            if name == VERDICT:
                return "\n".join(judge(collect_probes(checkpoint)).sentences)
            # With the model's explanation, as in the report, so that both show the same fits.
            findings = collect_probes(checkpoint, [name])
            if name in findings.not_computed:
                raise CannotCompute(findings.not_computed[name])
            result = findings.probes[name]
            origin = origin_of(result)
            return result.summary() + (f"\n({origin})" if origin else "")


def private_copy(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a copy of its model."""
    return replace(checkpoint, model=copy.deepcopy(checkpoint.model))
