"""Sentences of the verdict about the mechanism: β, what layer 1 does, and where π is visible."""

import math
from typing import Any

from mtdinterp.algorithms.one_step import OneStep
from mtdinterp.criteria import CLEAR_R2, EXACT_BETA
from mtdinterp.estimators.mirror_descent import OneStepTheory
from mtdinterp.formatting import r2_text
from mtdinterp.registry import ESTIMATORS
from mtdinterp.report.findings import Findings


def beta_sentence(findings: Findings) -> str:
    """β by attention and by output, next to the optimum."""
    identification = findings.probes["identify_algorithm"]
    beta = findings.probes["recover_beta"]
    takes_one_step = isinstance(ESTIMATORS[identification.best], OneStep | OneStepTheory)
    is_clear = not {"attention", "output"} & set(beta.unclear)
    is_own = takes_one_step and is_clear
    subject = "Its β is" if is_own else "Read as one step of mirror descent, its β is"
    text = f"{subject} {beta.level_text('output')} by output"
    if math.isfinite(beta.attention):
        by_attention = f"{beta.level_text('attention')} by attention"
        text = f"{subject} {by_attention} and {beta.level_text('output')} by output"
    if beta.no_optimum:
        return f"{text}; there is no optimum to compare with: {beta.no_optimum}."
    if beta.flat:
        return (
            f"{text}; the optimum for this task and length is {beta.optimum_text()}, so the data "
            "cannot decide whether the model has it."
        )
    exact = f", which the model matches within {EXACT_BETA:.1%}" if _is_exact(beta) else ""
    return f"{text}; the optimum for this task and length is {beta.optimum_text()}{exact}."


def _is_exact(beta: Any) -> bool:
    allowed = EXACT_BETA * abs(beta.optimal)
    return all(abs(value - beta.optimal) < allowed for value in (beta.attention, beta.output))


def branch_sentences(findings: Findings) -> list[str]:
    """Sentences about what layer 1 does and where π is visible."""
    transition = findings.probes.get("recover_transition")
    beta = findings.probes.get("recover_beta")
    if transition is None or beta is None:
        return []
    text = branch_text(transition.branch, beta.attention, beta.attention_r2, transition.gain_r2)
    found = [f"Layer 1 {text}."]
    heads = (transition.head_sentence(), beta.head_sentence())
    found += [sentence for sentence in heads if sentence]
    distances = []
    if transition.branch != "undecided":
        distances.append(f"{transition.total_variation['attention']:.3f} by layer 1's scores")
    if transition.trusted is None:
        found.append(transition.trust_sentence())
    else:
        reading = {"output": "the output", "behaviour": "behaviour"}[transition.trusted]
        distances.append(f"{transition.total_variation[transition.trusted]:.3f} by {reading}")
    if distances:
        found.append(
            f"Total variation of the recovered matrix from π: {' and '.join(distances)} (token "
            f"marginal alone: {transition.control_variation:.3f})."
        )
    return found


def branch_text(branch: str, beta: float, beta_r2: float, gain_r2: float) -> str:
    """What layer 1 does, as the continuation of "Layer 1".

    A negative gain alone does not make a mirrored solution: the last layer must undo it, which
    shows as a positive β by attention.

    Args:
        branch: direct, mirrored or undecided.
        beta: β by the last layer's attention.
        beta_r2: its R².
        gain_r2: R² of the gain that decides the branch.

    Returns:
        The text.
    """
    if branch == "undecided":
        return (
            "does not weigh lags by their likelihood (undecided: R² of the gain "
            f"{r2_text(gain_r2)}, needed {CLEAR_R2:g})"
        )
    if branch == "direct":
        return f"attends to likely lags (direct: R² of the gain {r2_text(gain_r2)})"
    if not beta_r2 >= CLEAR_R2:
        return (
            "attends to unlikely lags; it is unclear whether the last layer undoes this (R² of "
            f"its β {r2_text(beta_r2)}, needed {CLEAR_R2:g})"
        )
    if beta > 0:
        return (
            "attends to unlikely lags, and the last layer reads them with the opposite sign "
            "(mirrored)"
        )
    return (
        "attends to unlikely lags, and the last layer does not undo this: its β by attention is "
        f"{beta:.2f}, so it steps against the likelihood"
    )
