"""Mixture weights from tokens: one module an estimator family.

Each estimator is `(transition, tokens, order, ...) -> weights [batch, order]`, in float64.
"""

from mtdinterp.estimators.bayes import exact_posterior_mean
from mtdinterp.estimators.em import expectation_maximization
from mtdinterp.estimators.entropic import entropic_map, entropic_path
from mtdinterp.estimators.gibbs import gibbs_posterior_mean
from mtdinterp.estimators.likelihood import (
    lag_likelihoods,
    log_likelihood,
    mean_responsibilities,
    responsibilities,
    uniform_weights,
)
from mtdinterp.estimators.mirror import (
    beta_from_learning_rate,
    learning_rate_from_beta,
    mirror_descent,
)
from mtdinterp.estimators.reweighted import TwoStepConstants, reweighted_two_step
from mtdinterp.estimators.tuning import TunedRate, tune_learning_rate
from mtdinterp.task import predict_next

__all__ = [
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
    "predict_next",
    "responsibilities",
    "reweighted_two_step",
    "tune_learning_rate",
    "uniform_weights",
]
