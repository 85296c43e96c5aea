"""Compare estimators with a model's predictions: fits, divergences, and which ones tie."""

from collections.abc import Iterable, Mapping

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.criteria import CLOSE, PRICE, RESOLUTION, TELLABLE
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.base import Constants, Fit, fit_constants
from mtdinterp.evidence import Evidence
from mtdinterp.metrics import mean_stderr
from mtdinterp.registry import ESTIMATORS

Divergences = dict[str, Float64[Tensor, " batch"]]
"""KL(model ‖ estimator) of every sequence, by estimator."""


def fit_each(
    names: Iterable[str],
    fitting: Evidence,
    fitted_to: Float64[Tensor, "fitted vocab"],
    held_out: Evidence,
    compared_with: Float64[Tensor, "held vocab"],
    known: dict[str, Fit],
) -> tuple[dict[str, Fit], Divergences, dict[str, str]]:
    """Fit each estimator to predictions and score it on held-out sequences.

    Args:
        names: the estimators to fit.
        fitting: the evidence of the sequences to fit on.
        fitted_to: the model's predictions on those sequences.
        held_out: the evidence of the sequences to score on.
        compared_with: the model's predictions on the held-out sequences.
        known: fits that need not be computed again.

    Returns:
        Fits and held-out divergences by name, and for every other name why it was left out.
    """
    fits: dict[str, Fit] = {}
    scores: Divergences = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            fit = known.get(name) or fit_constants(ESTIMATORS[name], fitting, fitted_to)
            scores[name] = _divergence(name, held_out, compared_with, fit.constants)
        except CannotCompute as error:
            left_out[name] = str(error)
            continue
        fits[name] = fit
    return fits, scores, left_out


def score_each(
    fits: Mapping[str, Fit], evidence: Evidence, predictions: Float64[Tensor, "batch vocab"]
) -> tuple[Divergences, dict[str, str]]:
    """Score estimators with the constants that they have.

    Args:
        fits: the constants by estimator.
        evidence: the evidence of the sequences to score on.
        predictions: the model's predictions on those sequences.

    Returns:
        Divergences by estimator, and why each of the others could not be computed.
    """
    scores: Divergences = {}
    left_out: dict[str, str] = {}
    for name, fit in fits.items():
        try:
            scores[name] = _divergence(name, evidence, predictions, fit.constants)
        except CannotCompute as error:
            left_out[name] = str(error)
    return scores, left_out


def _divergence(
    name: str,
    evidence: Evidence,
    predictions: Float64[Tensor, "batch vocab"],
    constants: Constants,
) -> Float64[Tensor, " batch"]:
    """KL(model ‖ estimator) of every sequence, if it is finite."""
    weights = ESTIMATORS[name].checked_weights(evidence, constants)
    divergence = evidence.divergence(predictions, weights)
    if not divergence.isfinite().all():
        raise CannotCompute("its predictions are not finite numbers here")
    return divergence


def not_told_apart(scores: Divergences, n_constants: dict[str, int]) -> list[str]:
    """The nearest estimator after penalising constants, and those not clearly farther away.

    Args:
        scores: divergences by estimator.
        n_constants: how many constants each of them has.

    Returns:
        The names, in the order of `scores`.
    """
    paid = {}
    for name, values in scores.items():
        price = PRICE ** max(0, n_constants[name] - 1)
        paid[name] = (values + RESOLUTION) * price
    nearest = min(paid.values(), key=lambda values: values.mean().item())
    level = nearest.mean().item()
    tied = []
    for name, values in paid.items():
        difference = values - nearest
        noise = min(1.96 * mean_stderr(difference), (TELLABLE - 1) * level)
        if difference.mean().item() <= max((CLOSE - 1) * level, noise):
            tied.append(name)
    return tied


def simplest(
    ties: list[str], n_constants: dict[str, int], shifted: Iterable[Divergences] = ()
) -> str:
    """The simplest of the tied estimators, after shifted sequences have ruled some out.

    Estimators come in order of simplicity: of mirror descents with one constant each, the one with
    fewer steps first.

    Args:
        ties: estimators that are not distinguished, simplest first.
        n_constants: how many constants each estimator has.
        shifted: divergences on further sequences.

    Returns:
        The name of one of them.
    """
    fewest = min(n_constants[name] for name in ties)
    simple = [name for name in ties if n_constants[name] == fewest]
    for found in shifted:
        compared = {name: found[name] for name in simple if name in found}
        if len(compared) < 2:
            continue
        together = not_told_apart(compared, n_constants)
        simple = [name for name in simple if name in together or name not in found]
    return simple[0]
