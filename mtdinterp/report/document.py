"""A report as a document: the answer, the claims it rests on, the evidence, and its origin."""

import math
from collections.abc import Sequence

from mtdinterp.checkpoints.save import versions
from mtdinterp.claims import Claim, Status
from mtdinterp.formatting import counted, listed
from mtdinterp.interventions.interchange import Interchange, interchange_blocks
from mtdinterp.interventions.transplants import Transplant, transplant_blocks
from mtdinterp.pages.blocks import Bar, Bars, Block, Document, Section, State, Table, Text
from mtdinterp.registry import PROBES
from mtdinterp.report.definitions import DEFINITIONS
from mtdinterp.report.findings import Findings
from mtdinterp.report.judge import MOST_MISFITS, Verdict
from mtdinterp.results import origin_of

LARGEST_RATIO = 10
"""Larger ratios are not drawn: next to them, all others would look the same."""
CLAIM_COLUMNS = (
    "status",
    "claim, and what was measured",
    "number",
    "needed",
    "control",
    "n (seed)",
)


def compose(findings: Sequence[Findings], verdicts: Sequence[Verdict], command: str) -> Document:
    """One model in full, or several side by side and then each in full.

    Args:
        findings: the findings of every model.
        verdicts: one per model.
        command: the command line that made the report.

    Returns:
        The document.
    """
    names = listed([f'"{entry.name}"' for entry in findings])
    several = len(findings) > 1
    sections = [_comparison(findings, verdicts)] if several else []
    for entry, verdict in zip(findings, verdicts, strict=True):
        title = entry.name if several else "The answer"
        sections.append(Section(title, answer_blocks(entry, verdict)))
        level = 3 if several else 2
        for heading, blocks in _evidence(entry, verdict).items():
            if blocks:
                sections.append(Section(heading, tuple(blocks), level))
    terms = Table(("term", "meaning"), tuple(DEFINITIONS.items()))
    sections.append(Section("How it was made", _origin(findings, command)))
    sections.append(Section("Terms", (terms,)))
    subject = "models" if several else "model"
    return Document(f"What did the {subject} {names} learn?", tuple(sections))


def answer_blocks(entry: Findings, verdict: Verdict) -> tuple[Block, ...]:
    """What the model is, the sentences of the verdict, and the claims that do not hold."""
    config = entry.model.config
    about = (
        f"{config.architecture}, {counted(config.n_layers, 'layer')}, {entry.task.describe}, "
        f"T = {config.length}"
    )
    counts = "The table of claims gives the number of sequences and the seed for each number."
    blocks: list[Block] = [Text((about, counts), "soft"), Text(verdict.sentences, "answer")]
    if entry.left_out:
        missing = (
            f"This is a quick report. It leaves out {', '.join(entry.left_out)}; run mtdinterp "
            "report without --quick to include them."
        )
        blocks.append(Text((missing,)))
    if verdict.misfits:
        failed = [claim for claim in verdict.claims if claim.status is Status.FAILS]
        statements = tuple(claim.statement() for claim in failed)
        first = statements[:MOST_MISFITS]
        rest = statements[MOST_MISFITS:]
        blocks.append(Text(("Claims that do not hold:", *first), "misfit"))
        if rest:
            blocks.append(
                Text(rest, "misfit", folded=f"More claims that do not hold ({len(rest)})")
            )
    return tuple(blocks)


def _evidence(entry: Findings, verdict: Verdict) -> dict[str, list[Block]]:
    """The sections of one model, by heading."""
    sections: dict[str, list[Block]] = {"Claims": [claims_table(verdict.claims)]}
    if entry.scores is not None:
        sections["KL to the truth"] = entry.scores.blocks()
    for name, result in entry.probes.items():
        title = section_title(name)
        heading = f"{title} ({name})" if title in sections else title
        sections[heading] = result_blocks(result)
    sweep = entry.interventions.get("sweep")
    if sweep is not None:
        sections["What a patch restores"] = sweep.blocks()
    sections["Does the model use what it represents?"] = _intervention_blocks(entry)
    if "program" in entry.interventions:
        sections["The model as a program"] = result_blocks(entry.interventions["program"])
    if entry.not_computed:
        reasons = tuple(f"{name}: {why}" for name, why in entry.not_computed.items())
        sections["Not computed"] = [Text(reasons)]
    return sections


def section_title(probe: str) -> str:
    """A probe's label as a heading."""
    label = PROBES[probe].label
    return label[0].upper() + label[1:]


def result_blocks(result: object) -> list[Block]:
    """A result's own blocks, or its summary if it has none, and the sequences it comes from."""
    blocks = own_blocks(result)
    summary = getattr(result, "summary", None)
    if not blocks and callable(summary):
        blocks.append(Text((summary(),), "code"))
    origin = origin_of(result)
    if blocks and origin:
        blocks.append(Text((f"Measured on {origin}.",), "soft"))
    return blocks


