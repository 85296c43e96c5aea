"""A small model with random weights, and what an edit leaves at a hook point."""

import torch

from mtdinterp.interventions import Edit, patch
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.tasks import MTDTask

TASK = MTDTask.random(3, 2, seed=0)
TOKENS, OTHER = (TASK.sample(4, 7, seed=seed).tokens for seed in (1, 2))


def with_random_weights(model):
    """The model with weights large enough to attend unevenly."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def concatenated():
    """Three layers, the first with two heads."""
    config = DisentangledConfig(vocab_size=3, length=7, d_rel=2, n_heads=(2, 1, 1))
    return with_random_weights(DisentangledTransformer(config))


def edited(model, hook, source, **place):
    """The activation of a hook point with an edit there."""
    seen = {}

    def remember(value):
        seen["value"] = value.clone()
        return value

    layer = place.get("layer")
    edits = [Edit(hook, source, **place), Edit(hook, remember, layer=layer)]
    patch(model, TOKENS, edits)
    return seen["value"]
