"""A report as a document: the answer first, then the claims it rests on, the evidence, and how it
was made."""

from collections.abc import Sequence

from mtdinterp.checkpoints.save import versions
from mtdinterp.fitting import WORDS
from mtdinterp.pages.blocks import Bar, Bars, Block, Document, Section, Table, Text
from mtdinterp.report.claims import RULES
from mtdinterp.report.definitions import DEFINITIONS
from mtdinterp.report.findings import Findings
from mtdinterp.report.sections import SECTIONS
from mtdinterp.report.verdict import Verdict

HOLDS = {True: "yes", False: "no", None: "—"}


def compose(findings: Sequence[Findings], verdicts: Sequence[Verdict], command: str) -> Document:
    """One model in full, or several side by side and then each in full."""
    names = ", ".join(entry.name for entry in findings)
    several = len(findings) > 1
    sections = [_comparison(findings, verdicts)] if several else []
    for entry, verdict in zip(findings, verdicts, strict=True):
        sections.append(Section(entry.name if several else "The answer", _answer(entry, verdict)))
        evidence: dict[str, list[Block]] = {"Claims": [_claims(verdict), Text(RULES, "soft")]}
        evidence |= {title: section(entry) for title, section in SECTIONS.items()}
        sections += [
            Section(title, tuple(blocks), 3 if several else 2)
            for title, blocks in evidence.items()
            if blocks
        ]
    sections += [
        Section("How it was made", _origin(findings, command)),
        Section("Words", (Table(("term", "meaning"), tuple(DEFINITIONS.items())),)),
    ]
    return Document(f"What did {names} learn?", tuple(sections))


def _answer(entry: Findings, verdict: Verdict) -> tuple[Block, ...]:
    config = entry.checkpoint.model.config
    about = (
        f"{config.architecture}, {config.n_layers} layers, {config.vocab_size} tokens, "
        f"m = {entry.checkpoint.task.order}, T = {config.length}"
    )
    blocks: list[Block] = [Text((about,), "soft"), Text(verdict.sentences, "answer")]
    if verdict.misfits:
        blocks.append(Text(("What does not fit:", *verdict.misfits), "misfit"))
    return tuple(blocks)


def _claims(verdict: Verdict) -> Table:
    return Table(
        ("holds", "claim", "number", "evidence", "control"),
        tuple(
            (HOLDS[claim.passed], claim.claim, claim.number, claim.evidence, claim.control)
            for claim in verdict.claims
        ),
    )


def _comparison(findings: Sequence[Findings], verdicts: Sequence[Verdict]) -> Section:
    rows = tuple(
        (
            entry.name,
            WORDS.get(verdict.algorithm, verdict.algorithm.replace("_", " ")),
            verdict.branch,
            f"{entry.model_score.kl:.5f}",
            f"{entry.kl_ratio.value:.3f} ± {entry.kl_ratio.stderr:.3f}",
            f"{entry.beta.output:.2f} ({entry.beta.optimal:.2f})",
            *(f"{entry.transition.row_kl[name]:.4f}" for name in ("attention", "output")),
        )
        for entry, verdict in zip(findings, verdicts, strict=True)
    )
    bars = tuple(
        Bar(
            "standard" if entry.checkpoint.model.config.architecture == "standard" else "model",
            entry.name,
            *entry.kl_ratio,
        )
        for entry in findings
    )
    shapes = {
        (
            entry.checkpoint.task.vocab_size,
            entry.checkpoint.task.order,
            entry.checkpoint.model.config.length,
            str(entry.checkpoint.task.transition.tolist()),
        )
        for entry in findings
    }
    unlike = (
        ()
        if len(shapes) == 1
        else (
            Text(
                (
                    "These models belong to different tasks or lengths: their KLs are not "
                    "comparable, the ratios are.",
                ),
                "soft",
            ),
        )
    )
    return Section(
        "Side by side",
        (
            *unlike,
            Table(
                (
                    "model",
                    "algorithm",
                    "branch",
                    "KL",
                    "over one-step",
                    "β by output (optimum)",
                    "π by attention",
                    "by output",
                ),
                rows,
            ),
            Bars(
                "KL to the truth over that of tuned one-step mirror descent",
                bars,
                "ratio; 1 is one-step MD",
            ),
        ),
    )


def _origin(findings: Sequence[Findings], command: str) -> tuple[Block, ...]:
    rows, recipes = [], []
    for entry in findings:
        config = entry.checkpoint.config
        rows.append(
            (
                entry.name,
                entry.weights_hash[:16],
                _listed(config.get("seeds")),
                str(entry.seed),
                _listed(config.get("versions")),
            )
        )
        if isinstance(recipe := config.get("recipe"), dict):
            recipes.append(
                f"{entry.name} was trained by the {recipe.get('name')} recipe, "
                f"{recipe.get('steps')} steps."
            )
    return (
        *((Text((command,), "code"),) if command else ()),
        *((Text(tuple(recipes), "soft"),) if recipes else ()),
        Table(
            ("model", "weights (sha256, begins)", "its seeds", "the report's seed", "made with"),
            tuple(rows),
        ),
        Text((f"This report was made with {_listed(versions())}.",), "soft"),
    )


def _listed(entries: object) -> str:
    """Names and values; a checkpoint of somebody else's may hold anything here."""
    return (
        ", ".join(f"{name} {value}" for name, value in entries.items())
        if isinstance(entries, dict)
        else ""
    )
