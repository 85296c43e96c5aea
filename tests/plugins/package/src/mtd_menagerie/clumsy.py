"""An estimator and a probe that can be loaded, and fail when they are used."""

from mtdinterp.estimators import Estimator
from mtdinterp.plugins import register_estimator, register_probe


@register_estimator
class Clumsy(Estimator):
    """Looks up a constant that it does not have."""

    name, label = "clumsy", "an estimator that fails"

    def weights(self, evidence, **constants):
        return evidence.uniform * constants["missing"]


@register_probe("stumbling", label="Does this probe fail?")
def stumbling(model, task):
    raise RuntimeError("it stumbled")
