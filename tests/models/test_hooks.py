"""What a hook sees and changes, and that it leaves nothing behind: the contract with
TransformerLens."""

from itertools import permutations

import pytest
import torch
from torch import Tensor
from transformer_lens import ActivationCache

from mtdinterp.models import LensTransformer

SWITCHES = ("attn_result", "split_qkv_input", "attn_in", "hook_mlp_in")
LAST_ONLY = pytest.mark.parametrize("last_only", [False, True])
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
WIDE = {"resid_pre": "hook_resid_pre", "attn_out": "hook_attn_out"}
PER_HEAD = {name: f"attn.hook_{name}" for name in ("q", "k", "v", "z", "pattern")}
FORKED = {name: f"attn.hook_{name}" for name in ("q_input", "k_input", "v_input")}


def no_op(value: Tensor, hook: object) -> None:
    return None


def attached(model: LensTransformer) -> list[str]:
    return [name for name, hook in model.hook_dict.items() if hook.fwd_hooks or hook.bwd_hooks]


def switch(model: LensTransformer, name: str, value: bool = True) -> None:
    getattr(model, f"set_use_{name}")(value)


def test_model_is_the_additive_transformer_of_its_transformer_lens_weights(model, clean, additive):
    torch.testing.assert_close(model(clean), additive.forward(model, clean))


def test_last_only_is_the_last_position(model, clean):
    torch.testing.assert_close(model(clean, last_only=True), model(clean)[:, -1])


EAGER = pytest.mark.usefixtures("eager_kernel")
"""Hooks always see the eager attention; without them the fused one would differ by rounding."""


@LAST_ONLY
def test_hooks_change_the_fused_outputs_by_rounding_alone(model, clean, last_only):
    plain = model(clean, last_only=last_only)
    cached, _ = model.run_with_cache(clean, last_only=last_only)
    torch.testing.assert_close(cached, plain, rtol=1e-5, atol=1e-6)


@LAST_ONLY
@DTYPE
@EAGER
def test_a_no_op_hook_changes_no_bit_wherever_it_is(model, clean, last_only, dtype):
    plain = model.to(dtype)(clean, last_only=last_only)
    changed = [
        name
        for name in model.hook_dict
        if not torch.equal(
            plain, model.run_with_hooks(clean, last_only=last_only, fwd_hooks=[(name, no_op)])
        )
    ]
    assert changed == []


@LAST_ONLY
@DTYPE
@EAGER
def test_caching_everything_changes_no_bit(model, clean, last_only, dtype):
    plain = model.to(dtype)(clean, last_only=last_only)
    cached, _ = model.run_with_cache(clean, last_only=last_only)
    assert torch.equal(cached, plain)
    assert torch.equal(model(clean, last_only=last_only), plain)


@LAST_ONLY
@DTYPE
@EAGER
def test_caching_everything_changes_no_bit_of_a_construction(constructed, last_only, dtype):
    model, tokens = constructed.model.to(dtype), constructed.clean
    plain = model(tokens, last_only=last_only)
    cached, _ = model.run_with_cache(tokens, last_only=last_only)
    assert torch.equal(cached, plain)


def test_cache_holds_what_the_additive_transformer_computes(model, clean, additive):
    switch(model, "split_qkv_input")
    _, cache = model.run_with_cache(clean)
    assert isinstance(cache, ActivationCache)
    for (name, layer), value in additive.cache(model, clean).items():
        torch.testing.assert_close(
            cache[(name, layer) if name in WIDE else (name, layer, "attn")], value
        )


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(("name", "hook"), [*WIDE.items(), *PER_HEAD.items(), *FORKED.items()])
def test_an_edit_in_place_reaches_what_reads_it_and_nothing_else(
    model, clean, additive, name, hook, grad
):
    """Keys, values and the stream share memory in the disentangled model: an edit must not
    spread."""
    if name in FORKED:
        switch(model, "split_qkv_input")

    def in_place(value: Tensor, hook: object) -> Tensor:
        value[:, 1] *= -1.7  # position 1, or head 1 of a pattern
        return value

    def out_of_place(at: str, layer: int, value: Tensor) -> Tensor:
        factor = torch.ones(value.shape[1], dtype=value.dtype)
        factor[1] = -1.7
        return torch.einsum("bi...,i->bi...", value, factor) if (at, layer) == (name, 1) else value

    with torch.set_grad_enabled(grad):
        edited = model.run_with_hooks(clean, fwd_hooks=[(f"blocks.1.{hook}", in_place)])
    torch.testing.assert_close(edited, additive.forward(model, clean, out_of_place))
    assert not torch.allclose(edited, model(clean))


def test_queries_for_content_and_for_position_are_edited_apart(uneven, clean, additive):
    def doubled(name: str, layer: int, value: Tensor) -> Tensor:
        return 2 * value if (name, layer) == ("p", 1) else value

    twice = ("blocks.1.attn.hook_p", lambda value, hook: value.mul_(2))
    edited = uneven.run_with_hooks(clean, fwd_hooks=[twice])
    torch.testing.assert_close(edited, additive.forward(uneven, clean, doubled))


