"""What the findings mean, in computed sentences: no claim without its number, none stronger than its evidence."""

import math
from dataclasses import dataclass, replace

from mtdinterp.fitting import WORDS
from mtdinterp.interventions import Interchange
from mtdinterp.metrics import Estimate
from mtdinterp.report.collect import Findings
from probes.identify_algorithm import EXPLAINED

CLOSE, RESEMBLES = 0.9, 0.6
"""Share of what a model does beyond uniform weights that an estimator must explain to be named, and to be named with a
caution. Uniform weights themselves explain most of how any mixture of π's rows differs from the token marginal."""
AS_UNIFORM = 0.95
"""Uniform weights are named only where they explain this share of how the model differs from the token marginal."""
NEAR_OPTIMUM = 0.1
"""β within this share of the optimum counts as the optimum."""
NEAR_BAYES = 0.8
"""Of the way from uniform weights to the Bayes optimum, in KL to the truth."""
RECOVERED = 0.5
"""A recovered matrix has at most this share of the control's row KL."""
USES, BEYOND_CONTROLS = 0.9, 0.2
"""R² of an interchange from which on a site counts as the variable, and by how much it must beat its controls."""
FEW = 0.1
"""Share of all edges."""
SOMETHING = 1e-6
"""KL below which nothing is left to do better."""


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
    """The estimator's name; "none" where nothing explains the model, "other_task" where the task does not fit, and
    "nothing_to_infer" where the task leaves nothing to do."""
    branch: str
    kl_ratio: float
    explained: float
    """Share of what the model does beyond uniform weights that the estimator explains."""
    sentences: tuple[str, ...]
    misfits: tuple[str, ...]
    """What does not fit, each in a sentence."""
    claims: tuple[Claim, ...]


def judge(findings: Findings) -> Verdict:
    claims = _claims(findings)
    if math.isnan(findings.beta.optimal):  # where nothing is to be inferred, no claim about inference can fail
        claims = tuple(replace(claim, passed=claim.passed or None) for claim in claims)
    misfits = tuple(f"{claim.claim}: not so; {claim.evidence} {claim.number} (control: {claim.control})."
                    for claim in claims if claim.passed is False)
    best, found = findings.algorithm.best, _beyond_uniform(findings)
    if math.isnan(findings.beta.optimal):
        algorithm, sentences = "nothing_to_infer", _nothing_to_infer(findings)
    elif not task_fits(findings):
        algorithm, sentences = "other_task", _other_task(findings)
    elif findings.algorithm.explained < EXPLAINED or (
            findings.algorithm.explained < AS_UNIFORM if best == "uniform" else found < RESEMBLES):
        algorithm, sentences = "none", _nothing_found(findings)
    else:
        algorithm, sentences = best, _answer(findings)
    return Verdict(algorithm, findings.transition.branch, findings.kl_ratio.value, found, sentences, misfits, claims)


def task_fits(findings: Findings) -> bool:
    """Whether the matrix that the model's output shows, if it shows one, can be the task's own."""
    found = findings.transition
    return found.trusted is None or found.row_kl[found.trusted] < RECOVERED * found.control_kl


def _beyond_uniform(findings: Findings) -> float:
    """1 - KL(model ‖ best) / KL(model ‖ uniform weights)."""
    divergences = findings.algorithm.divergences
    return 1 - divergences[findings.algorithm.best] / max(divergences["uniform"], 1e-12)


def _nothing_to_infer(findings: Findings) -> tuple[str, ...]:
    return (
        "There is nothing to infer on this task: with one lag, rows of π that are alike, or weights that hardly vary, "
        "every estimator predicts the same.",
        f"The model's KL to the truth is {findings.model_score.kl:.5f}, that of uniform weights "
        f"{findings.estimators['uniform'].kl:.5f}.",
    )


def _other_task(findings: Findings) -> tuple[str, ...]:
    found = findings.transition
    trusted = found.trusted or "output"
    return (
        f"The task does not fit: the model's output shows a transition matrix with row KL {found.row_kl[trusted]:.2f} "
        f"to the one given, where knowing only the token marginal has {found.control_kl:.2f}.",
        "Its matrix is not this task's, so what follows compares it with the wrong algorithm.",
    )


