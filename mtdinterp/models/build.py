"""A fresh model from its architecture's name and the shapes that matter to it."""

from mtdinterp.checks import check_option
from mtdinterp.models.config import DisentangledConfig, StandardConfig
from mtdinterp.models.disentangled import DisentangledTransformer
from mtdinterp.models.lens import LensTransformer
from mtdinterp.models.standard import StandardTransformer

ARCHITECTURES = ("disentangled", "standard")


def new_model(
    architecture: str,
    vocab_size: int,
    length: int,
    n_layers: int = 3,
    n_heads: int = 1,
    d_rel: int = 4,
    d_model: int = 32,
    d_mlp: int = 0,
    logits: bool = False,
) -> LensTransformer:
    """`d_rel` is the disentangled one's, `d_model` the standard one's."""
    if check_option("architecture", architecture, ARCHITECTURES) == "disentangled":
        return DisentangledTransformer(
            DisentangledConfig(
                vocab_size=vocab_size,
                length=length,
                n_layers=n_layers,
                n_heads=n_heads,
                d_rel=d_rel,
                d_mlp=d_mlp,
                logits=logits,
            )
        )
    return StandardTransformer(
        StandardConfig(
            vocab_size=vocab_size,
            length=length,
            n_layers=n_layers,
            n_heads=n_heads,
            d_model=d_model,
            d_mlp=d_mlp,
            logits=logits,
        )
    )
