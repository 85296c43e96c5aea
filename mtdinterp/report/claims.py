"""What can be claimed of a model, each claim with its evidence, its number, a control, and whether
it holds."""

import math
from dataclasses import dataclass

from mtdinterp.fitting import WORDS
from mtdinterp.interventions import Interchange
from mtdinterp.readout import CLEAR_R2, RECOVERED
from mtdinterp.report.findings import Findings
from probes.compare_attention import NEAR, NEARER

CLOSE, RESEMBLES = 0.9, 0.6
"""Share of what a model does beyond uniform weights that an estimator must explain to be named, and
to be named with a caution. Uniform weights themselves explain most of how any mixture of π's rows
differs from the token marginal."""
AS_UNIFORM = 0.95
"""Uniform weights are named only where they explain this share of how the model differs from the
token marginal."""
NEAR_OPTIMUM = 0.1
"""β within this share of the optimum counts as the optimum."""
NEAR_BAYES = 0.8
"""Of the way from uniform weights to the Bayes optimum, in KL to the truth."""
USES, BEYOND_CONTROLS = 0.9, 0.2
"""R² of an interchange from which on a site counts as the variable, and by how much it must beat
its controls."""
SPARED = 0.1
"""A transplant may raise the KL by this share of it, or by two standard errors."""
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


def beyond_uniform(findings: Findings) -> float:
    """1 - KL(model ‖ best) / KL(model ‖ uniform weights)."""
    divergences = findings.algorithm.divergences
    return 1 - divergences[findings.algorithm.best] / max(divergences["uniform"], 1e-12)


def claims_of(findings: Findings) -> tuple[Claim, ...]:
    beta, transition, algorithm = findings.beta, findings.transition, findings.algorithm
    beyond, infers = beyond_uniform(findings), algorithm.best != "uniform"
    one_step = findings.checkpoint.model.config.n_layers < 5
    claims = [
        Claim(
            "A known estimator explains its predictions",
            f"KL(model ‖ {WORDS[algorithm.best]})",
            f"{algorithm.divergences[algorithm.best]:.1e} ({algorithm.explained:.1%})",
            f"uniform weights {algorithm.divergences['uniform']:.1e}",
            beyond >= CLOSE if infers else algorithm.explained >= AS_UNIFORM,
        ),
        Claim(
            "It infers weights in context",
            "explained beyond uniform weights",
            f"{beyond:.1%}" if infers else "0%",
            "uniform weights 0%",
            infers and beyond >= RESEMBLES,
        ),
        _near_bayes(findings),
        Claim(
            "Layer 1 follows the likelihood, or its mirror",
            "gain of Γ̃ on Γ",
            f"{transition.gain:.3f} (R² {transition.gain_r2:.2f})",
            "no relation: R² 0",
            transition.branch != "undecided",
        ),
        Claim(
            "Its attention holds π",
            "row KL, gauge fixed",
            f"{transition.row_kl['attention']:.4f}",
            f"marginal only {transition.control_kl:.4f}",
            transition.branch != "undecided"
            and transition.row_kl["attention"] < RECOVERED * transition.control_kl,
        ),
        Claim(
            "Its output holds π",
            "row KL",
            f"{transition.row_kl['output']:.4f}",
            f"marginal only {transition.control_kl:.4f}",
            transition.row_kl["output"] < RECOVERED * transition.control_kl,
        ),
        # The optimum is one-step mirror descent's: a model that may take more steps need not have
        # it.
        _beta_claim(
            "β by attention is the optimum",
            "slope",
            beta.attention,
            beta.attention_stderr,
            beta.attention_r2,
            beta.optimal,
            one_step,
        ),
        _beta_claim(
            "β by output is the optimum",
            "nearest one-step mirror descent",
            beta.output,
            beta.output_stderr,
            beta.output_r2,
            beta.optimal,
            one_step,
        ),
    ]
    known = findings.attention.fitted and all(
        found.algorithm.identified for found in findings.interchanges.values()
    )
    claims += [
        Claim(
            f"Layer {layer.layer} attends as the construction",
            "total variation",
            f"{layer.distance:.3f}",
            f"uniform attention {layer.uniform_distance:.3f}",
            layer.near if one_step or known else None,
        )
        for layer in findings.attention.layers
    ]
    claims += [
        _interchange_claim(variable, found) for variable, found in findings.interchanges.items()
    ]
    claims += [
        Claim(
            f"Layer {found.layer + 1} works with the construction's attention",
            "KL to the truth, transplanted",
            f"{found.kl_after:.5f} ({found.difference:+.5f} ± {found.difference_stderr:.5f})",
            f"its own attention {found.kl_before:.5f}",
            found.difference <= max(SPARED * found.kl_before, 2 * found.difference_stderr)
            if one_step
            else None,
        )
        for found in findings.transplants
    ]
    steering = findings.steering.explained
    claims.append(
        Claim(
            "Its last attention is the weights it mixes with",
            "steering, movement explained",
            _share(steering),
            "no movement 0%",
            steering >= USES if math.isfinite(steering) else None,
        )
    )
    if findings.circuit is not None:
        edges, total = len(findings.circuit.edges), findings.circuit.n_edges
        claims.append(
            Claim(
                "Few edges carry it",
                "edges for 95% of the predictions",
                f"{edges} of {total}",
                "a tenth of them decides",
                edges <= FEW * total if infers else None,
            )
        )
    return tuple(claims)


