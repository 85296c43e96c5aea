"""Probes on demand: every registered probe, and the verdict, on a checkpoint of the list.

What a probe returns is shown as in the report: a table of its claims, then its blocks. The HTML is
made by `pages`, which escapes all text, so that nothing in a plugin's labels, claims or blocks
becomes markup.

A probe takes seconds to minutes. It works on a copy of the model, so that it neither sees the
hooks of other runs nor waits for them; only one probe runs at a time.
"""

import copy
import threading
from dataclasses import replace
from typing import Any

from mtdinterp.checkpoints import Checkpoint
from mtdinterp.errors import CannotCompute
from mtdinterp.pages.blocks import Block, Text
from mtdinterp.pages.page import panel
from mtdinterp.registry import PROBES
from mtdinterp.report.collect import collect_probes
from mtdinterp.report.document import answer_blocks, claims_table, own_blocks
from mtdinterp.report.findings import result_claims
from mtdinterp.report.judge import judge
from mtdinterp.results import origin_of

VERDICT = "verdict"
"""The name under which the page requests the judgement on all probes together."""


def known_probes() -> dict[str, str]:
    """Labels of the verdict and of every registered probe, by name."""
    labels = {VERDICT: "What do all probes say together?"}
    return labels | {name: probe.label for name, probe in PROBES.items()}


class ProbeRunner:
    """Runs one probe at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def answer(self, name: str, checkpoint: Checkpoint) -> dict[str, str]:
        """Run a probe with its default settings, or judge all of them.

        Args:
            name: the name of a registered probe, or `VERDICT`.
            checkpoint: a copy that nothing else uses; see `private_copy`.

        Returns:
            `summary`, plain text: the result's summary, or the sentences of the verdict; and
            `html`: its claims and blocks as one element.

        Raises:
            CannotCompute: if the probe has no answer for this model or task.
        """
        with self._lock:
            if name == VERDICT:
                findings = collect_probes(checkpoint)
                verdict = judge(findings)
                blocks = [*answer_blocks(findings, verdict), claims_table(verdict.claims)]
                return {"summary": "\n".join(verdict.sentences), "html": panel(blocks)}
            # With the model's explanation, as in the report, so that both show the same fits.
            findings = collect_probes(checkpoint, [name])
            if name in findings.not_computed:
                raise CannotCompute(findings.not_computed[name])
            result = findings.probes[name]
            summary = _summary(result)
            return {"summary": summary, "html": panel(_result_blocks(result, summary))}


def _summary(result: Any) -> str:
    """A result's summary with the sequences it comes from."""
    origin = origin_of(result)
    return result.summary() + (f"\n({origin})" if origin else "")


def _result_blocks(result: Any, summary: str) -> list[Block]:
    """A result's claims, its blocks, and its summary folded away."""
    claims = result_claims(result)
    blocks: list[Block] = [claims_table(claims)] if claims else []
    own = own_blocks(result)
    folded = "As text" if own else ""
    return [*blocks, *own, Text((summary,), "code", folded)]


def private_copy(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with a copy of its model."""
    return replace(checkpoint, model=copy.deepcopy(checkpoint.model))