def test_columns_that_do_not_exist_yet_cannot_be_written(uneven, clean):
    missing = slice(uneven.streams[1].width, None)

    def write(value: Tensor, hook: object) -> None:
        value[..., missing] = 1.0

    edited = uneven.run_with_hooks(clean, fwd_hooks=[("blocks.1.hook_resid_pre", write)])
    torch.testing.assert_close(edited, uneven(clean))


def test_attention_written_into_the_future_does_not_leak_to_other_queries(model, clean):
    """Offsets share rows with their neighbours: mass above the diagonal of query 1 must not reach
    query 2."""

    def peek(value: Tensor, hook: object) -> None:
        value[:, :, 1, 3] = 0.5

    edited = model.run_with_hooks(clean, fwd_hooks=[("blocks.1.attn.hook_pattern", peek)])
    others = [0, 2, 3, 4]
    torch.testing.assert_close(edited[:, others], model(clean)[:, others])


def test_attn_in_feeds_queries_keys_and_values(model, clean, additive):
    switch(model, "attn_in")

    def doubled(name: str, layer: int, value: Tensor) -> Tensor:
        return 2 * value if layer == 1 and name.endswith("_input") else value

    twice = ("blocks.1.attn.hook_attn_in", lambda value, hook: value.mul_(2))
    edited = model.run_with_hooks(clean, fwd_hooks=[twice])
    torch.testing.assert_close(edited, additive.forward(model, clean, doubled))


def test_mlp_stand_in_writes_nothing_until_a_hook_makes_it(model, clean):
    _, cache = model.run_with_cache(clean)
    assert not cache["mlp_out", 0].any()
    shifted = model.run_with_hooks(
        clean, fwd_hooks=[("blocks.1.hook_mlp_out", lambda x, hook: x + 1)]
    )
    torch.testing.assert_close(shifted, model(clean) + model.W_U.sum(0))


def test_hooks_are_gone_afterwards(model, clean):
    model.run_with_hooks(clean, fwd_hooks=[(lambda name: True, no_op)])
    model.run_with_cache(clean)
    assert attached(model) == []


def test_hooks_are_gone_after_a_failure(model, clean):
    def fail(value: Tensor, hook: object) -> None:
        raise RuntimeError("from a hook")

    plain = model(clean)
    with pytest.raises(RuntimeError, match="from a hook"):
        model.run_with_hooks(
            clean, fwd_hooks=[(lambda name: True, no_op), ("blocks.1.attn.hook_z", fail)]
        )
    assert attached(model) == []
    assert torch.equal(model(clean), plain)


def test_names_filter_caches_what_it_names(model, clean):
    wanted = ["blocks.0.attn.hook_pattern", "blocks.1.hook_resid_post"]
    for names_filter in (wanted, lambda name: name in wanted):
        _, cache = model.run_with_cache(clean, names_filter=names_filter)
        assert sorted(cache.keys()) == wanted
    _, cache = model.run_with_cache(clean, names_filter=wanted[0])
    assert list(cache.keys()) == wanted[:1]


def test_remove_batch_dim_drops_the_first_axis(model, clean):
    _, batched = model.run_with_cache(clean[:1])
    _, cache = model.run_with_cache(clean[:1], remove_batch_dim=True)
    assert batched.has_batch_dim
    assert not cache.has_batch_dim
    assert all(torch.equal(cache[name], batched[name][0]) for name in batched)
    torch.testing.assert_close(cache.decompose_resid().sum(0) @ model.W_U, model(clean[:1])[0])


def test_pos_slice_keeps_the_positions_asked_for(model, clean):
    names = ["blocks.1.hook_resid_post", "blocks.1.attn.hook_z", "blocks.1.attn.hook_pattern"]
    _, full = model.run_with_cache(clean, names_filter=names)
    _, last = model.run_with_cache(clean, names_filter=names, pos_slice=-1)
    assert torch.equal(last["resid_post", 1], full["resid_post", 1][:, -1:])
    assert torch.equal(last["z", 1], full["z", 1][:, -1:])
    assert torch.equal(last["pattern", 1], full["pattern", 1][:, :, -1:])


def test_incl_bwd_caches_the_gradient_of_the_loss(model, clean):
    """loss = mean (out - target)², so its gradient at the final stream is 2(out - target)/n through
    W_U."""
    loss, cache = model.run_with_cache(clean, return_type="loss", incl_bwd=True)
    target = torch.nn.functional.one_hot(clean[:, 1:], model.cfg.d_vocab)
    residual = model(clean)[:, :-1] - target
    torch.testing.assert_close(loss, residual.square().mean())
    gradient = cache["blocks.1.hook_resid_post_grad"]
    torch.testing.assert_close(gradient[:, :-1], 2 * residual / residual.numel() @ model.W_U.T)
    assert not gradient[:, -1].any()