def _nothing_found(findings: Findings) -> tuple[str, ...]:
    found = findings.algorithm
    uniform = findings.estimators["uniform"].kl
    share = f"{max(0.0, found.explained):.0%} of the model's predictions"
    if found.best != "uniform":
        share += f" and {max(0.0, _beyond_uniform(findings)):.0%} of what they have beyond uniform weights"
    words = [
        f"Nothing was found: the nearest estimator, {WORDS[found.best]}, explains {share}, and the branch is "
        f"{findings.transition.branch}.",
        f"Its KL to the truth is {findings.model_score.kl:.4f}; uniform weights have {uniform:.4f}."]
    if findings.model_score.kl > uniform:
        words.append("An untrained or broken model looks like this, and so does one that was made for another number "
                     "of lags.")
    return tuple(words)


def _answer(findings: Findings) -> tuple[str, ...]:
    found, beta, transition = findings.algorithm, findings.beta, findings.transition
    share = _beyond_uniform(findings)
    close = found.best == "uniform" or share >= CLOSE
    against = found.best == "one_step" and found.parameters["one_step"]["beta"] < 0
    name = WORDS[found.best] + (" with a negative step, against the likelihood" if against else "")
    sentences = [f"This model predicts like {name}" if close else
                 f"Of all estimators this model is nearest to {name}, but not near"]
    if found.tied:
        others = _listed([WORDS[other] for other in found.tied]) + (" is" if len(found.tied) == 1 else " are")
        sentences[0] += f"; {others} as near, and predictions alone do not tell them apart"
    beyond = "" if found.best == "uniform" else f", and {share:.1%} of what they have beyond uniform weights"
    sentences[0] += (f". KL(model ‖ it) is {found.divergences[found.best]:.1e}, which explains {found.explained:.1%} "
                     f"of how its predictions differ from the token marginal{beyond}.")
    sentences.append(f"Its KL to the truth is {findings.model_score.kl:.5f} ± {findings.model_score.stderr:.5f}, "
                     f"{_times(findings.kl_ratio)} that of tuned one-step mirror descent" + _over_bayes(findings) + ".")
    if found.best == "uniform":
        sentences.append("It infers nothing in context: this is where training stalls.")
    else:
        own = found.best.startswith("one_step") and min(beta.attention_r2, beta.output_r2) >= EXPLAINED
        sentences.append(("Its β is" if own else "Read as one step of mirror descent, its β is")
                         + f" {beta.attention:.2f} ± {beta.attention_stderr:.2f} by attention and {beta.output:.2f} ± "
                         f"{beta.output_stderr:.2f} by output; the optimum for this task and length is "
                         f"{beta.optimal:.2f}.")
    recovered = ("π recovered from the output has row KL" if transition.branch == "undecided" else
                 f"π recovered from its attention has row KL {transition.row_kl['attention']:.4f}, from the output")
    sentences.append(f"Layer 1 {BRANCHES[transition.branch]}; {recovered} {transition.row_kl['output']:.4f} "
                     f"(knowing only the token marginal: {transition.control_kl:.3f}).")
    return tuple(sentences)


BRANCHES = {
    "direct": "attends to likely lags (direct)",
    "mirrored": "attends to unlikely lags and reads them with the opposite sign (mirrored)",
    "undecided": "does not weigh lags by their likelihood, or not clearly (undecided)",
}


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.3f} ± {ratio.stderr:.3f} times" if math.isfinite(ratio.value) else "no more than"


def _over_bayes(findings: Findings) -> str:
    ratio = findings.bayes_ratio
    return f" and {_times(ratio)} the Bayes optimum" if math.isfinite(ratio.value) else ""