def own_blocks(result: object) -> list[Block]:
    """The blocks that a result makes; a plugin's result need not have any."""
    make = getattr(result, "blocks", None)
    blocks = list(make()) if callable(make) else []
    for block in blocks:
        if not isinstance(block, Block):
            raise ValueError(
                f"{type(result).__name__}.blocks: expected blocks of mtdinterp.pages.blocks, such "
                f"as Text or Table, got {type(block).__name__}"
            )
    return blocks


def _intervention_blocks(entry: Findings) -> list[Block]:
    found = entry.interventions
    swaps = [result for result in found.values() if isinstance(result, Interchange)]
    transplants = [result for result in found.values() if isinstance(result, Transplant)]
    blocks = interchange_blocks(swaps)
    if "steering" in found:
        blocks += found["steering"].blocks()
    blocks += transplant_blocks(transplants)
    if "circuit" in found:
        blocks += found["circuit"].blocks()
    return blocks


def claims_table(claims: Sequence[Claim]) -> Table:
    """Every claim with its status, number, threshold, control, n and seed."""
    rows = []
    for claim in claims:
        seed = "given" if claim.seed is None else str(claim.seed)
        rows.append(
            (
                State(claim.status.value, claim.reason),
                f"{claim.claim}. {claim.evidence}.",
                claim.number,
                claim.threshold,
                claim.control,
                f"{claim.n_sequences} ({seed})",
            )
        )
    return Table(CLAIM_COLUMNS, tuple(rows))


def _comparison(findings: Sequence[Findings], verdicts: Sequence[Verdict]) -> Section:
    rows = []
    bars = []
    has_larger = False
    for entry, verdict in zip(findings, verdicts, strict=True):
        rows.append(_comparison_row(entry, verdict))
        if entry.scores is None:
            continue
        ratio = entry.scores.kl_ratio
        if ratio.value <= LARGEST_RATIO:
            bars.append(Bar("model", entry.name, ratio.value, ratio.stderr))
        elif ratio.value > LARGEST_RATIO:  # neither holds if there is no ratio
            has_larger = True
    header = (
        "model",
        "algorithm",
        "branch",
        "KL",
        "ratio to one step",
        "β by output; optimum (interval)",
        "π by layer 1 (TV)",
        "π by output (TV)",
    )
    title = "KL to the truth divided by that of tuned one-step mirror descent"
    blocks: list[Block] = []
    problems = {(entry.task, entry.model.config.length) for entry in findings}
    if len(problems) > 1:
        caution = (
            "These models belong to different tasks or lengths: compare their ratios, not "
            "their KLs."
        )
        blocks.append(Text((caution,), "soft"))
    blocks.append(Table(header, tuple(rows)))
    if bars:
        unit = "ratio; 1 is one-step mirror descent"
        if has_larger:
            unit += f"; ratios above {LARGEST_RATIO} are only in the table"
        blocks.append(Bars(title, tuple(bars), unit))
    return Section("Side by side", tuple(blocks))


def _comparison_row(entry: Findings, verdict: Verdict) -> tuple[str, ...]:
    kl = ratio = beta = "—"
    if entry.scores is not None:
        kl = f"{entry.scores.model.kl:.5f}"
        found_ratio = entry.scores.kl_ratio
        if math.isfinite(found_ratio.value):
            ratio = f"{found_ratio.value:.3f} ± {found_ratio.stderr:.3f}"
    found = entry.probes.get("recover_beta")
    if found is not None:
        beta = f"{found.level_text('output')}; {found.optimum_text()}"
    matrices = ("—", "—")
    transition = entry.probes.get("recover_transition")
    if transition is not None:
        distances = transition.total_variation
        matrices = (f"{distances['attention']:.3f}", f"{distances['output']:.3f}")
    return (entry.name, verdict.algorithm_text, verdict.branch, kl, ratio, beta, *matrices)


def _origin(findings: Sequence[Findings], command: str) -> tuple[Block, ...]:
    blocks: list[Block] = [Text((command,), "code")] if command else []
    rows = []
    recipes = []
    for entry in findings:
        rows.append(
            (
                entry.name,
                entry.weights_hash[:16],
                _listed(entry.config.get("seeds")),
                str(entry.seed),
                _listed(entry.config.get("versions")),
            )
        )
        recipe = entry.config.get("recipe")
        if isinstance(recipe, dict) and "steps" in recipe:
            recipes.append(
                f"{entry.name} was trained with the {recipe.get('name')} recipe for "
                f"{recipe.get('steps')} steps."
            )
    if recipes:
        blocks.append(Text(tuple(recipes), "soft"))
    header = (
        "model",
        "weights (first digits of SHA-256)",
        "training seeds",
        "the report's seed",
        "made with",
    )
    blocks.append(Table(header, tuple(rows)))
    blocks.append(Text((f"This report was made with {_listed(versions())}.",), "soft"))
    return tuple(blocks)


def _listed(entries: object) -> str:
    """Names and values; a foreign checkpoint may hold anything here."""
    if not isinstance(entries, dict):
        return ""
    return ", ".join(f"{name} {value}" for name, value in entries.items())
