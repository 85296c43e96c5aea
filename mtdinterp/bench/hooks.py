"""Benchmark of hook points: their cost without hooks, and the cost of caching all of them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mtdinterp.bench.measure import Measurement, interleaved_seconds
from mtdinterp.bench.setting import VOCAB_SIZE, bench_task, eagerly
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.models.attention import eager_relative_attention


def hooks(quick: bool) -> list[Measurement]:
    """The overhead of idle hook points and of a full cache, with eager attention."""
    tokens = bench_task().sample(128, 64, seed=1).tokens
    config = DisentangledConfig(vocab_size=VOCAB_SIZE, length=64, d_rel=4)
    model = DisentangledTransformer(config).eval()
    actions = {
        "bare": lambda: _forward_without_hooks(model, tokens),
        "plain": eagerly(lambda: model(tokens)),
        "caching": eagerly(lambda: model.run_with_cache(tokens)),
    }
    with torch.no_grad():
        seconds = interleaved_seconds(actions, repeats=10 if quick else 40)
    idle = 100 * (seconds["plain"] / seconds["bare"] - 1)
    caching = 100 * (seconds["caching"] / seconds["bare"] - 1)
    return [
        Measurement("idle hook points, forward at T = 64", idle, "% on top"),
        Measurement("caching every hook point", caching, "% on top"),
    ]


def _forward_without_hooks(
    model: DisentangledTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float[Tensor, "batch pos vocab"]:
    """The arithmetic of the model without modules or hook points."""
    h = model.embed.identity[tokens]
    for attn in model.attention:
        x = h[:, :, None]
        q = torch.einsum("bphd,hde->bphe", x, attn.W_A)
        content, position = eager_relative_attention(q, x, x, x, attn.R_A, attn.R_V)
        written = torch.cat([content, position], dim=-1)
        h = torch.cat([h, written.flatten(2)], dim=-1)
    return h @ model.W_U