def _claims(findings: Findings) -> tuple[Claim, ...]:
    beta, transition, algorithm = findings.beta, findings.transition, findings.algorithm
    beyond, infers = _beyond_uniform(findings), algorithm.best != "uniform"
    one_step = findings.checkpoint.model.config.n_layers < 5
    claims = [
        Claim("A known estimator explains its predictions", f"KL(model ‖ {WORDS[algorithm.best]})",
              f"{algorithm.divergences[algorithm.best]:.1e} ({algorithm.explained:.1%})",
              f"uniform weights {algorithm.divergences['uniform']:.1e}",
              beyond >= CLOSE if infers else algorithm.explained >= AS_UNIFORM),
        Claim("It infers weights in context", "explained beyond uniform weights", f"{beyond:.1%}" if infers else "0%",
              "uniform weights 0%", infers and beyond >= RESEMBLES),
        _near_bayes(findings),
        Claim("Layer 1 weighs lags by likelihood", "gain of Γ̃ on Γ",
              f"{transition.gain:.3f} (R² {transition.gain_r2:.2f})", "R² 0.5 decides",
              transition.branch != "undecided"),
        Claim("Its attention holds π", "row KL, gauge fixed", f"{transition.row_kl['attention']:.4f}",
              f"marginal only {transition.control_kl:.4f}", transition.branch != "undecided"
              and transition.row_kl["attention"] < RECOVERED * transition.control_kl),
        Claim("Its output holds π", "row KL", f"{transition.row_kl['output']:.4f}",
              f"marginal only {transition.control_kl:.4f}",
              transition.row_kl["output"] < RECOVERED * transition.control_kl),
        # The optimum is one-step mirror descent's: a model that may take more steps need not have it.
        _beta_claim("β by attention is the optimum", "slope", beta.attention, beta.attention_stderr, beta.attention_r2,
                    beta.optimal, one_step),
        _beta_claim("β by output is the optimum", "nearest one-step mirror descent", beta.output, beta.output_stderr,
                    beta.output_r2, beta.optimal, one_step),
    ]
    known = findings.attention.fitted and all(found.algorithm.identified for found in findings.interchanges.values())
    claims += [Claim(f"Layer {layer.layer} attends as the construction", "total variation", f"{layer.distance:.3f}",
                     f"uniform attention {layer.uniform_distance:.3f}", layer.near if one_step or known else None)
               for layer in findings.attention.layers]
    claims += [_interchange_claim(variable, found) for variable, found in findings.interchanges.items()]
    steering = findings.steering.explained
    claims.append(Claim("Its last attention is the weights it mixes with", "steering, movement explained",
                        _share(steering), "no movement 0%", steering >= USES if math.isfinite(steering) else None))
    if findings.circuit is not None:
        edges, total = len(findings.circuit.edges), findings.circuit.n_edges
        claims.append(Claim("Few edges carry it", "edges for 95% of the predictions", f"{edges} of {total}",
                            "a tenth of them decides", edges <= FEW * total if infers else None))
    return tuple(claims)


def _near_bayes(findings: Findings) -> Claim:
    """How much of what can be gained by inference the model gains."""
    scores = findings.estimators
    reference = scores.get("exact_bayes", scores["one_step"])
    words = "Bayes optimum" if "exact_bayes" in scores else "one-step mirror descent"
    gap = scores["uniform"].kl - reference.kl
    share = (scores["uniform"].kl - findings.model_score.kl) / gap if gap > SOMETHING else math.nan
    return Claim("It predicts nearly as well as can be done", f"way from uniform weights to the {words}, in KL",
                 _share(share), f"uniform weights {scores['uniform'].kl:.5f}, {words} {reference.kl:.5f}",
                 share >= NEAR_BAYES if math.isfinite(share) else None)


VARIABLES = {"responsibilities": "γ", "mean_responsibilities": "Γ", "weights": "the weights", "first_weights": "w¹",
             "reweighted": "Γ²"}


def _interchange_claim(variable: str, found: Interchange) -> Claim:
    """A site that does no better than a random one, another source or its own mean is not the variable."""
    controls = (found.control_r2, found.mismatched_r2, found.mean_r2)
    passed = None
    if found.algorithm.identified and math.isfinite(found.r2):
        passed = found.r2 >= USES and found.r2 - max(controls) >= BEYOND_CONTROLS
    return Claim(f"It uses {found.site} as {VARIABLES[variable]}", "interchange R²", _number(found.r2),
                 "random site {}, another source {}, the site's mean {}".format(*map(_number, controls)), passed)


def _beta_claim(
    claim: str, evidence: str, value: float, stderr: float, r2: float, optimal: float, applies: bool
) -> Claim:
    near = abs(value - optimal) <= NEAR_OPTIMUM * abs(optimal) and r2 >= EXPLAINED
    return Claim(claim, evidence, f"{_number(value)} ± {_number(stderr)} (R² {_number(r2)})",
                 f"optimum {_number(optimal)}", near if applies and math.isfinite(optimal) else None)


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "—"


def _share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else "—"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
