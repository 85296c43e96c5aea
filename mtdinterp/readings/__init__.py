"""Pure readings of a model: its predictions, its attention, and slopes between the two.

Cheap enough to watch a model while it trains; probes build on the same readings. Nothing here
changes the model or depends on its architecture: readings use hook names and the standard weight
matrices.
"""

from mtdinterp.readings.attention import Attention, attention_of, mean_over_heads
from mtdinterp.readings.mechanism import (
    Reading,
    branch_of,
    gauge_fixed,
    lag_attention,
    read,
    token_scores,
)
from mtdinterp.readings.predictions import (
    Predictions,
    Predictor,
    hooked_or_function,
    predictions_of,
    probe_sequences,
    readable_sequences,
)
from mtdinterp.readings.regression import NO_SLOPE, Slope, centred, fit_slope, varying

__all__ = [
    "NO_SLOPE",
    "Attention",
    "Predictions",
    "Predictor",
    "Reading",
    "Slope",
    "attention_of",
    "branch_of",
    "centred",
    "fit_slope",
    "gauge_fixed",
    "hooked_or_function",
    "lag_attention",
    "mean_over_heads",
    "predictions_of",
    "probe_sequences",
    "read",
    "readable_sequences",
    "token_scores",
    "varying",
]
