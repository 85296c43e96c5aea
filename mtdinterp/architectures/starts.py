"""Initialisations ("starts") that any architecture can use, and parts of tied starts.

A start sets the parameters from the model's shape and random numbers alone; it knows nothing about
the task.

The loss does not change when layer 1 attends to the least likely lag instead of the likeliest and
the last layer reads it with the opposite sign, so training from a random start may end in that
mirrored solution. A tied start breaks the symmetry: at first, the last layer reads the averaged lag
block in the same code in which layer 1 writes it, for every offset. It contains nothing about the
transition matrix or the number of lags.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mtdinterp.models.lens import LensTransformer

SMALL = 0.02
"""Standard deviation of a small weight."""
TIE = 3.0
"""Strength of a tied read. With 1 some tasks stayed on the plateau; with 8 the final KL was no
better."""
DECAY = 0.25
"""Exponent by which an offset's code shrinks with the offset. With 0 some tasks stalled; with 0.5
and 1 the hard ones were slower."""
LEAST_TIED_LAYERS = 3
"""A tied start needs a layer that writes lags, one that averages them and one that reads them."""


def default(model: LensTransformer) -> None:
    """The architecture's own start: `reset_parameters`."""
    model.reset_parameters()


def small(model: LensTransformer) -> None:
    """All weights small and normal."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=SMALL)


def torch_default(model: LensTransformer) -> None:
    """Like PyTorch's layers: tables N(0, 1) like Embedding, matrices uniform like Linear."""
    for name, parameter in model.named_parameters():
        is_table = name.rsplit(".")[-1].startswith("R_") or name.endswith("W_E")
        if is_table:
            nn.init.normal_(parameter)
        elif parameter.ndim == 1:
            nn.init.zeros_(parameter)
        else:
            bound = parameter.shape[-2] ** -0.5
            nn.init.uniform_(parameter, -bound, bound)


def can_tie(n_layers: int, n_heads: int) -> bool:
    """Whether the tied starts apply to this many layers and heads per layer."""
    return n_layers >= LEAST_TIED_LAYERS and n_heads == 1


def check_can_tie(model: LensTransformer) -> None:
    """Refuse a model to which the tied starts do not apply."""
    heads = model.config.heads_per_layer
    if not can_tie(len(heads), max(heads)):
        raise ValueError(
            "initialisation: tied and mirrored need at least three layers with one head each, got "
            f"{len(heads)} layers with {list(heads)} heads"
        )


def spread_code(length: int, width: int) -> Float[Tensor, "length width"]:
    """A random row of norm √width·o^-DECAY for every offset o.

    From offset 1 on, every `width` consecutive rows are a random orthogonal frame, so that
    neighbouring offsets are distinguishable from the start. Far offsets share the same few
    dimensions, and without the decay their sum would dominate the near ones: some tasks then stayed
    on the plateau.
    """
    code = torch.empty(length, width)
    code[0] = nn.functional.normalize(torch.randn(width), dim=0)
    for first in range(1, length, width):
        frame, _ = torch.linalg.qr(torch.randn(width, width))
        code[first : first + width] = frame[: length - first]
    decay = torch.arange(length).clamp_min(1)[:, None] ** -DECAY
    return code * width**0.5 * decay


def code_at_query(code: Float[Tensor, "length width"]) -> Float[Tensor, "length_minus_1 width"]:
    """The code by offset from the last query: offset k there is lag k + 1 of the next token."""
    return code[1:]
