"""What the findings mean, in computed sentences: no claim without its number, none stronger than its evidence."""

from dataclasses import dataclass

from mtdinterp.fitting import WORDS
from mtdinterp.report.collect import Findings
from probes.identify_algorithm import EXPLAINED

NEAR_OPTIMUM = 0.1
"""β within this share of the optimum counts as the optimum."""
RECOVERED = 0.5
"""A recovered matrix has at most this share of the control's row KL."""
USES = 0.9
"""R² of an interchange from which on a site counts as the variable."""


@dataclass(frozen=True)
class Claim:
    """One line of the verdict table."""

    claim: str
    evidence: str
    number: str
    control: str
    passed: bool | None
    """None where it does not apply."""


@dataclass(frozen=True)
class Verdict:
    """The answer first, then the claims it rests on."""

    algorithm: str
    """The estimator's name, or "none" where nothing explains the model, or "other_task" where the task does not fit."""
    branch: str
    kl_ratio: float
    sentences: tuple[str, ...]
    misfits: tuple[str, ...]
    """What does not fit, each in a sentence."""
    claims: tuple[Claim, ...]


def judge(findings: Findings) -> Verdict:
    claims = _claims(findings)
    if not task_fits(findings):
        return Verdict("other_task", findings.transition.branch, findings.kl_ratio, _other_task(findings),
                       ("The task does not fit the model.",), claims)
    if findings.algorithm.explained < EXPLAINED:
        return Verdict("none", findings.transition.branch, findings.kl_ratio, _nothing_found(findings),
                       ("No estimator explains the predictions.",), claims)
    return Verdict(findings.algorithm.best, findings.transition.branch, findings.kl_ratio, _answer(findings),
                   tuple(_misfits(findings)), claims)


def task_fits(findings: Findings) -> bool:
    """Whether the matrix that the model's output shows, if it shows one, can be the task's own."""
    found = findings.transition
    return found.trusted is None or found.row_kl[found.trusted] < RECOVERED * found.control_kl


def _other_task(findings: Findings) -> tuple[str, ...]:
    found = findings.transition
    trusted = found.trusted or "output"
    return (
        f"The task does not fit: the model's output shows a transition matrix with row KL {found.row_kl[trusted]:.2f} "
        f"to the one given, where knowing only the token marginal has {found.control_kl:.2f}.",
        "It was trained on another task, or on none like this; what follows compares it with the wrong algorithm.",
    )


def _nothing_found(findings: Findings) -> tuple[str, ...]:
    found = findings.algorithm
    return (
        f"Nothing was found: the nearest estimator, {WORDS[found.best]}, explains "
        f"{max(0.0, found.explained):.0%} of the model's predictions, and the branch is {findings.transition.branch}.",
        f"Its KL to the truth is {findings.model_score.kl:.4f}; uniform weights have "
        f"{findings.estimators['uniform'].kl:.4f}. This is what an untrained or broken model looks like.",
    )


def _answer(findings: Findings) -> tuple[str, ...]:
    found, beta, transition = findings.algorithm, findings.beta, findings.transition
    names = [WORDS[name] for name in found.tied]
    tied = f" (predictions alone do not tell it from {_listed(names)})" if names else ""
    sentences = [
        f"This model predicts like {WORDS[found.best]}{tied}: KL(model ‖ it) is {found.divergences[found.best]:.1e}, "
        f"which explains {found.explained:.1%} of how its predictions differ from the token marginal.",
        f"Its KL to the truth is {findings.model_score.kl:.5f} ± {findings.model_score.stderr:.5f}, "
        f"{findings.kl_ratio:.3f} times that of tuned one-step mirror descent" + _over_bayes(findings) + ".",
    ]
    if found.best == "uniform":
        sentences.append("It gives every lag the same weight and infers nothing in context: this is where training "
                         "stalls.")
    else:
        its = "Its β is" if findings.one_step_deep else "Read as one step of mirror descent, its β is"
        sentences.append(f"{its} {beta.attention:.2f} ± {beta.attention_stderr:.2f} by attention and "
                         f"{beta.output:.2f} ± {beta.output_stderr:.2f} by output; the optimum for this task and "
                         f"length is {beta.optimal:.2f}.")
    sentences.append(f"Layer 1 {BRANCHES[transition.branch]}; π recovered from its attention has row KL "
                     f"{transition.row_kl['attention']:.4f}, from the output {transition.row_kl['output']:.4f} "
                     f"(knowing only the token marginal: {transition.control_kl:.3f}).")
    return tuple(sentences)