def _near_bayes(findings: Findings) -> Claim:
    """How much of what can be gained by inference the model gains."""
    scores = findings.estimators
    reference = scores.get("exact_bayes", scores["one_step"])
    words = "Bayes optimum" if "exact_bayes" in scores else "one-step mirror descent"
    gap = scores["uniform"].kl - reference.kl
    share = (scores["uniform"].kl - findings.model_score.kl) / gap if gap > SOMETHING else math.nan
    return Claim(
        "It predicts nearly as well as can be done",
        f"way from uniform weights to the {words}, in KL",
        _share(share),
        f"uniform weights {scores['uniform'].kl:.5f}, {words} {reference.kl:.5f}",
        share >= NEAR_BAYES if math.isfinite(share) else None,
    )


VARIABLES = {
    "responsibilities": "γ",
    "mean_responsibilities": "Γ",
    "weights": "the weights",
    "first_weights": "w¹",
    "reweighted": "Γ²",
}


def _interchange_claim(variable: str, found: Interchange) -> Claim:
    """A site that does no better than a random one, another source or its own mean is not the
    variable."""
    controls = (found.control_r2, found.mismatched_r2, found.mean_r2)
    passed = None
    if found.algorithm.identified and math.isfinite(found.r2):
        passed = found.r2 >= USES and found.r2 - max(controls) >= BEYOND_CONTROLS
    return Claim(
        f"It uses {found.site} as {VARIABLES[variable]}",
        "interchange R²",
        _number(found.r2),
        "random site {}, another source {}, the site's mean {}".format(*map(_number, controls)),
        passed,
    )


def _beta_claim(
    claim: str, evidence: str, value: float, stderr: float, r2: float, optimal: float, applies: bool
) -> Claim:
    near = abs(value - optimal) <= NEAR_OPTIMUM * abs(optimal) and r2 >= CLEAR_R2
    return Claim(
        claim,
        evidence,
        f"{_number(value)} ± {_number(stderr)} (R² {_number(r2)})",
        f"optimum {_number(optimal)}",
        near if applies and math.isfinite(optimal) else None,
    )


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "—"


def _share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else "—"


RULES = (
    f"A claim holds if: an estimator explains {CLOSE:.0%} of what the model does beyond uniform "
    "weights; "
    f"{RESEMBLES:.0%} of it is explained at all; {NEAR_BAYES:.0%} of the way to the optimum is "
    "done; R² of the gain is "
    f"{CLEAR_R2:g} or more; row KL is below {RECOVERED:g} of the control; β is within "
    f"{NEAR_OPTIMUM:.0%} of the "
    f"optimum with R² {CLEAR_R2:g} or more; total variation is below {NEAR:g} and {NEARER:g} of "
    "uniform "
    f"attention's; R² of an interchange is {USES:g} or more and {BEYOND_CONTROLS:g} above every "
    "control; a transplant "
    f"costs at most {SPARED:.0%} or two standard errors; {USES:.0%} of the movement is explained; "
    f"at most {FEW:.0%} of "
    "the edges are needed.",
)
"""What decides each claim, in the table's order."""
