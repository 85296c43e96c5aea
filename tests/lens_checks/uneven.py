"""Checks on a model whose layers have different numbers of heads, which standard ones have not."""

import torch
from transformer_lens import patching
from transformer_lens.head_detector import detect_head
from transformer_lens.tools.analysis import attribution_patch, direct_logit_attribution

from lens_checks.base import LENGTH, Section, Setting, each_raises, metric, random_model, same
from mtdinterp.errors import NotApplicable
from mtdinterp.models import LensTransformer

uneven = Section("Layers with different numbers of heads")

SAME_NUMBER = "Every layer has the same number of heads."
REFUSED = (ValueError, TypeError)
"""What a standard configuration raises: a TypeError where types are checked, as in tests."""


def uneven_model(at: Setting) -> LensTransformer:
    """One head in layer 0, two in layer 1; a standard configuration refuses that."""
    return random_model(at.architecture, n_heads=(1, 2))


@uneven.refused(
    "`model.W_Q` and all that is stacked or computed from stacks",
    REFUSED,
    standard=SAME_NUMBER,
    disentangled="There is no common axis of heads; use `blocks[layer].attn.W_Q` and its like.",
)
def uneven_stacks(at: Setting) -> None:
    model = uneven_model(at)
    names = ("W_Q", "W_K", "W_V", "W_O", "QK", "OV")
    calls = [lambda name=name: getattr(model, name) for name in names]
    each_raises(NotApplicable, [*calls, lambda: model.all_composition_scores("Q")])


@uneven.refused(
    "caches, `stack_head_results`, `decompose_resid`, `direct_logit_attribution`",
    REFUSED,
    standard=SAME_NUMBER,
)
def uneven_caches(at: Setting) -> None:
    model = uneven_model(at)
    outputs, cache = model.run_with_cache(at.tokens)
    rows, labels = cache.stack_head_results(return_labels=True)
    assert labels == ["L0H0", "L1H0", "L1H1"]
    same(rows[1:].sum(0), cache["attn_out", 1])
    same(cache.decompose_resid().sum(0) @ model.W_U, outputs)
    found = direct_logit_attribution(model, at.tokens, answer_tokens=0, unit="head")
    same(found.attribution.sum(0), outputs[:, -1, 0])


@uneven.refused(
    "`get_act_patch_resid_pre`, `attribution_patch`",
    REFUSED,
    standard=SAME_NUMBER,
)
def uneven_patches(at: Setting) -> None:
    model = uneven_model(at)
    _, cache = model.run_with_cache(at.tokens)
    found = patching.get_act_patch_resid_pre(model, at.other, cache, metric)
    assert found.shape == (2, LENGTH)
    scores = attribution_patch(model, at.tokens[:1], at.other[:1], metric).node_scores
    heads = {(node.layer, node.head) for node in scores if node.kind == "attn_head_out"}
    assert heads == {(0, 0), (1, 0), (1, 1)}


@uneven.refused(
    "`get_act_patch_attn_head_…`, `get_act_patch_direct_path_all_sources`, `detect_head`",
    (*REFUSED, IndexError),
    standard=SAME_NUMBER,
    disentangled="They loop over the same number of heads in every layer.",
)
def uneven_sweeps(at: Setting) -> None:
    model = uneven_model(at)
    _, cache = model.run_with_cache(at.tokens)
    _, other = model.run_with_cache(at.other)
    band = torch.ones(LENGTH, LENGTH).tril(-1).triu(-2)

    def heads() -> None:
        patching.get_act_patch_attn_head_out_all_pos(model, at.other, cache, metric)

    def paths() -> None:
        patching.get_act_patch_direct_path_all_sources(
            model, at.other, cache, other, metric, "k", verbose=False
        )

    def detection() -> None:
        detect_head(model, model.to_string(at.tokens[0]), band)

    each_raises(IndexError, [heads, paths, detection])
