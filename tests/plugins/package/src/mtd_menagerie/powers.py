import torch

from mtdinterp import MTDTask
from mtdinterp.checks import as_transition
from mtdinterp.plugins import register_task
from mtdinterp.tasks.lags import LagTask


@register_task
class PowerTask(LagTask):
    """Lag g applies the g-th power of one transition matrix."""

    name, label = "powers", "lag g applies the g-th power of one matrix"

    def __init__(self, base, order, concentration=1.0):
        self.base = as_transition(base)
        self.order = order
        self.concentration = concentration

    @classmethod
    def random(cls, vocab_size, order, seed, concentration=1.0):
        return cls(MTDTask.random(vocab_size, order, seed).transition, order, concentration)

    @property
    def matrices(self):  # [lag, vocab, vocab]
        lags = range(1, self.order + 1)
        return torch.stack([torch.linalg.matrix_power(self.base, lag) for lag in lags])

    def shifted(self):
        return ()

    def to_dict(self):
        values = {"base": self.base.tolist(), "order": self.order}
        return {"kind": self.name, **values, "concentration": self.concentration}

    @classmethod
    def from_dict(cls, values):
        return cls(**values)
