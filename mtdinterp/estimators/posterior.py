"""The posterior mean by whatever method can compute it: integration, and sampling beyond that."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_concentration, check_option, check_order
from mtdinterp.errors import RuleTooLarge
from mtdinterp.estimators.base import Estimator
from mtdinterp.estimators.exact_bayes import MAX_NODES, posterior_mean_of
from mtdinterp.estimators.gibbs import sampled_posterior_mean
from mtdinterp.evidence import Evidence, evidence_of
from mtdinterp.plugins import register_estimator
from mtdinterp.style import Style

SMALLEST_PROBABILITY = 1e-300
"""A token that no component predicts has no variance either; this avoids 0/0."""

METHODS = ("auto", "exact", "gibbs")

TOGETHER = (128, 8)
"""Sequences that are integrated together. If one of them needs too large a rule, they are tried
again in smaller groups, and the group that it is in is sampled."""

COMPARING_TOLERANCE, COMPARING_NODES = 1e-5, 7_000_000
"""Accuracy when estimators are compared, and the largest rule that is worth waiting for there. With
6 lags, the rules have 14 to 18 nodes per fraction and may have 23. 7 lags need more than 7 million.
"""


@dataclass(frozen=True, eq=False)
class PosteriorMean:
    """Posterior means, and how well they are known."""

    weights: Float64[Tensor, "batch lag"]
    stderr: Float64[Tensor, "batch lag"] | None
    """Standard errors, 0 for sequences that were integrated; None if all of them were."""
    method: str
    """"exact" if all sequences were integrated, "gibbs" if some were sampled."""


def posterior_mean(
    transition: ArrayLike,
    tokens: ArrayLike,
    order: int,
    concentration: ArrayLike | float = 1.0,
    method: str = "auto",
    *,
    tolerance: float = 1e-8,
    max_nodes: int = MAX_NODES,
    seed: int = 0,
) -> PosteriorMean:
    """E[weights | tokens] under a Dirichlet prior, exactly or with a standard error.

    Args:
        transition: row-stochastic matrix [vocab, vocab].
        tokens: integer array [batch, pos].
        order: the number of lags.
        concentration: α, one number or one per lag.
        method: "exact" integrates, "gibbs" samples (Rao-Blackwellised), and "auto" samples only if
            integration would need too many nodes.
        tolerance: accuracy of every entry if it is integrated, at least 1e-12.
        max_nodes: the largest rule to use.
        seed: seed of the sampler.

    Returns:
        Posterior means of every sequence, with standard errors if they were sampled.

    Raises:
        RuleTooLarge: with method "exact", if a sequence needs more than `max_nodes` nodes.
    """
    check_option("method", method, METHODS)
    alpha = tuple(as_concentration(concentration, check_order(order)).tolist())
    evidence = evidence_of(transition, tokens, order, alpha)
    return posterior_mean_by(evidence, method, tolerance, max_nodes, seed)


def posterior_mean_by(
    evidence: Evidence,
    method: str = "auto",
    tolerance: float = 1e-8,
    max_nodes: int = MAX_NODES,
    seed: int = 0,
) -> PosteriorMean:
    """Like `posterior_mean`, from evidence with its own prior.

    Args:
        evidence: the evidence of the sequences.
        method: see `posterior_mean`.
        tolerance: accuracy of every entry if it is integrated.
        max_nodes: the largest rule to use.
        seed: seed of the sampler.

    Returns:
        Posterior means of every sequence, with standard errors if they were sampled.
    """
    if method == "exact":
        return PosteriorMean(posterior_mean_of(evidence, tolerance, max_nodes), None, "exact")
    if method == "gibbs":
        return PosteriorMean(*sampled_posterior_mean(evidence, seed), "gibbs")
    weights = _integrated(evidence, tolerance, max_nodes, TOGETHER)
    (missing,) = weights[:, 0].isnan().nonzero(as_tuple=True)
    if len(missing) == 0:
        return PosteriorMean(weights, None, "exact")
    stderr = torch.zeros_like(weights)
    weights[missing], stderr[missing] = sampled_posterior_mean(evidence[missing], seed)
    return PosteriorMean(weights, stderr, "gibbs")


def _integrated(
    evidence: Evidence, tolerance: float, max_nodes: int, together: tuple[int, ...]
) -> Float64[Tensor, "batch component"]:
    """Posterior means, NaN for sequences in groups that need too large a rule.

    Args:
        evidence: the evidence of the sequences.
        tolerance: accuracy of every entry.
        max_nodes: the largest rule to use.
        together: the sizes of groups to try, the largest first.

    Returns:
        Posterior means of every sequence.
    """
    if not together:
        return torch.full_like(evidence.uniform, torch.nan)
    size, *smaller = together
    parts = []
    for some in torch.arange(len(evidence)).split(size):
        group = evidence[some]
        try:
            parts.append(posterior_mean_of(group, tolerance, max_nodes))
        except RuleTooLarge:
            parts.append(_integrated(group, tolerance, max_nodes, tuple(smaller)))
    return torch.cat(parts)


def sampling_divergence(
    evidence: Evidence,
    weights: Float64[Tensor, "batch component"],
    stderr: Float64[Tensor, "batch component"],
) -> Float64[Tensor, " batch"]:
    """What errors of the weights add to the KL of their predictions, on average.

    KL(p ‖ q + δ) exceeds KL(p ‖ q) by ½ Σ_v δ_v² / q_v on average, if δ has mean 0 and p is q on
    average. Here δ_v = Σ_g ε_g·rows[g, v] with the errors ε of the weights, which sum to 0. They
    are taken to be independent errors minus their mean. That leaves (m - 1)/m of the variance, and
    only differences from the mean row count.

    Args:
        evidence: the evidence of the sequences.
        weights: estimated weights.
        stderr: their standard errors.

    Returns:
        The expected excess of every sequence.
    """
    predicted = evidence.predict(weights)
    centred = evidence.rows - evidence.rows.mean(1, keepdim=True)
    share = max(1, evidence.n_components - 1) / evidence.n_components
    variance = (centred.square() * stderr.square()[..., None]).sum(1) / share
    return 0.5 * (variance / predicted.clamp_min(SMALLEST_PROBABILITY)).sum(-1)


@register_estimator
class ExactBayes(Estimator):
    """The posterior mean of the weights: no estimator predicts better on average.

    It is integrated, and sampled where that would need too large a rule; `accuracy_note` says so.
    """

    name, label = "exact_bayes", "the exact posterior mean"
    rank = 40
    style = Style("#111827", "*", "-")

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Evidence, PosteriorMean] = WeakKeyDictionary()

    def weights(self, evidence: Evidence, **constants: float) -> Float64[Tensor, "batch component"]:
        return self._posterior_mean(evidence).weights

    def accuracy_note(self, evidence: Evidence) -> str | None:
        found = self._posterior_mean(evidence)
        if found.stderr is None:
            return None
        n_sampled = int((found.stderr > 0).any(-1).sum())
        noise = sampling_divergence(evidence, found.weights, found.stderr).mean().item()
        return (
            f"sampled for {n_sampled} of {len(evidence)} sequences, because exact integration "
            f"would take too many nodes; standard errors of the weights at most "
            f"{found.stderr.max().item():.1g}, which adds about {noise:.1g} to its KL"
        )

    def _posterior_mean(self, evidence: Evidence) -> PosteriorMean:
        """The posterior mean, computed once while the evidence is in use."""
        known = self._known.get(evidence)
        if known is None:
            known = posterior_mean_by(
                evidence, tolerance=COMPARING_TOLERANCE, max_nodes=COMPARING_NODES
            )
            self._known[evidence] = known
        return known
