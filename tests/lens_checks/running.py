"""Checks of forward passes, text and hooks."""

from functools import partial

import pytest
import torch

from lens_checks.base import LENGTH, VOCAB, Section, Setting, each_raises, random_model, same
from mtdinterp.errors import NotApplicable

forward = Section("Running a model")


@forward.works(
    '`model(tokens)`, `return_type="logits"`',
    "Outputs are probabilities as they are, without a softmax, unless `config.logits`; "
    "`model.to_probabilities(outputs)` is right in both cases.",
)
def outputs(at: Setting) -> None:
    predicted = at.construction(at.prompts)[:, -1]
    same(predicted.sum(-1), torch.ones(len(at.prompts)))
    logits = random_model(at.architecture, logits=True)
    same(logits.to_probabilities(logits(at.tokens)), logits(at.tokens).softmax(-1))


@forward.works(
    '`return_type="loss"`, `"both"`, `None`, `loss_per_token`, `model.loss_fn`',
    "The loss is the mean squared error against the one-hot next token; with `config.logits` it is "
    "the cross-entropy, as in TransformerLens.",
)
def losses(at: Setting) -> None:
    outputs, loss = at.model(at.tokens, return_type="both")
    one_hot = torch.eye(VOCAB).double()[at.tokens[:, 1:]]
    same(loss, (outputs[:, :-1] - one_hot).square().mean())
    per_token = at.model(at.tokens, return_type="loss", loss_per_token=True)
    same(per_token.mean(), loss)
    same(at.model.loss_fn(outputs, at.tokens), loss)
    assert at.model(at.tokens, return_type=None) is None


