"""Architectures: one module each, with configuration, model, starts and folded form together.

Every module here registers its architecture under a name; a new architecture is one new module.
"""

import torch

from mtdinterp import registry
from mtdinterp.architectures.base import Architecture
from mtdinterp.checks import check_option
from mtdinterp.models import LensTransformer

__all__ = ["Architecture", "architecture_of", "initialise", "new_model", "start_names"]


def architecture_of(model: LensTransformer) -> Architecture:
    """The registered architecture of a model."""
    return registry.ARCHITECTURES[model.config.architecture]


def new_model(
    architecture: str,
    vocab_size: int,
    length: int,
    n_layers: int = 3,
    n_heads: int = 1,
    **settings: object,
) -> LensTransformer:
    """A fresh model of a named architecture; see `Architecture.new_model`.

    Args:
        architecture: the name of a registered architecture.
        vocab_size: number of tokens.
        length: the longest sequence that the model accepts.
        n_layers: number of layers.
        n_heads: heads per layer.
        settings: further settings of `Architecture.new_model` or of the architecture.

    Returns:
        The model, with its architecture's default start.
    """
    known = registry.ARCHITECTURES[architecture]
    return known.new_model(vocab_size, length, n_layers, n_heads, **settings)


def initialise(model: LensTransformer, name: str, seed: int) -> None:
    """Set all parameters of a model by one of its architecture's starts.

    Torch's global generator is left unchanged.

    Args:
        model: the model to change.
        name: the name of the start, such as "tied".
        seed: the seed of the random numbers that the start draws.
    """
    starts = architecture_of(model).starts
    start = starts[check_option("initialisation", name, starts)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        start(model)


def start_names() -> tuple[str, ...]:
    """The names of the starts of all registered architectures, without repetition."""
    names: dict[str, None] = {}
    for architecture in registry.ARCHITECTURES.values():
        names.update(dict.fromkeys(architecture.starts))
    return tuple(names)
