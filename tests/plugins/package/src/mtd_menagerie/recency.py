import torch

from mtdinterp.estimators import Constant, Estimator
from mtdinterp.plugins import register_estimator


@register_estimator
class Recency(Estimator):
    """Weights that fall geometrically with the lag, whatever the sequence says."""

    name, label = "recency", "weights that fall with the lag"
    constants = (Constant("decay", "ρ", low=0.01, high=10),)

    def weights(self, evidence, **constants):  # -> [batch, component]
        lags = torch.arange(evidence.n_components, dtype=torch.float64)
        falling = (-constants["decay"] * lags).softmax(-1)
        return falling.expand(len(evidence), -1)
