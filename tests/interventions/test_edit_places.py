"""Where edits apply: positions, heads, keys and blocks, and the hooks that they need."""

from inspect import unwrap

import numpy as np
import pytest
import torch
from edited_models import TOKENS, concatenated, edited, with_random_weights

from mtdinterp.interventions import Edit, patch
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.indices import counted, positions_of
from mtdinterp.interventions.patching import hooks_for
from mtdinterp.interventions.places import hook_name, place_of
from mtdinterp.metrics import kl_divergence, to_distribution
from mtdinterp.models import (
    StandardConfig,
    StandardTransformer,
)


@pytest.fixture(scope="module")
def model():
    return concatenated()


def test_edits_come_as_a_list_of_edits(model):
    unchecked = unwrap(hooks_for)  # without the tests' type checks, as users call it
    for wrong in (Edit("z", "zero", layer=0), [Edit("z", "zero", layer=0), "zero"]):
        with pytest.raises(ValueError, match=r"edits: expected a list of Edit objects"):
            unchecked(model, TOKENS, wrong)


def test_positions_of_every_kind():
    assert positions_of(None, 4) == slice(None)
    for given, expected in (
        (-4, [0]),
        (3, [3]),
        ([0, -1], [0, 3]),
        (slice(1, None), [1, 2, 3]),
        (np.array([2, 1]), [2, 1]),
    ):
        assert positions_of(given, 4).tolist() == expected
    for wrong in (-5, 4):
        with pytest.raises(ValueError, match=rf"^key: expected positions in -4\.\.3, got {wrong}$"):
            positions_of(wrong, 4, "key")
    with pytest.raises(ValueError, match=r"^position: \[\] selects none of the 4 positions$"):
        positions_of([], 4)
    with pytest.raises(ValueError, match=r"^position: expected an index, a slice or indices"):
        positions_of("one", 4)


def test_an_index_of_items_counts_from_either_end():
    assert [counted("n", value, 3, "") for value in (0, 2, -1, -3, np.int64(1))] == [0, 2, 2, 0, 1]
    for wrong in (3, -4, True, 1.0, "1", None):
        with pytest.raises(ValueError, match=r"^head: expected a head in 0\.\.2, got "):
            counted("head", wrong, 3, "expected a head in")


def test_every_key_of_every_query_is_edited(model):
    plain = edited(model, "pattern", lambda value: value, layer=0)
    found = edited(model, "pattern", 9.0, layer=0, head=1, position=[2, 5], key=[0, 1, 2])
    expected = plain.clone()
    for query in (2, 5):
        for key in (0, 1, 2):
            expected[:, 1, query, key] = 9
    assert torch.equal(found, expected)


def test_a_head_at_hook_points_without_keys(model):
    plain = edited(model, "z", lambda value: value, layer=0)
    found = edited(model, "z", "zero", layer=0, head=-1, position=-2)
    expected = plain.clone()
    expected[:, 5, 1] = 0
    assert torch.equal(found, expected)
    with pytest.raises(
        ValueError, match=r"^head: blocks\.0\.attn\.hook_z has heads 0\.\.1, got 2$"
    ):
        patch(model, TOKENS, [Edit("z", "zero", layer=0, head=2)])


BLOCKS = {
    "embed": ["token"],
    "resid_pre": ["token", "L1.H1.token", "L1.H1.lag", "L1.H2.token", "L1.H2.lag"],
    "attn_out": [
        *["L2.token", "L2.L1.H1.token", "L2.L1.H1.lag", "L2.L1.H2.token", "L2.L1.H2.lag"],
        "L2.lag",
    ],
}
BLOCKS["resid_post"] = BLOCKS["resid_pre"] + BLOCKS["attn_out"]


