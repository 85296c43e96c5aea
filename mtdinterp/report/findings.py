"""All measurements of one model, before they are judged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mtdinterp.checkpoint_files import short_name
from mtdinterp.claims import Claim
from mtdinterp.explanation import Explanation
from mtdinterp.models.lens import LensTransformer
from mtdinterp.report.scores import HeldOutScores
from mtdinterp.tasks import Task


@dataclass(frozen=True, eq=False)
class Findings:
    """Results by name; `judge` says what they mean.

    Findings may be partial: `mtdinterp probe` judges its probes without interventions.
    """

    name: str
    model: LensTransformer
    task: Task
    seed: int
    explanation: Explanation | None = None
    scores: HeldOutScores | None = None
    probes: dict[str, Any] = field(default_factory=dict)
    """Results of probes by name, including those of plugins."""
    interventions: dict[str, Any] = field(default_factory=dict)
    """Results of interchanges, steering, transplants, sweep and circuit, by name."""
    not_computed: dict[str, str] = field(default_factory=dict)
    """Probes and interventions that could not be computed, by name, with the reason."""
    failed: tuple[str, ...] = ()
    """Names in `not_computed` whose plugin failed; the others do not apply or have no answer."""
    left_out: tuple[str, ...] = ()
    """What a quick report leaves out, in words."""
    path: Path | None = None
    """Where the checkpoint is, if the model came from one."""
    config: dict[str, Any] = field(default_factory=dict)
    """All of the checkpoint's config.json."""
    weights_hash: str = ""

    def claims(self) -> tuple[Claim, ...]:
        """The claims of every result, in the order of the report."""
        found: list[Claim] = []
        for result in self.results():
            found += result_claims(result)
        return tuple(found)

    def results(self) -> Iterator[Any]:
        """All results, in the order of the report."""
        if self.scores is not None:
            yield self.scores
        yield from self.probes.values()
        yield from self.interventions.values()


def result_claims(result: Any) -> tuple[Claim, ...]:
    """A result's claims; a plugin's result need not have any."""
    claims = getattr(result, "claims", None)
    return tuple(claims()) if callable(claims) else ()


def with_distinct_names(findings: Sequence[Findings]) -> list[Findings]:
    """The same findings, with a different name for every checkpoint."""
    paths = [entry.path for entry in findings if entry.path is not None]
    renamed = []
    for entry in findings:
        name = entry.name if entry.path is None else short_name(entry.path, paths)
        renamed.append(replace(entry, name=name))
    return renamed
