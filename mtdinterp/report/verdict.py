"""What the findings mean, in computed sentences: no claim without its number, none stronger than
its evidence."""

import math
from dataclasses import dataclass, replace

from mtdinterp.fitting import EXPLAINED, WORDS
from mtdinterp.metrics import Estimate
from mtdinterp.readout import CLEAR_R2, RECOVERED
from mtdinterp.report.claims import AS_UNIFORM, CLOSE, RESEMBLES, Claim, beyond_uniform, claims_of
from mtdinterp.report.findings import Findings
from probes import BetaRecovery

EXACT = 2e-3
"""β is called exact within this share of the optimum, at both levels."""


@dataclass(frozen=True)
class Verdict:
    """The answer first, then the claims it rests on."""

    algorithm: str
    """The estimator's name; "none" where nothing explains the model, "other_task" where the task
    does not fit, and "nothing_to_infer" where the task leaves nothing to do."""
    branch: str
    kl_ratio: float
    explained: float
    """Share of what the model does beyond uniform weights that the estimator explains."""
    sentences: tuple[str, ...]
    misfits: tuple[str, ...]
    """What does not fit, each in a sentence."""
    claims: tuple[Claim, ...]


def judge(findings: Findings) -> Verdict:
    claims = claims_of(findings)
    if math.isnan(
        findings.beta.optimal
    ):  # where nothing is to be inferred, no claim about inference can fail
        claims = tuple(replace(claim, passed=claim.passed or None) for claim in claims)
    misfits = tuple(
        f"{claim.claim}: not so; {claim.evidence} {claim.number} (control: {claim.control})."
        for claim in claims
        if claim.passed is False
    )
    best, found = findings.algorithm.best, beyond_uniform(findings)
    if math.isnan(findings.beta.optimal):
        algorithm, sentences = "nothing_to_infer", _nothing_to_infer(findings)
    elif not task_fits(findings):
        algorithm, sentences = "other_task", _other_task(findings)
    elif findings.algorithm.explained < EXPLAINED or (
        findings.algorithm.explained < AS_UNIFORM if best == "uniform" else found < RESEMBLES
    ):
        algorithm, sentences = "none", _nothing_found(findings)
    else:
        held = [claim for claim in claims if claim.passed is not None]
        everything = (f"Everything matches: all {len(held)} claims hold.",) if not misfits else ()
        algorithm, sentences = best, (*_answer(findings), *everything)
    return Verdict(
        algorithm,
        findings.transition.branch,
        findings.kl_ratio.value,
        found,
        sentences,
        misfits,
        claims,
    )


def task_fits(findings: Findings) -> bool:
    """Whether the matrix that the model's output shows, if it shows one, can be the task's own."""
    found = findings.transition
    return found.trusted is None or found.row_kl[found.trusted] < RECOVERED * found.control_kl


def _nothing_to_infer(findings: Findings) -> tuple[str, ...]:
    return (
        "There is nothing to infer on this task: with one lag, rows of π that are alike, or "
        "weights that hardly vary, "
        "every estimator predicts the same.",
        f"The model's KL to the truth is {findings.model_score.kl:.5f}, that of uniform weights "
        f"{findings.estimators['uniform'].kl:.5f}.",
    )


def _other_task(findings: Findings) -> tuple[str, ...]:
    found = findings.transition
    trusted = found.trusted or "output"
    return (
        "The task does not fit: the model's output shows a transition matrix with row KL "
        f"{found.row_kl[trusted]:.2f} "
        f"to the one given, where knowing only the token marginal has {found.control_kl:.2f}.",
        "Its matrix is not this task's, so what follows compares it with the wrong algorithm.",
    )


