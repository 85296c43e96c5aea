"""Small models, sequences that fit them, and an independent forward pass to hold them against."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mtdinterp import MTDTask
from mtdinterp.construction import one_step, one_step_standard
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    LensTransformer,
    StandardConfig,
    StandardTransformer,
)

VOCAB, LENGTH, ORDER, BETA = 3, 5, 2, 4.0
Edit = Callable[[str, int, Tensor], Tensor]


def random_weights(model: LensTransformer, seed: int = 0) -> LensTransformer:
    """Weights large enough that every intervention is felt, in float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.copy_(
                0.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    return model.eval()


@pytest.fixture(params=["disentangled", "standard"])
def model(request: pytest.FixtureRequest) -> LensTransformer:
    """A random model of each architecture: two layers, two heads."""
    shape = {"vocab_size": VOCAB, "length": LENGTH, "n_layers": 2, "n_heads": 2}
    if request.param == "disentangled":
        return random_weights(DisentangledTransformer(DisentangledConfig(d_rel=2, **shape)))
    return random_weights(StandardTransformer(StandardConfig(d_model=6, **shape)))


@pytest.fixture
def uneven() -> LensTransformer:
    """Two heads in the first layer, one in the second: only the disentangled model allows it."""
    config = DisentangledConfig(
        vocab_size=VOCAB, length=LENGTH, n_layers=2, n_heads=(2, 1), d_rel=2
    )
    return random_weights(DisentangledTransformer(config))


def random_tokens(seed: int, batch: int = 3, length: int = LENGTH) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def clean() -> Tensor:
    return random_tokens(1)


@pytest.fixture
def corrupt() -> Tensor:
    return random_tokens(2)


@pytest.fixture(params=["disentangled", "standard"])
def constructed(request: pytest.FixtureRequest) -> SimpleNamespace:
    """One step of mirror descent as weights, with the names its architecture gives to the same
    things."""
    task = MTDTask.random(vocab_size=VOCAB, order=ORDER, seed=0)
    length = 8
    build, token, gamma, mean, inert = {
        "disentangled": (one_step, "token", "L1.lag", "L2.L1.lag", "L1.token"),
        "standard": (
            one_step_standard,
            "token",
            "responsibilities",
            "mean_responsibilities",
            "unused",
        ),
    }[request.param]
    return SimpleNamespace(
        model=build(task.transition, ORDER, length, BETA, dtype=torch.float64),
        transition=task.transition,
        clean=task.sample(40, length, seed=1).tokens,
        corrupt=task.sample(40, length, seed=2).tokens,
        token=token,
        gamma=gamma,
        mean=mean,
        inert=inert,
    )


def unedited(name: str, layer: int, value: Tensor) -> Tensor:
    return value


def additive_forward(model: LensTransformer, tokens: Tensor, edit: Edit = unedited) -> Tensor:
    """An ordinary additive transformer with the weights that the model shows to TransformerLens.

    Tables are laid out as [head, query, key, d], nothing shares memory and nothing is skipped;
    `edit` is called with every activation, by its TransformerLens name and its layer, and returns
    what goes on.
    """
    position = torch.arange(tokens.shape[1])
    offset = (position[:, None] - position).clamp_min(0)
    stream = model.W_E[tokens]
    for layer, block in enumerate(model.blocks):
        attn = block.attn
        stream = edit("resid_pre", layer, stream)
        forked = stream[:, :, None].expand(-1, -1, attn.n_heads, -1)
        query_in, key_in, value_in = (edit(f"{name}_input", layer, forked) for name in "qkv")
        q = edit("q", layer, torch.einsum("bphd,hde->bphe", query_in, attn.W_Q))
        k = edit("k", layer, torch.einsum("bphd,hde->bphe", key_in, attn.W_K))
        v = edit("v", layer, torch.einsum("bphd,hde->bphe", value_in, attn.W_V))
        if isinstance(model, DisentangledTransformer):
            p, key_table, scale = edit("p", layer, query_in[..., : attn.d_in]), attn.R_A, 1.0
            value_table = F.pad(attn.R_V, (attn.d_in, 0))
            v = F.pad(v[..., : attn.d_in], (0, attn.d_rel))  # the lag columns of v do not exist
        else:
            p, key_table, scale, value_table = q, attn.R_K, attn.d_head**-0.5, attn.R_V
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        scores = scale * (scores + torch.einsum("bqhd,hqkd->bhqk", p, key_table[:, offset]))
        future = position[:, None] < position
        pattern = edit("pattern", layer, scores.masked_fill(future, float("-inf")).softmax(-1))
        z = torch.einsum("bhqk,bkhd->bqhd", pattern, v)
        z = edit("z", layer, z + torch.einsum("bhqk,hqkd->bqhd", pattern, value_table[:, offset]))
        attn_out = edit("attn_out", layer, torch.einsum("bphd,hdm->bpm", z, attn.W_O))
        stream = stream + attn_out
    return stream @ model.W_U


def additive_cache(model: LensTransformer, tokens: Tensor) -> dict[tuple[str, int], Tensor]:
    """Every activation of `additive_forward`."""
    seen = {}

    def record(name: str, layer: int, value: Tensor) -> Tensor:
        seen[name, layer] = value.detach()
        return value

    additive_forward(model, tokens, record)
    return seen


@pytest.fixture
def additive() -> SimpleNamespace:
    """`additive.forward(model, tokens, edit)` and `additive.cache(model, tokens)`."""
    return SimpleNamespace(forward=additive_forward, cache=additive_cache)


@pytest.fixture
def eager_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the eager attention, with and without hooks."""
    monkeypatch.setenv("MTDINTERP_KERNEL", "eager")
