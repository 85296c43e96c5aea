"""A report on disk: the page or the Markdown, and all its numbers as JSON next to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtdinterp.checkpoints.save import versions
from mtdinterp.interventions.interchange import Interchange
from mtdinterp.interventions.transplants import Transplant
from mtdinterp.pages.markdown import write_markdown
from mtdinterp.pages.page import render
from mtdinterp.report.document import compose
from mtdinterp.report.findings import Findings, with_distinct_names
from mtdinterp.report.judge import Verdict, judge
from mtdinterp.results import to_plain
from mtdinterp.storage import write_file

SHORT_NAMES = {
    "recover_transition": "transition",
    "recover_beta": "beta",
    "compare_attention": "attention",
    "decode_latents": "latents",
    "identify_algorithm": "algorithm",
    "trace_development": "development",
}
"""Keys that some probes have had in report.json since before probes were registered; any other
probe is found under its own name."""


def write_report(findings: Sequence[Findings], path: Path, command: str = "") -> tuple[Path, Path]:
    """Write report.html, or report.md with its figures, and report.json.

    The page is written last. An interrupted call therefore never leaves a page without numbers, and
    an older page stays complete until the new one replaces it in one step.

    Args:
        findings: the findings of one or more models.
        path: where to write the page; the JSON is written next to it.
        command: the command line that made the report, shown in it.

    Returns:
        Both paths.
    """
    named = with_distinct_names(findings)
    verdicts = [judge(entry) for entry in named]
    document = compose(named, verdicts, command)
    numbers = []
    for entry, verdict in zip(named, verdicts, strict=True):
        numbers.append(as_numbers(entry, verdict))
    made = {"command": command, "made_with": versions()}
    everything = {**numbers[0], **made} if len(numbers) == 1 else {"models": numbers, **made}
    target = path.with_suffix(".json")
    text = json.dumps(everything, indent=1) + "\n"
    write_file(target, text.encode())
    if path.suffix == ".md":
        write_markdown(document, path)
    else:
        write_file(path, render(document).encode())
    return path, target


def as_numbers(entry: Findings, verdict: Verdict) -> dict[str, Any]:
    """Everything that was measured, as plain values."""
    about = ("recipe", "seeds", "versions")
    numbers: dict[str, Any] = {
        "name": entry.name,
        "seed": entry.seed,
        "weights_sha256": entry.weights_hash,
        "task": entry.task.to_dict(),
        **{name: entry.config.get(name) for name in about},
        "model": entry.model.config.to_dict(),
        "verdict": to_plain(verdict),
        "not_computed": entry.not_computed,
        "left_out": list(entry.left_out),
    }
    if entry.explanation is not None:
        numbers["explanation"] = _explanation_numbers(entry)
    if entry.scores is not None:
        scores = to_plain(entry.scores)
        numbers["kl"] = scores
    for name, result in entry.probes.items():
        numbers[SHORT_NAMES.get(name, name)] = to_plain(result)
    numbers |= _intervention_numbers(entry)
    numbers.setdefault("development", None)
    return numbers


def _explanation_numbers(entry: Findings) -> dict[str, Any]:
    found = entry.explanation
    assert found is not None
    return {
        "algorithm": found.algorithm.name,
        "constants": found.constants,
        "stderrs": to_plain(found.stderrs),
        "source": found.source,
        "fitted": found.fitted,
        "identified": found.identified,
        "at_bound": list(found.at_bound),
        "no_implementation": found.no_implementation,
        "n_sequences": found.n_sequences,
        "seed": found.seed,
    }


def _intervention_numbers(entry: Findings) -> dict[str, Any]:
    found = entry.interventions
    swaps = [result for result in found.values() if isinstance(result, Interchange)]
    transplants = [result for result in found.values() if isinstance(result, Transplant)]
    return {
        "interchanges": {result.variable: to_plain(result) for result in swaps},
        "steering": to_plain(found.get("steering")),
        "transplants": to_plain(transplants),
        "sweep": to_plain(found.get("sweep")),
        "circuit": to_plain(found.get("circuit")),
        "program": to_plain(found.get("program")),
    }