BRANCHES = {
    "direct": "attends to likely lags (direct)",
    "mirrored": "attends to unlikely lags and reads them with the opposite sign (mirrored)",
    "undecided": "shows no clear preference among lags (undecided)",
}


def _over_bayes(findings: Findings) -> str:
    bayes = findings.estimators.get("exact_bayes")
    if bayes is None or bayes.kl <= 0:
        return ""
    return f" and {findings.model_score.kl / bayes.kl:.3f} times the Bayes optimum"


def _misfits(findings: Findings) -> list[str]:
    """Every claim that failed, in words."""
    return [f"{claim.claim}: not so; {claim.evidence} {claim.number} (control: {claim.control})."
            for claim in _claims(findings) if claim.passed is False]


def _claims(findings: Findings) -> tuple[Claim, ...]:
    beta, transition, algorithm = findings.beta, findings.transition, findings.algorithm
    uniform = findings.estimators["uniform"].kl
    claims = [
        Claim("It infers weights in context", "KL to the truth", f"{findings.model_score.kl:.5f}",
              f"uniform weights {uniform:.5f}", findings.model_score.kl < 0.8 * uniform),
        Claim("A known estimator explains its predictions", f"KL(model ‖ {WORDS[algorithm.best]})",
              f"{algorithm.divergences[algorithm.best]:.1e} ({algorithm.explained:.1%})",
              f"uniform weights {algorithm.divergences.get('uniform', float('nan')):.1e}",
              algorithm.explained >= EXPLAINED),
        Claim("Layer 1 weighs lags by likelihood", "gain of Γ̃ on Γ",
              f"{transition.gain:.3f} (R² {transition.gain_r2:.2f})", "untrained models: R² below 0.1",
              transition.branch != "undecided"),
        Claim("Its attention holds π", "row KL, gauge fixed", f"{transition.row_kl['attention']:.4f}",
              f"marginal only {transition.control_kl:.4f}", transition.branch != "undecided"
              and transition.row_kl["attention"] < RECOVERED * transition.control_kl),
        Claim("Its output holds π", "row KL", f"{transition.row_kl['output']:.4f}",
              f"marginal only {transition.control_kl:.4f}",
              transition.row_kl["output"] < RECOVERED * transition.control_kl),
        _beta_claim("β by attention is the optimum", beta.attention, beta.attention_stderr, beta.optimal,
                    beta.attention_r2, findings.one_step_deep),
        _beta_claim("β by output is the optimum", beta.output, beta.output_stderr, beta.optimal, beta.output_r2,
                    findings.one_step_deep),
    ]
    claims += [Claim(f"Layer {layer.layer} attends as the construction", "total variation", f"{layer.distance:.3f}",
                     f"uniform attention {layer.uniform_distance:.3f}", layer.near)
               for layer in findings.attention.layers]
    for variable, found in findings.interchanges.items():
        claims.append(Claim(f"It uses {found.site} as {VARIABLES[variable]}", "interchange R²", f"{found.r2:.3f}",
                            f"random place {found.control_r2:.2f}",
                            found.r2 >= USES and found.control_r2 < USES))
    claims.append(Claim("Its last attention is the weights it mixes with", "steering, movement explained",
                        f"{findings.steering.explained:.1%}", "0%", findings.steering.explained >= USES))
    if findings.circuit is not None:
        claims.append(Claim("Few edges carry it", "edges for 95% of the predictions",
                            f"{len(findings.circuit.edges)} of {findings.circuit.n_edges}",
                            "the construction has 6", len(findings.circuit.edges) <= 10))
    return tuple(claims)


VARIABLES = {"responsibilities": "γ", "mean_responsibilities": "Γ", "weights": "the weights", "first_weights": "w¹",
             "reweighted": "Γ²"}


def _beta_claim(claim: str, value: float, stderr: float, optimal: float, r2: float, applies: bool) -> Claim:
    """The optimum is one-step mirror descent's: a model that may take more steps need not have it."""
    near = abs(value - optimal) <= NEAR_OPTIMUM * abs(optimal) if applies and optimal == optimal else None
    return Claim(claim, "slope" if "attention" in claim else "nearest one-step mirror descent",
                 f"{value:.2f} ± {stderr:.2f} (R² {r2:.2f})", f"optimum {optimal:.2f}",
                 None if near is None else near and r2 >= EXPLAINED)


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