@forward.works(
    "`stop_at_layer`, `start_at_layer`",
    disentangled="The stream that is returned or given has the final width; columns that later "
    "layers write are zero.",
)
def parts(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    stream, seen = at.model.run_with_cache(at.tokens, stop_at_layer=1)
    same(stream, cache["resid_pre", 1])
    assert not [name for name in seen if name.startswith("blocks.1")]
    same(at.model(stream, start_at_layer=1), at.model(at.tokens))


@forward.works(
    "`model.generate`",
    "It draws from the predicted distribution (clipped at zero and renormalised), each token from "
    "the last `config.length` tokens.",
)
def generation(at: Setting) -> None:
    longer = at.construction.generate(at.prompts, 3, seed=0)
    assert torch.equal(longer[:, :LENGTH], at.prompts)
    greedy = at.construction.generate(at.prompts, 2, do_sample=False)
    for end in (LENGTH, LENGTH + 1):
        window = greedy[:, end - LENGTH : end]
        assert torch.equal(greedy[:, end], at.construction(window)[:, -1].argmax(-1))


@forward.works(
    "`to_tokens`, `to_string`, `to_str_tokens`, `to_single_token`, `get_token_position`",
    'Tokens are numbers, and text is their digits: "0 3 1".',
)
def text(at: Setting) -> None:
    tokens = at.model.to_tokens("0 3 1")
    assert tokens.tolist() == [[0, 3, 1]]
    assert at.model.to_string(tokens) == ["0 3 1"]
    assert at.model.to_str_tokens("0 3 1") == ["0", "3", "1"]
    assert at.model.to_single_token("3") == 3
    assert at.model.get_token_position("3", "0 3 1") == 1
    same(at.model("0 3 1"), at.model(tokens))


@forward.works("`prepend_bos`", "Only None and False are accepted: there is no such token.")
def bos(at: Setting) -> None:
    same(at.model(at.tokens, prepend_bos=False), at.model(at.tokens))
    with pytest.raises(NotApplicable):
        at.model(at.tokens, prepend_bos=True)


@forward.refused(
    "`model.tokenizer`, `set_tokenizer`",
    NotApplicable,
    "Tokens are numbers, so there is no tokenizer.",
)
def tokenizer(at: Setting) -> None:
    calls = [lambda: at.model.tokenizer, lambda: at.model.set_tokenizer(None)]
    each_raises(NotApplicable, calls)


@forward.refused(
    "`attention_mask`, `padding_side`, `past_kv_cache`",
    NotApplicable,
    "The sequences of a batch have the same length, and every pass computes all positions.",
)
def masks(at: Setting) -> None:
    options = ("attention_mask", "padding_side", "past_kv_cache")
    calls = [partial(at.model, at.tokens, **{name: at.tokens}) for name in options]
    each_raises(NotApplicable, calls)


@forward.works("`model.cfg`", "`cfg.n_ctx` is `config.length` + 1, because `detect_head` needs it.")
def configuration(at: Setting) -> None:
    assert at.model.cfg.n_ctx == LENGTH + 1
    assert (at.model.cfg.n_layers, at.model.cfg.n_heads, at.model.cfg.d_vocab) == (2, 2, VOCAB)
    assert at.model.cfg.d_model == at.model.W_U.shape[0]


hooks = Section("Hooks")


def double(value: torch.Tensor, hook: object) -> torch.Tensor:
    return 2 * value


NAME = "blocks.1.hook_attn_out"


def doubled(at: Setting) -> torch.Tensor:
    """The outputs if layer 1 wrote twice as much, computed from the cache."""
    outputs, cache = at.model.run_with_cache(at.tokens)
    return outputs + cache["attn_out", 1] @ at.model.W_U


@hooks.works("`run_with_hooks`")
def run_with_hooks(at: Setting) -> None:
    same(at.model.run_with_hooks(at.tokens, fwd_hooks=[(NAME, double)]), doubled(at))
    assert not at.model.is_watched


@hooks.works("`with model.hooks(…)`")
def hooks_context(at: Setting) -> None:
    with at.model.hooks(fwd_hooks=[(lambda name: name == NAME, double)]) as hooked:
        found = hooked(at.tokens)
    same(found, doubled(at))
    assert not at.model.is_watched


@hooks.works("`add_hook`, `add_perma_hook`, `reset_hooks`")
def added_hooks(at: Setting) -> None:
    expected = doubled(at)
    at.model.add_hook(NAME, double)
    same(at.model(at.tokens), expected)
    at.model.reset_hooks()
    at.model.add_perma_hook(NAME, double)
    at.model.reset_hooks()
    same(at.model(at.tokens), expected)
    at.model.reset_hooks(including_permanent=True)
    assert not at.model.is_watched


@hooks.works("backward hooks, `run_with_cache(incl_bwd=True)`")
def backward(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens, return_type="loss", incl_bwd=True)
    stream = cache["blocks.1.hook_resid_post"].clone().requires_grad_()
    loss = at.model.loss_fn(at.model.unembed(stream), at.tokens)
    (gradient,) = torch.autograd.grad(loss, stream)
    same(cache["blocks.1.hook_resid_post_grad"], gradient)


@hooks.works("`run_with_cache` with `names_filter`, `remove_batch_dim`, `pos_slice`")
def filtered_cache(at: Setting) -> None:
    run = partial(at.model.run_with_cache, at.tokens[:1])
    _, whole = run()
    _, cache = run(names_filter=lambda name: name.endswith("pattern"), remove_batch_dim=True)
    assert sorted(cache) == [f"blocks.{layer}.attn.hook_pattern" for layer in range(2)]
    same(cache["pattern", 0], whole["pattern", 0][0])
    _, last = run(names_filter=NAME, pos_slice=-1)
    same(last[NAME], whole[NAME][:, -1:])


@hooks.works("`get_caching_hooks`, `add_caching_hooks`")
def caching_hooks(at: Setting) -> None:
    _, whole = at.model.run_with_cache(at.tokens)
    cache, forward_hooks, _ = at.model.get_caching_hooks(NAME)
    at.model.run_with_hooks(at.tokens, fwd_hooks=forward_hooks)
    same(cache[NAME], whole[NAME])
    added = at.model.add_caching_hooks(NAME)
    at.model(at.tokens)
    at.model.reset_hooks()
    same(added[NAME], whole[NAME])


@hooks.works("`set_use_attn_result`, `set_use_split_qkv_input`, `set_use_attn_in`")
def switches(at: Setting) -> None:
    at.model.set_use_attn_result(True)
    at.model.set_use_split_qkv_input(True)
    _, cache = at.model.run_with_cache(at.tokens)
    same(cache["result", 1].sum(2), cache["attn_out", 1])
    same(cache["blocks.1.attn.hook_q_input"][:, :, 0], cache["resid_pre", 1])
    at.model.set_use_split_qkv_input(False)
    at.model.set_use_attn_in(True)
    _, cache = at.model.run_with_cache(at.tokens)
    same(cache["blocks.1.attn.hook_attn_in"][:, :, 0], cache["resid_pre", 1])


@hooks.works(
    "writing to any column of the stream in a hook",
    disentangled="What a hook writes to columns that later layers have yet to write is dropped.",
)
def wide_writes(at: Setting) -> None:
    existing = at.model.layers[1].reads
    everywhere = slice(None)
    found = []
    for columns in (existing, everywhere):

        def write(value: torch.Tensor, hook: object, columns: slice = columns) -> None:
            value[..., columns] += 1

        hooked = [("blocks.1.hook_resid_pre", write)]
        found.append(at.model.run_with_hooks(at.tokens, fwd_hooks=hooked))
    same(found[0], found[1])
    assert (found[0] - at.model(at.tokens)).abs().max() > 0.1


@hooks.works(
    "`hook_mlp_in`, `hook_mlp_out`, `set_use_hook_mlp_in`",
    "The layers have no MLP; these hook points see one that writes zeros.",
)
def absent_mlp(at: Setting) -> None:
    at.model.set_use_hook_mlp_in(True)
    _, cache = at.model.run_with_cache(at.tokens)
    assert not cache["mlp_out", 0].any()
    same(cache["blocks.0.hook_mlp_in"], cache["resid_post", 0])


@hooks.refused(
    '`hook_pos_embed`, `cache["pos_embed"]`',
    KeyError,
    "Positions enter through each layer's tables; see `hook_rel_scores`.",
)
def position_embedding(at: Setting) -> None:
    _, cache = at.model.run_with_cache(at.tokens)
    cache["pos_embed"]
