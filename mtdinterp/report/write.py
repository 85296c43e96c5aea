"""A report on disk: the page or the Markdown, and every number of it as JSON next to it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mtdinterp.checkpoints.save import versions
from mtdinterp.pages.markdown import write_markdown
from mtdinterp.pages.page import render
from mtdinterp.report.document import compose
from mtdinterp.report.findings import Findings, told_apart
from mtdinterp.report.verdict import judge
from mtdinterp.results import to_plain


def write_report(findings: Sequence[Findings], path: Path, command: str = "") -> tuple[Path, Path]:
    """Write report.html, or report.md with its figures, and report.json; both paths."""
    findings = told_apart(findings)
    verdicts = [judge(entry) for entry in findings]
    numbers = [
        as_numbers(entry, to_plain(verdict))
        for entry, verdict in zip(findings, verdicts, strict=True)
    ]
    document = compose(findings, verdicts, command)
    target = path.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".md":
        write_markdown(document, path)
    else:
        path.write_text(render(document))
    made = {"command": command, "made_with": versions()}
    everything = {**numbers[0], **made} if len(numbers) == 1 else {"models": numbers, **made}
    target.write_text(json.dumps(everything, indent=1) + "\n")
    return path, target


def as_numbers(entry: Findings, verdict: dict[str, Any]) -> dict[str, Any]:
    """Everything that was measured, under the names that the page uses."""
    return {
        "name": entry.name,
        "seed": entry.seed,
        "weights_sha256": entry.weights_hash,
        **{
            name: entry.checkpoint.config.get(name)
            for name in ("task", "recipe", "seeds", "versions")
        },
        "model": entry.checkpoint.model.config.to_dict(),
        "verdict": verdict,
        "kl": {
            "model": to_plain(entry.model_score),
            "estimators": to_plain(entry.estimators),
            **{
                name: to_plain(getattr(entry, name))
                for name in ("left_out", "kl_ratio", "bayes_ratio")
            },
        },
        **{
            name: to_plain(getattr(entry, name))
            for name in (
                "transition",
                "beta",
                "attention",
                "latents",
                "algorithm",
                "development",
                "interchanges",
                "steering",
                "transplants",
                "sweep",
                "circuit",
                "maps",
                "tokens",
            )
        },
    }
