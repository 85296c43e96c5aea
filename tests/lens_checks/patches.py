"""Checks of patching and attribution."""

import torch
from transformer_lens import patching
from transformer_lens.tools.analysis import (
    EdgeAttributionConfig,
    attribution_patch,
    direct_logit_attribution,
    faithfulness,
)

from lens_checks.base import LENGTH, Section, Setting, metric, same

patches = Section("Patching and attribution")


def patched(at: Setting, name: str, where: tuple) -> torch.Tensor:
    """The metric of `other` with a part of one activation from `tokens`, patched by hand."""
    _, cache = at.model.run_with_cache(at.tokens)

    def hook(value: torch.Tensor, hook: object) -> torch.Tensor:
        mixed = value.clone()
        mixed[where] = cache[name][where]
        return mixed

    return metric(at.model.run_with_hooks(at.other, fwd_hooks=[(name, hook)]))


@patches.works("`patching.get_act_patch_resid_pre`, `…_attn_out`")
def patch_stream(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    where = (slice(None), LENGTH - 1)
    found = patching.get_act_patch_resid_pre(at.model, at.other, cache, metric)
    same(found[1, -1], patched(at, "blocks.1.hook_resid_pre", where))
    found = patching.get_act_patch_attn_out(at.model, at.other, cache, metric)
    same(found[0, -1], patched(at, "blocks.0.hook_attn_out", where))


@patches.works("`patching.get_act_patch_attn_head_…` (out, q, k, v, pattern), `…_every`")
def patch_heads(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    every = patching.get_act_patch_attn_head_all_pos_every(at.model, at.other, cache, metric)
    where = (slice(None), slice(None), 1)
    for row, name in enumerate(("z", "q", "k", "v")):
        same(every[row, 0, 1], patched(at, f"blocks.0.attn.hook_{name}", where))
    same(every[4, 0, 1], patched(at, "blocks.0.attn.hook_pattern", (slice(None), 1)))


@patches.works("`patching.generic_activation_patch`")
def patch_anything(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    found = patching.generic_activation_patch(
        at.model,
        at.other,
        cache,
        metric,
        patching.layer_pos_patch_setter,
        "resid_post",
        index_axis_names=("layer", "pos"),
    )
    same(found[1, -1], metric(at.model(at.tokens)))


@patches.works("`get_act_patch_direct_path`, `…_all_sources`")
def path_patching(at: Setting) -> None:
    _, clean = at.model.run_with_cache(at.tokens)
    _, corrupt = at.model.run_with_cache(at.other)
    caches = (clean, corrupt)
    found = patching.get_act_patch_direct_path_all_sources(
        at.model, at.other, *caches, metric, "k", verbose=False
    )
    change = (clean["z", 0] - corrupt["z", 0])[:, :, 1] @ at.model.blocks[0].attn.W_O[1]

    def hook(value: torch.Tensor, hook: object) -> torch.Tensor:
        moved = value.clone()
        moved[:, :, 0] += change
        return moved

    at.model.set_use_split_qkv_input(True)
    hooks = [("blocks.1.attn.hook_k_input", hook)]
    same(found[0, 1, 1, 0], metric(at.model.run_with_hooks(at.other, fwd_hooks=hooks)))
    one = patching.get_act_patch_direct_path(
        at.model, at.other, *caches, metric, 0, 1, "k", verbose=False
    )
    same(one, found[0, 1])


@patches.works("`attribution_patch` of nodes and edges, `faithfulness`")
def attribution(at: Setting) -> None:
    config = EdgeAttributionConfig(granularity="edge")
    clean, corrupt = at.tokens[:1], at.other[:1]
    edges = attribution_patch(at.model, clean, corrupt, metric, config).edge_scores
    whole = faithfulness(at.model, clean, corrupt, metric, list(edges))
    same(torch.tensor(whole.recovered), torch.tensor(1.0))
    nodes = attribution_patch(at.model, clean, corrupt, metric).node_scores
    last = {
        node.head: score
        for node, score in nodes.items()
        if node.kind == "attn_head_out" and node.layer == 1 and node.position == LENGTH - 1
    }
    _, cache = at.model.run_with_cache(clean)
    _, other = at.model.run_with_cache(corrupt)
    change = cache.stack_head_results()[2:] - other.stack_head_results()[2:]
    expected = [metric(head @ at.model.W_U) for head in change]
    same(torch.tensor([last[0], last[1]]), torch.stack(expected))


@patches.works("`direct_logit_attribution`")
def direct_attribution(at: Setting) -> None:
    found = direct_logit_attribution(at.model, at.tokens, answer_tokens=0, incorrect_tokens=2)
    outputs = at.model(at.tokens)[:, -1]
    same(found.attribution.sum(0), outputs[:, 0] - outputs[:, 2])