@pytest.mark.parametrize("hook", BLOCKS)
def test_the_blocks_that_exist_at_a_hook_point(model, hook):
    layer = None if hook == "embed" else 1
    name = "hook_embed" if hook == "embed" else hook
    existing = []
    for block in model.stream:
        edit = Edit(name, "zero", block=block, layer=layer)
        try:
            place = place_of(model, edit, hook_name(model, edit), 7)
        except ValueError as error:
            assert str(error).endswith(f"its blocks are {', '.join(BLOCKS[hook])}")  # noqa: PT017
            continue
        assert place[-1] == model.stream[block]
        existing.append(block)
    assert existing == BLOCKS[hook]


def test_an_additive_stream_has_its_blocks_at_every_layer():
    config = StandardConfig(vocab_size=3, length=7, d_model=12, d_mlp=8)
    made = with_random_weights(StandardTransformer(config))
    (block, *_) = made.stream
    for hook in ("resid_pre", "attn_out", "resid_post", "mlp_in", "mlp_out"):
        if f"blocks.2.hook_{hook}" in made.hook_dict:
            zeroed = edited(made, hook, "zero", layer=2, block=block)
            assert not zeroed[..., made.stream[block]].any()


def test_the_short_names_of_a_layer(model):
    for hook in ("z", "hook_z"):
        assert hook_name(model, Edit(hook, "zero", layer=-1)) == "blocks.2.attn.hook_z"
    assert hook_name(model, Edit("hook_embed", "zero")) == "hook_embed"


def test_the_kl_and_the_summary_of_a_patch(model):
    found = patch(model, TOKENS, [Edit("pattern", "zero", layer=2)])
    expected = kl_divergence(to_distribution(found.before), to_distribution(found.after))
    assert torch.equal(found.kl, expected)
    assert expected.mean() > 0
    # Attention that sums to 1 was taken away: half of that is the total variation.
    assert found.summary() == (
        f"KL(before ‖ after): mean {expected.mean().item():.3g} over 4 sequences; "
        "the last layer's attention moved by 0.500 in total variation."
    )


def test_switches_that_were_on_stay_on():
    made = concatenated()
    made.cfg.use_attn_in = True
    patch(made, TOKENS, [Edit("q_input", "zero", layer=0)])
    assert made.cfg.use_attn_in
    assert not made.cfg.use_split_qkv_input
    for hook in ("q_input", "k_input", "v_input"):
        with pytest.raises(
            ValueError, match=r"hook_attn_in and hook_q_input, .* cannot be combined"
        ):
            patch(made, TOKENS, [Edit("attn_in", "zero", layer=0), Edit(hook, "zero", layer=1)])
    assert made.cfg.use_attn_in


@pytest.mark.parametrize("hook", ["k_input", "v_input"])
def test_inputs_that_need_a_switch_reach_the_model(hook):
    made = concatenated()
    found = patch(made, TOKENS, [Edit(hook, "zero", layer=1)])
    assert not torch.allclose(found.before, found.after)


def test_activations_are_recorded_once_without_gradients(model):
    names = ["hook_embed", "blocks.0.attn.hook_z", "hook_embed"]
    seen = activations(model, TOKENS, names)
    assert list(seen) == names[:2]
    assert not any(value.requires_grad for value in seen.values())


@pytest.mark.parametrize("kind", [*"qkvpz", "result", "attn_in", "q_input", "k_input", "v_input"])
def test_every_hook_point_of_heads_has_their_axis(model, kind):
    for block in range(2):
        name = f"blocks.{block}.attn.hook_{kind}"
        place = place_of(model, Edit(name, "zero", position=3, head=0), name, 7)
        assert place[1].tolist() == [3]
        assert place[2] == slice(0, 1)
        assert len(place) == 4


@pytest.mark.parametrize("name", ["hook_q_input", "hook_k_input", "hook_v_input"])
def test_a_block_of_what_queries_keys_or_values_read_can_be_edited(model, name):
    edit = Edit(name, "zero", layer=1, block="token")
    changed = patch(model, TOKENS, [edit])
    assert (changed.after - changed.before).abs().max() > 1e-6
