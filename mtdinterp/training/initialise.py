"""Where training starts. Every start is a function of the model's shape and a seed, and knows
nothing of the task.

The loss does not change when layer 1 attends to the least likely lag instead of the likeliest and
the last layer reads it with the opposite sign, so a random start may end in that mirrored solution.
The tied starts break the symmetry: the last layer's read of the averaged lag block begins as what
layer 1 writes there, for every offset. They contain nothing about the transition matrix or the
number of lags.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from mtdinterp.checks import check_option
from mtdinterp.models import DisentangledTransformer, LensTransformer, StandardTransformer

SMALL = 0.02
"""Standard deviation of a small weight."""
TIE = 3.0
"""How strongly a tied start reads: with 1 some tasks stayed on the plateau, with 8 the end was no
better."""
DECAY = 0.25
"""How fast an offset's code shrinks with it: with 0 some tasks stalled, with 0.5 and 1 the hard
ones were slower."""
CODE_WIDTH = 8
"""Directions for an offset's code in the standard transformer: 4 were too few for one of the two
tasks tried."""
SECOND_STEP = 0.5
"""How strongly a five-layer start looks away from positions that its first weights explain."""


def initialise(model: LensTransformer, name: str, seed: int) -> None:
    """Set all parameters by one of the named starts; torch's global generator is left as it was."""
    start = INITIALISATIONS[check_option("initialisation", name, INITIALISATIONS)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        start(model)


def default(model: LensTransformer) -> None:
    """The architecture's own: small scores, so that attention starts uniform, and value tables at
    unit scale."""
    model.reset_parameters()


def small(model: LensTransformer) -> None:
    """Every weight small."""
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=SMALL)


def torch_default(model: LensTransformer) -> None:
    """What PyTorch's own layers would start with: tables N(0, 1) as in Embedding, matrices uniform
    as in Linear."""
    for name, parameter in model.named_parameters():
        if name.rsplit(".")[-1].startswith("R_") or name.endswith("W_E"):
            nn.init.normal_(parameter)
        elif parameter.ndim == 1:
            nn.init.zeros_(parameter)
        else:
            bound = parameter.shape[-2] ** -0.5
            nn.init.uniform_(parameter, -bound, bound)


def tied(model: LensTransformer) -> None:
    """`default`, with later layers reading lag blocks in the code that earlier ones write."""
    _tie(model, sign=1)


def mirrored(model: LensTransformer) -> None:
    """`tied` with the opposite sign: leads to the mirrored solution on purpose."""
    _tie(model, sign=-1)


def _tie(model: LensTransformer, sign: int) -> None:
    heads = [layer.n_heads for layer in model.attention]
    if len(heads) < 3 or set(heads) != {1}:
        raise ValueError(
            "initialisation: the tied starts need three layers or more with one head each, got "
            f"{len(heads)} with {heads}"
        )
    model.reset_parameters()
    if isinstance(model, StandardTransformer):
        _tie_standard(model, sign)
    else:
        _tie_disentangled(cast(DisentangledTransformer, model), sign)


def _tie_disentangled(model: DisentangledTransformer, sign: int) -> None:
    layers = model.attention
    code = spread_code(layers[0].R_V.shape[1], model.config.d_rel)
    layers[0].R_V[0] = code
    here = torch.roll(code, -1, dims=0)  # offset k at a query is lag k + 1 of the token to predict
    layers[-1].R_A[0, :-1, model.stream["L2.L1.lag"]] = sign * TIE * here[:-1]
    if len(layers) >= 5:
        _tie_second_step(model, here, sign)


def _tie_standard(model: StandardTransformer, sign: int) -> None:
    """The same in orthogonal directions of the residual stream, small noise everywhere else.

    Tokens have directions of their own; layer 1 writes an offset's code into `written`, layer 2
    moves what it averages of that to `averaged`, and the last layer's queries read it there,
    against the code in its key table.
    """
    config, (first, second, *_, last) = model.config, model.attention
    width = min(CODE_WIDTH, config.head_width, (config.d_model - config.vocab_size) // 3)
    if width < 1:
        raise ValueError(
            "initialisation: the tied start needs d_model of at least vocab_size + 3, got "
            f"{config.d_model}"
        )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=SMALL)
    frame, _ = torch.linalg.qr(torch.randn(config.d_model, config.d_model))
    sizes = [config.vocab_size, width, width]
    token, written, averaged = frame[: sum(sizes)].split(sizes)
    code = spread_code(config.length, width)
    model.embed.W_E.copy_(token)
    first.R_V[0, :, :width] = code
    first.W_O[0, :width] = written
    second.W_V[0, :, :width] = written.T
    second.W_O[0, :width] = averaged
    last.W_Q[0, :, :width] = averaged.T
    last.R_K[0, :-1, :width] = sign * TIE * last.d_head**0.5 * torch.roll(code, -1, dims=0)[:-1]
    # What the last layer attends to must be seen for its weights to matter.
    nn.init.normal_(last.W_V, std=config.d_model**-0.5)
    nn.init.normal_(last.W_O, std=config.d_model**-0.5)


def _tie_second_step(model: DisentangledTransformer, here: Tensor, sign: int) -> None:
    """Layer 3 reads and writes weights in layer 1's code; layer 4 looks away from where they
    already explain."""
    third, fourth, fifth = model.attention[2:5]
    third.R_A[0, :-1, model.stream["L2.L1.lag"]] = sign * TIE * here[:-1]
    third.R_V[0, :-1] = here[:-1]
    d_rel = model.config.d_rel
    fourth.W_A[0, model.stream["L3.lag"], model.stream["L1.lag"]] = (
        -sign * SECOND_STEP * torch.eye(d_rel)
    )
    fifth.R_A[0, :-1, model.stream["L4.L1.lag"]] = sign * TIE * here[:-1]


def spread_code(length: int, width: int) -> Tensor:
    """A random row for every offset o, of length √width·o^-DECAY, orthogonal to its neighbours as
    far as that goes.

    From offset 1 on, every `width` rows are a random orthogonal frame: neighbouring offsets are
    told apart from the start. Far offsets share the same few dimensions, and at full length all of
    them together drown the near ones: without the decay some tasks stayed on the plateau.
    """
    code = torch.empty(length, width)
    code[0] = nn.functional.normalize(torch.randn(width), dim=0)
    for first in range(1, length, width):
        frame, _ = torch.linalg.qr(torch.randn(width, width))
        code[first : first + width] = frame[: length - first]
    return code * width**0.5 * torch.arange(length).clamp_min(1)[:, None] ** -DECAY


INITIALISATIONS: dict[str, Callable[[LensTransformer], None]] = {
    "tied": tied,
    "default": default,
    "small": small,
    "torch": torch_default,
    "mirrored": mirrored,
}
