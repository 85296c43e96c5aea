"""Changes to a model for the probes' tests."""

import copy

import torch


def changed(model, change):
    """A copy of the model with its parameters changed."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        change(other)
    return other


def mirrored(model):
    """Negate layer 1's token scores and layer 3's read of what layer 2 averages."""

    def negate(other):
        other.attention[0].W_A *= -1
        other.attention[2].R_A[..., other.stream["L2.L1.lag"]] *= -1

    return changed(model, negate)