@LAST_ONLY
@pytest.mark.parametrize("name", SWITCHES)
def test_switches_do_not_change_outputs(model, clean, name, last_only):
    plain = model(clean, last_only=last_only)
    switch(model, name)
    torch.testing.assert_close(model(clean, last_only=last_only), plain, rtol=1e-12, atol=1e-12)
    cached, _ = model.run_with_cache(clean, last_only=last_only)
    torch.testing.assert_close(cached, plain, rtol=1e-12, atol=1e-12)
    switch(model, name, False)
    assert torch.equal(model(clean, last_only=last_only), plain)


@pytest.mark.parametrize(
    ("name", "hooks"),
    [
        ("attn_result", ["result"]),
        ("split_qkv_input", ["q_input", "k_input", "v_input"]),
        ("attn_in", ["attn_in"]),
    ],
)
def test_switched_hook_points_fire_only_when_on(model, clean, name, hooks):
    names = {f"blocks.0.attn.hook_{hook}" for hook in hooks}
    assert not names & model.run_with_cache(clean)[1].keys()
    switch(model, name)
    assert names <= model.run_with_cache(clean)[1].keys()


@pytest.mark.parametrize(("first", "second"), list(permutations(("attn_in", "split_qkv_input"))))
def test_the_two_forks_exclude_each_other(model, first, second):
    switch(model, first)
    with pytest.raises(ValueError, match="cannot be combined"):
        switch(model, second)
    switch(model, first, False)
    switch(model, second)
    assert getattr(model.cfg, f"use_{second}")
    assert not getattr(model.cfg, f"use_{first}")


def test_heads_may_differ_between_layers(uneven, clean, additive):
    output, cache = uneven.run_with_cache(clean)
    torch.testing.assert_close(output, additive.forward(uneven, clean))
    assert torch.equal(output, uneven(clean))
    for (name, layer), value in additive.cache(uneven, clean).items():
        if name not in FORKED:
            torch.testing.assert_close(
                cache[(name, layer) if name in WIDE else (name, layer, "attn")], value
            )
    assert [cache["pattern", layer].shape[1] for layer in range(2)] == [2, 1]
    torch.testing.assert_close(cache.decompose_resid().sum(0), cache["resid_post", 1])


def test_configuration_follows_the_dtype(model, clean):
    assert model.cfg.dtype is torch.float64
    assert model.float().cfg.dtype is torch.float32
    assert model(clean).dtype is torch.float32
    assert model.double().cfg.dtype is torch.float64
    assert model.to(torch.float32).cfg.dtype is torch.float32
    assert all(block.cfg is model.cfg and block.attn.cfg is model.cfg for block in model.blocks)


def test_tokens_are_named_by_their_digits(model):
    assert model.to_tokens("0 2 1").tolist() == [[0, 2, 1]]
    assert model.to_tokens(["0 2", "1 1"]).tolist() == [[0, 2], [1, 1]]
    assert model.to_tokens(torch.tensor([2, 0])).tolist() == [[2, 0]]
    assert model.to_single_token("2") == 2
    assert model.to_str_tokens("0 2 1") == ["0", "2", "1"]
    assert model.to_str_tokens(torch.tensor([[0, 2, 1]])) == ["0", "2", "1"]
    with pytest.raises(ValueError, match="token"):
        model.to_single_token("3")


def test_residual_directions_are_columns_of_the_read_out(model):
    assert torch.equal(model.tokens_to_residual_directions("2"), model.W_U[:, 2])
    assert torch.equal(model.tokens_to_residual_directions(1), model.W_U[:, 1])
    assert torch.equal(
        model.tokens_to_residual_directions(torch.tensor([0, 2])), model.W_U[:, [0, 2]].T
    )


def test_weights_go_by_their_transformer_lens_names(model):
    weights = model.tl_parameters()
    assert torch.equal(weights["blocks.1.attn.W_O"], model.blocks[1].attn.W_O)
    assert torch.equal(weights["embed.W_E"], model.W_E)
    assert not weights["unembed.b_U"].any()
    assert not model.accumulated_bias(2).any()
    assert [layer for layer, _ in model.blocks_with("attn")] == [0, 1]
    assert model.blocks_with("mlp") == []


def test_backward_hooks_fire_at_every_point_of_the_first_layer(model, clean):
    """Without anyone listening to the embedding: one-hot tokens need a gradient all the same."""
    for point in (
        "hook_resid_pre",
        "attn.hook_k",
        "attn.hook_v",
        "attn.hook_q",
        "hook_attn_out",
        "hook_resid_post",
    ):
        seen = []

        def record(grad, hook, seen=seen):
            seen.append(grad)

        with model.hooks(bwd_hooks=[(f"blocks.0.{point}", record)]):
            model(clean).square().sum().backward()
        assert len(seen) == 1, point
        assert seen[0].abs().sum() > 0, point
    model.zero_grad()


def test_an_empty_batch_gives_an_empty_answer(model, clean):
    for last_only in (False, True):
        assert model(clean[:0], last_only=last_only).shape[0] == 0


def test_the_loss_needs_a_next_token(model, clean):
    for arguments in ({"last_only": True}, {}):
        tokens = clean if arguments else clean[:, :1]
        with pytest.raises(
            ValueError, match="return_type: the loss is over all positions but the last"
        ):
            model(tokens, return_type="loss", **arguments)
