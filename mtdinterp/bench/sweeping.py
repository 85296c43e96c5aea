"""Benchmark of patch sweeps, batched, against TransformerLens' one patch at a time."""

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from functools import partial

import torch
from torch import Tensor
from transformer_lens import ActivationCache, patching

from mtdinterp.bench.measure import Measurement, interleaved_seconds
from mtdinterp.checkpoints import load_checkpoint
from mtdinterp.interventions import patch_sweep
from mtdinterp.models import LensTransformer

SWEPT = ("disentangled-m4-T64", "standard-m4-T64")
ONE_AT_A_TIME: dict[str, Callable[..., Tensor]] = {
    "resid_pre": patching.get_act_patch_resid_pre,
    "head": patching.get_act_patch_attn_head_out_by_pos,
}
"""TransformerLens' sweep for each kind of ours."""


def sweep(quick: bool) -> list[Measurement]:
    """Patch sweeps of one pair of sequences."""
    lines = []
    for name in SWEPT:
        checkpoint = load_checkpoint(name)
        clean = checkpoint.task.sample(1, 64, seed=1).tokens
        corrupted = checkpoint.task.sample(1, 64, seed=2).tokens
        with torch.no_grad():
            _, cache = checkpoint.model.run_with_cache(clean)
            for kind, theirs in ONE_AT_A_TIME.items():
                actions: dict[str, Callable[[], object]] = {
                    "batched": partial(patch_sweep, checkpoint.model, clean, corrupted, kind),
                    "single": partial(_silently, theirs, checkpoint.model, corrupted, cache),
                }
                seconds = interleaved_seconds(actions, repeats=1 if quick else 3)
                speedup = seconds["single"] / seconds["batched"]
                milliseconds = seconds["batched"] * 1e3
                speedup_name = f"the same over one at a time, {name}"
                lines += [
                    Measurement(f"patch sweep over {kind}, {name}", milliseconds, "ms"),
                    Measurement(speedup_name, speedup, "× faster", aim=10),
                ]
    return lines


def _silently(
    theirs: Callable[..., Tensor], model: LensTransformer, tokens: Tensor, cache: ActivationCache
) -> Tensor:
    """TransformerLens' sweep without its progress bar."""
    with redirect_stderr(io.StringIO()):
        return theirs(model, tokens, cache, lambda outputs: outputs[:, -1].mean())
