"""The true next-token distribution on average, given a sequence."""

from jaxtyping import Float64
from torch import Tensor

from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.exact_bayes import posterior_mean_of
from mtdinterp.evidence import Evidence

TOLERANCE = 1e-6
"""Of the posterior mean's weights."""


def expected_truth(
    evidence: Evidence, next_probs: Float64[Tensor, "batch vocab"]
) -> Float64[Tensor, "batch vocab"]:
    """The mean of the truth given each sequence, which is the Bayes prediction.

    KL(truth ‖ p) differs between two predictions p by a term that is linear in the truth. So the
    mean difference is the same with the truth's mean in its place, but varies far less between
    sequences: nothing depends any more on which weights a sequence happened to be drawn with.

    Args:
        evidence: the evidence of the sequences.
        next_probs: the truth itself, for problems whose posterior cannot be computed exactly.

    Returns:
        One distribution per sequence.
    """
    try:
        return evidence.predict(posterior_mean_of(evidence, TOLERANCE))
    except CannotCompute:
        return next_probs
