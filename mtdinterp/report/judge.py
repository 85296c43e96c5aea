"""What the findings mean: the only place that turns numbers into a verdict.

No sentence is stronger than its evidence. Report, `mtdinterp probe`, the comparison table and the
workbench all show this verdict.
"""

from dataclasses import dataclass, replace
from typing import Any

from mtdinterp.claims import Claim, Status
from mtdinterp.naming import UNIFORM, Naming
from mtdinterp.registry import ESTIMATORS
from mtdinterp.report.findings import Findings, result_claims
from mtdinterp.report.mechanism import beta_sentence, branch_sentences

NONE = "none"
OTHER_TASK = "other_task"
NOTHING_TO_INFER = "nothing_to_infer"
NO_ESTIMATOR = {
    NONE: "no estimator",
    OTHER_TASK: "the task does not fit",
    NOTHING_TO_INFER: "nothing to infer",
}
"""Verdicts that name no estimator, in words."""
MOST_MISFITS = 3
"""Failed claims that are shown at once; the others are folded away or counted."""


@dataclass(frozen=True)
class Verdict:
    """The answer first, then the claims it rests on."""

    algorithm: str
    """The estimator's name; or "none", "other_task" or "nothing_to_infer"."""
    algorithm_text: str
    """The same in words, with the caution it needs."""
    branch: str
    """direct, mirrored or undecided; "not applicable" if no probe of layer 1 was run."""
    kl_ratio: float
    """KL to the truth divided by that of tuned one-step mirror descent; NaN if that is unknown."""
    explained: float
    """Share of how the predictions differ from those of uniform weights that the estimator
    explains.
    """
    sentences: tuple[str, ...]
    misfits: tuple[str, ...]
    """Claims that fail, each in a sentence, in the order of the report: predictions first, then
    constants, mechanism and interventions."""
    undecided: tuple[str, ...]
    """Claims that cannot be decided, each in a sentence with the reason."""
    claims: tuple[Claim, ...]

    def short_misfits(self) -> tuple[str, ...]:
        """The first claims that fail, and how many more there are, for a terminal."""
        more = len(self.misfits) - MOST_MISFITS
        if more <= 0:
            return self.misfits
        verb = "claim does" if more == 1 else "claims do"
        rest = f"{more} more {verb} not hold; mtdinterp report and --json list all of them."
        return (*self.misfits[:MOST_MISFITS], rest)


def judge(findings: Findings) -> Verdict:
    """The verdict on a model.

    Args:
        findings: at least the result of `identify_algorithm`; other results refine the verdict.

    Returns:
        The verdict.
    """
    identification = findings.probes["identify_algorithm"]
    algorithm = _algorithm(findings)
    claims = findings.claims()
    if algorithm == NOTHING_TO_INFER:
        claims = tuple(_undecided_if_failed(claim) for claim in claims)
    if identification.best == UNIFORM:
        claims = _without_circuit(claims, findings)
    sentences = {
        NOTHING_TO_INFER: _nothing_to_infer,
        OTHER_TASK: _other_task,
        NONE: _nothing_found,
    }.get(algorithm, _answer)(findings)
    failed = [claim for claim in claims if claim.status is Status.FAILS]
    undecided = [claim for claim in claims if claim.status is Status.UNDECIDABLE]
    if algorithm not in (OTHER_TASK, NOTHING_TO_INFER):
        sentences += (_tally(claims, failed, undecided, findings),)
    transition = findings.probes.get("recover_transition")
    beta = findings.probes.get("recover_beta")
    branch = "not applicable"
    if transition is not None:
        branch = transition.branch
    elif beta is not None:
        branch = beta.branch
    ratio = findings.scores.kl_ratio.value if findings.scores is not None else float("nan")
    return Verdict(
        algorithm=algorithm,
        algorithm_text=_algorithm_text(algorithm, identification),
        branch=branch,
        kl_ratio=ratio,
        explained=identification.beyond_uniform,
        sentences=sentences,
        misfits=tuple(claim.sentence() for claim in failed),
        undecided=tuple(claim.sentence() for claim in undecided),
        claims=claims,
    )


def _undecided_if_failed(claim: Claim) -> Claim:
    """If there is nothing to infer, no claim about inference can fail."""
    if claim.status is not Status.FAILS:
        return claim
    reason = "there is nothing to infer on this task"
    return replace(claim, status=Status.UNDECIDABLE, reason=reason)


