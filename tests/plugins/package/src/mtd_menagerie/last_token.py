from typing import ClassVar

import torch

from mtdinterp.algorithms.base import Algorithm, Variable
from mtdinterp.algorithms.one_step import RESPONSIBILITIES
from mtdinterp.construction.base import DELTA, Implementation, LayerRole, NamedSite
from mtdinterp.construction.disentangled_layers import (
    attend_to_lags,
    blank_model,
    finished,
    read_by_lag,
    write_responsibilities,
)
from mtdinterp.estimators.mirror_descent import BETA
from mtdinterp.plugins import register_algorithm, register_implementation
from mtdinterp.tasks import require_transition


def last_weights(evidence, values, constants):
    return (constants["beta"] * values["responsibilities"][:, -1]).softmax(-1)


@register_algorithm
class LastToken(Algorithm):
    """softmax(β·γ) with the responsibilities of the last token only."""

    name, label = "last_token", "one step on the last token alone"
    constants = (BETA,)
    variables = (RESPONSIBILITIES, Variable("weights", "w", last_weights))

    def default_constants(self, evidence):
        return {"beta": 1.0}


@register_implementation
class LastTokenDisentangled(Implementation):
    """γ in L1.lag; layer 2 reads the last position's own γ."""

    algorithm, architecture = "last_token", "disentangled"
    roles = (LayerRole.LAGS, LayerRole.WEIGHTS)
    sites: ClassVar = {"responsibilities": NamedSite("L1.lag", 1)}

    def construct(self, task, length, constants, delta=None, dtype=torch.float32):
        known = require_transition(task, "The construction")
        mask = DELTA if delta is None else delta
        model = blank_model(known.transition, known.order, length, n_layers=2)
        with torch.no_grad():
            write_responsibilities(model, known.transition, known.order, mask)
            attend_to_lags(model, 2, known.order, mask)
            read_by_lag(model, 2, "L1.lag", known.order, constants["beta"])
            model.W_U[model.stream["L2.token"]] = known.transition
        return finished(model, dtype)