def _nothing_found(findings: Findings) -> tuple[str, ...]:
    found = findings.algorithm
    uniform = findings.estimators["uniform"].kl
    share = f"{max(0.0, found.explained):.0%} of the model's predictions"
    if found.best != "uniform":
        share += (
            f" and {max(0.0, beyond_uniform(findings)):.0%} of what they have beyond uniform "
            "weights"
        )
    words = [
        f"Nothing was found: the nearest estimator, {WORDS[found.best]}, explains {share}, and the "
        "branch is "
        f"{findings.transition.branch}.",
        f"Its KL to the truth is {findings.model_score.kl:.4f}; uniform weights have "
        f"{uniform:.4f}.",
    ]
    if findings.model_score.kl > uniform:
        words.append(
            "An untrained or broken model looks like this, and so does one that was made for "
            "another number "
            "of lags."
        )
    return tuple(words)


def _answer(findings: Findings) -> tuple[str, ...]:
    found, beta, transition = findings.algorithm, findings.beta, findings.transition
    share = beyond_uniform(findings)
    close = found.best == "uniform" or share >= CLOSE
    against = found.best == "one_step" and found.parameters["one_step"]["beta"] < 0
    name = WORDS[found.best] + (" with a negative step, against the likelihood" if against else "")
    sentences = [
        f"This model predicts like {name}"
        if close
        else f"Of all estimators this model is nearest to {name}, but not near"
    ]
    if found.tied:
        others = _listed([WORDS[other] for other in found.tied]) + (
            " is" if len(found.tied) == 1 else " are"
        )
        sentences[0] += f"; {others} as near, and predictions alone do not tell them apart"
    beyond = (
        ""
        if found.best == "uniform"
        else f", and {share:.1%} of what they have beyond uniform weights"
    )
    sentences[0] += (
        f". KL(model ‖ it) is {found.divergences[found.best]:.1e}, which explains "
        f"{found.explained:.1%} "
        f"of how its predictions differ from the token marginal{beyond}."
    )
    sentences.append(
        f"Its KL to the truth is {findings.model_score.kl:.5f} ± "
        f"{findings.model_score.stderr:.5f}, "
        f"{_times(findings.kl_ratio)} that of tuned one-step mirror descent"
        + _over_bayes(findings)
        + "."
    )
    if found.best == "uniform":
        sentences.append("It infers nothing in context: this is where training stalls.")
    else:
        own = (
            found.best.startswith("one_step") and min(beta.attention_r2, beta.output_r2) >= CLEAR_R2
        )
        sentences.append(
            ("Its β is" if own else "Read as one step of mirror descent, its β is")
            + f" {beta.attention:.2f} ± {beta.attention_stderr:.2f} by attention and "
            f"{beta.output:.2f} ± "
            f"{beta.output_stderr:.2f} by output; the optimum for this task and length is "
            f"{beta.optimal:.2f}{', which it has exactly' if _exact(beta) else ''}."
        )
    recovered = (
        "π recovered from the output has row KL"
        if transition.branch == "undecided"
        else f"π recovered from its attention has row KL {transition.row_kl['attention']:.4f}, "
        "from the output"
    )
    sentences.append(
        f"Layer 1 {BRANCHES[transition.branch]}; {recovered} {transition.row_kl['output']:.4f} "
        f"(knowing only the token marginal: {transition.control_kl:.3f})."
    )
    return tuple(sentences)


def _exact(beta: BetaRecovery) -> bool:
    return all(
        abs(value - beta.optimal) < EXACT * abs(beta.optimal)
        for value in (beta.attention, beta.output)
    )


BRANCHES = {
    "direct": "attends to likely lags (direct)",
    "mirrored": "attends to unlikely lags and reads them with the opposite sign (mirrored)",
    "undecided": "does not weigh lags by their likelihood, or not clearly (undecided)",
}


def _times(ratio: Estimate) -> str:
    return (
        f"{ratio.value:.3f} ± {ratio.stderr:.3f} times"
        if math.isfinite(ratio.value)
        else "no more than"
    )


def _over_bayes(findings: Findings) -> str:
    ratio = findings.bayes_ratio
    return f" and {_times(ratio)} the Bayes optimum" if math.isfinite(ratio.value) else ""


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