def _without_circuit(claims: tuple[Claim, ...], findings: Findings) -> tuple[Claim, ...]:
    """The claims, with the circuit marked undecidable because the model infers nothing."""
    about_circuit = result_claims(findings.interventions.get("circuit"))
    reason = "the model infers nothing, so there is no inference for a circuit to carry"
    changed = []
    for claim in claims:
        if claim in about_circuit:
            changed.append(replace(claim, status=Status.UNDECIDABLE, reason=reason))
        else:
            changed.append(claim)
    return tuple(changed)


def _algorithm(findings: Findings) -> str:
    """Which of the verdicts applies."""
    identification = findings.probes["identify_algorithm"]
    beta = findings.probes.get("recover_beta")
    if beta is not None and beta.nothing_to_infer:
        return NOTHING_TO_INFER
    transition = findings.probes.get("recover_transition")
    if transition is not None and transition.shows_another_matrix:
        return OTHER_TASK
    if identification.naming is Naming.NONE:
        return NONE
    return identification.best


def _algorithm_text(algorithm: str, identification: Any) -> str:
    if algorithm in NO_ESTIMATOR:
        return NO_ESTIMATOR[algorithm]
    text = identification.label
    if identification.naming is Naming.NEAR:
        text = f"near {text}, but not close"
    if identification.tied:
        text += f" (or {', '.join(ESTIMATORS[name].label for name in identification.tied)})"
    return text


def _tally(
    claims: tuple[Claim, ...],
    failed: list[Claim],
    undecided: list[Claim],
    findings: Findings,
) -> str:
    """How many claims hold; "everything" only if none fails, is undecided or was left out."""
    held = len(claims) - len(failed) - len(undecided)
    not_computed = findings.not_computed
    if not failed and not undecided and not not_computed and not findings.left_out:
        return f"Everything matches: all {held} claims hold."
    text = (
        f"{held} of {len(claims)} claims hold (failed: {len(failed)}, undecidable: "
        f"{len(undecided)})."
    )
    if not_computed:
        text += f" Not computed: {', '.join(not_computed)}."
    return text


def _nothing_to_infer(findings: Findings) -> tuple[str, ...]:
    sentences = [
        "There is nothing to infer on this task: with one lag, identical rows of π or weights "
        "that hardly vary, all estimators make the same predictions."
    ]
    if findings.scores is not None:
        uniform = findings.scores.estimators["uniform"].kl
        sentences.append(
            f"The model's KL to the truth is {findings.scores.model.kl:.5f}; uniform weights have "
            f"{uniform:.5f}."
        )
    return tuple(sentences)


def _other_task(findings: Findings) -> tuple[str, ...]:
    found = findings.probes["recover_transition"]
    distance = found.total_variation[found.trusted]
    return (
        "The task does not fit: the transition matrix recovered from the model has a total "
        f"variation of {distance:.2f} from the given one; the token marginal alone has "
        f"{found.control_variation:.2f}.",
        "The rest of this report therefore compares the model with the wrong algorithm.",
    )


def _nothing_found(findings: Findings) -> tuple[str, ...]:
    identification = findings.probes["identify_algorithm"]
    sentences = [f"No algorithm was identified. {identification.sentence()}"]
    if findings.scores is not None:
        own = findings.scores.model.kl
        uniform = findings.scores.estimators["uniform"].kl
        sentences.append(f"Its KL to the truth is {own:.4f}; uniform weights have {uniform:.4f}.")
        if own > uniform:
            sentences.append(
                "An untrained or broken model looks like this, and so does one that was made for "
                "another number of lags."
            )
    return tuple(sentences)


def _answer(findings: Findings) -> tuple[str, ...]:
    identification = findings.probes["identify_algorithm"]
    sentences = [identification.sentence()]
    if identification.tied:
        sentences.append(identification.tie_sentence())
    if findings.scores is not None:
        sentences.append(findings.scores.summary())
    if not ESTIMATORS[identification.best].in_context:
        sentences.append("It infers nothing in context; training first stalls at this point.")
    elif "recover_beta" in findings.probes:
        sentences.append(beta_sentence(findings))
    sentences += branch_sentences(findings)
    if findings.explanation is not None and findings.explanation.no_implementation:
        sentences.append(findings.explanation.no_implementation)
    return tuple(sentences)
