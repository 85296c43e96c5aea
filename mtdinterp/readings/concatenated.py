"""A standard transformer as a disentangled one with the same outputs.

A standard layer adds what its heads write to the stream; a disentangled layer appends it. Both
carry the same information. With B the matrix that adds up the parts of a concatenated stream,

    stream = parts·B,
    after a layer:  B ← [B; B·W_V·W_O; W_O]  (once per head),

every score x_i·M·x_j becomes parts_i·(B·M·Bᵀ)·parts_j. So each effective circuit of the standard
transformer is a block of the weights of the disentangled one, under the same names: `L2.L1.lag` is
what layer 2 averages of what layer 1 wrote by offset.
"""

import torch

from mtdinterp.architectures.disentangled import DisentangledConfig, DisentangledTransformer
from mtdinterp.architectures.standard import StandardTransformer
from mtdinterp.errors import NotApplicable
from mtdinterp.models.lens import LensTransformer


def as_concatenated(model: LensTransformer) -> DisentangledTransformer:
    """The model itself if it is disentangled, or the disentangled model with the same outputs.

    Args:
        model: a disentangled or a standard transformer with a linear output.

    Returns:
        A disentangled transformer in double precision. Its value tables have the width of a head of
        the standard one.

    Raises:
        NotApplicable: for another architecture, or a model with a hidden layer before its output.
    """
    if model.config.d_mlp:
        raise NotApplicable(
            "model: the hidden layer before the output mixes all blocks of the stream; this needs "
            "a model without one"
        )
    if isinstance(model, DisentangledTransformer):
        return model
    if not isinstance(model, StandardTransformer):
        raise NotApplicable(
            f"a model of the architecture {model.config.architecture} cannot be written with a "
            "concatenated stream"
        )
    return _unfolded(model)


@torch.no_grad()
def _unfolded(model: StandardTransformer) -> DisentangledTransformer:
    """The disentangled transformer with the outputs of a standard one."""
    config = model.config
    wide = DisentangledTransformer(
        DisentangledConfig(
            vocab_size=config.vocab_size,
            length=config.length,
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            d_rel=config.head_width,
            exact_length=config.exact_length,
            logits=config.logits,
        )
    ).double()
    parts = model.W_E.double()  # B, [width of the concatenated stream, d_model]
    for attention, target in zip(model.attention, wide.attention, strict=True):
        queries = parts @ (attention.W_Q.double() * attention.score_scale)
        keys = parts @ attention.W_K.double()
        target.W_A.copy_(queries @ keys.mT)
        target.R_A.copy_(attention.R_K.double() @ queries.mT)
        target.R_V.copy_(attention.R_V)
        written = [parts]
        for values, output in zip(attention.W_V.double(), attention.W_O.double(), strict=True):
            written += [parts @ values @ output, output]
        parts = torch.cat(written)
    wide.unembed.W_U.copy_(parts @ model.unembed.W_U.double())
    return wide.eval()
