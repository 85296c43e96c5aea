"""Mixture weights from evidence: one file per estimator, found by listing this package.

The classes are looked up by name in `mtdinterp.registry.ESTIMATORS`. The functions below are the
same estimators on plain arrays: `(transition, tokens, order, …) -> weights [batch, order]`.
"""

from typing import TYPE_CHECKING, Any

from mtdinterp.estimators.base import Constant, Constants, Estimator, Fit
from mtdinterp.estimators.entropic import entropic_map, entropic_path
from mtdinterp.estimators.exact_bayes import exact_posterior_mean
from mtdinterp.estimators.functions import (
    lag_likelihoods,
    log_likelihood,
    mean_responsibilities,
    predict_next,
    responsibilities,
    uniform_weights,
)
from mtdinterp.estimators.gibbs import gibbs_posterior_mean
from mtdinterp.estimators.maximum_likelihood import expectation_maximization
from mtdinterp.estimators.mirror_descent import (
    TunedRate,
    beta_from_learning_rate,
    learning_rate_from_beta,
    mirror_descent,
    tune_learning_rate,
)
from mtdinterp.estimators.posterior import PosteriorMean, posterior_mean

if TYPE_CHECKING:
    from mtdinterp.algorithms.two_step import TwoStepConstants, reweighted_two_step

__all__ = [
    "Constant",
    "Constants",
    "Estimator",
    "Fit",
    "PosteriorMean",
    "TunedRate",
    "TwoStepConstants",
    "beta_from_learning_rate",
    "entropic_map",
    "entropic_path",
    "exact_posterior_mean",
    "expectation_maximization",
    "gibbs_posterior_mean",
    "lag_likelihoods",
    "learning_rate_from_beta",
    "log_likelihood",
    "mean_responsibilities",
    "mirror_descent",
    "posterior_mean",
    "predict_next",
    "responsibilities",
    "reweighted_two_step",
    "tune_learning_rate",
    "uniform_weights",
]


def __getattr__(name: str) -> Any:
    # Algorithms import estimators, so these two public names are imported on first use.
    if name in ("TwoStepConstants", "reweighted_two_step"):
        from mtdinterp.algorithms import two_step

        return getattr(two_step, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
