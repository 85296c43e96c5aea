"""Checks of ActivationCache."""

import torch
from transformer_lens.utilities import get_act_name

from lens_checks.base import Section, Setting, each_raises, random_model, same

caches = Section("ActivationCache")


@caches.works('`cache["pattern", 0]`, `utilities.get_act_name`')
def names(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    same(cache["pattern", 0].sum(-1), torch.ones(3, 2, 12))
    assert cache["pattern", 0] is cache[get_act_name("pattern", 0)]


@caches.works("`accumulated_resid`, `decompose_resid`")
def decompositions(at: Setting) -> None:
    outputs, cache = at.model.run_with_cache(at.tokens)
    components, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["embed", "0_attn_out", "1_attn_out"]
    same(components.sum(0) @ at.model.W_U, outputs)
    same(cache.accumulated_resid(), components.cumsum(0))


@caches.works('`stack_head_results`, `compute_head_results`, `cache["result", layer]`')
def head_results(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    heads, labels = cache.stack_head_results(return_labels=True)
    assert labels == at.model.all_head_labels
    same(heads[2:].sum(0), cache["attn_out", 1])
    _, cache = at.model.run_with_cache(at.tokens)
    cache.compute_head_results()
    same(cache["result", 1].sum(2), cache["attn_out", 1])


@caches.works("`get_full_resid_decomposition`")
def full_decomposition(at: Setting) -> None:
    outputs, cache = at.model.run_with_cache(at.tokens)
    parts, labels = cache.get_full_resid_decomposition(return_labels=True)
    assert labels == [*at.model.all_head_labels, "embed", "bias"]
    same(parts.sum(0) @ at.model.W_U, outputs)
    direction = at.model.W_U[:, 1]
    projected = cache.get_full_resid_decomposition(project_output_onto=direction)
    same(projected.sum(0), outputs[..., 1])


@caches.works(
    "`logit_attrs`",
    "Attributions add up to the outputs, which are probabilities unless `config.logits`.",
)
def logit_attributions(at: Setting) -> None:
    outputs, cache = at.model.run_with_cache(at.tokens)
    parts = cache.decompose_resid()
    same(cache.logit_attrs(parts, 1, incorrect_tokens=2).sum(0), outputs[..., 1] - outputs[..., 2])


@caches.refused(
    "`logit_attrs` of a model with `d_mlp` > 0",
    AssertionError,
    "The hidden layer makes outputs nonlinear in the stream, so the parts add up to its linear "
    "part only.",
)
def attributions_of_hidden_layer(at: Setting) -> None:
    model = random_model(at.architecture, d_mlp=5)
    outputs, cache = model.run_with_cache(at.tokens)
    same(cache.logit_attrs(cache.decompose_resid(), 1).sum(0), outputs[..., 1])


@caches.works("`cache.logit_lens`")
def cached_logit_lens(at: Setting) -> None:
    outputs, cache = at.model.run_with_cache(at.tokens)
    same(cache.logit_lens(positions=None).values[-1], outputs)


@caches.works("`stack_activation` of patterns, scores and the stream")
def stacked_patterns(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    same(cache.stack_activation("pattern")[1], cache["pattern", 1])
    same(cache.stack_activation("resid_post")[1], cache["resid_post", 1])


@caches.refused(
    "`stack_activation` of `q`, `k`, `v`, `z`",
    RuntimeError,
    disentangled="Heads of later layers are wider, because they read a wider stream.",
)
def stacked_heads(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    same(cache.stack_activation("z")[1], cache["z", 1])


@caches.works("`apply_ln_to_stack`, `apply_ln=True`", "There are no layer norms: nothing changes.")
def no_norms(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    parts = cache.decompose_resid()
    assert torch.equal(cache.apply_ln_to_stack(parts), parts)
    assert torch.equal(cache.accumulated_resid(apply_ln=True), cache.accumulated_resid())


@caches.works("`remove_batch_dim`, `apply_slice_to_batch_dim`, `to`")
def conversions(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    first = cache.apply_slice_to_batch_dim(0)
    same(first["pattern", 0], cache["pattern", 0][0])
    _, single = at.model.run_with_cache(at.tokens[:1])
    same(single.remove_batch_dim()["pattern", 0], first["pattern", 0])
    same(cache.to("cpu")["z", 1], cache["z", 1])


@caches.refused(
    "`get_neuron_results`, `stack_neuron_results`",
    (KeyError, AttributeError),
    "The layers have attention only.",
)
def neurons(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    calls = [lambda: cache.get_neuron_results(0), lambda: cache.stack_neuron_results(2)]
    each_raises((KeyError, AttributeError), calls)
