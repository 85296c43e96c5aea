"""Edits put exactly what they say where they say, and leave nothing behind."""

import numpy as np
import pytest
import torch

from mtdinterp.architectures import new_model
from mtdinterp.construction import one_step
from mtdinterp.interventions import (
    Edit,
    FromRun,
    MeanOver,
    Noise,
    Share,
    patch,
    steer_weights,
    steering_edit,
)
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    StandardConfig,
    StandardTransformer,
)
from mtdinterp.tasks import MTDTask

TASK = MTDTask.random(3, 2, seed=0)


@pytest.fixture(params=["disentangled", "standard"])
def model(request):
    torch.manual_seed(0)
    made = (
        DisentangledTransformer(
            DisentangledConfig(vocab_size=3, length=7, d_rel=2, n_heads=(2, 1, 1))
        )
        if request.param == "disentangled"
        else StandardTransformer(StandardConfig(vocab_size=3, length=7, d_model=12, n_heads=2))
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made.eval()


def single_layer():
    """One layer on three tokens that copies what it attends to: output = Σ_j A[last,
    j]·one-hot(y_j)."""
    made = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=3, n_layers=1, d_rel=1))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
        made.W_U[made.stream["L1.token"]] = torch.eye(3)
    return made


def test_three_by_three_attention_by_hand():
    made, tokens = single_layer(), torch.tensor([[0, 1, 2]])
    assert patch(made, tokens, []).before.tolist() == [pytest.approx([1 / 3, 1 / 3, 1 / 3])]
    row = torch.tensor([0.5, 0.25, 0.25])
    found = patch(made, tokens, [Edit("pattern", row, layer=0, position=-1)])
    assert found.after.tolist() == [[0.5, 0.25, 0.25]]
    assert found.weights_after.tolist() == [[[0.25, 0.25, 0.5]]]  # by offset: the last token first
    scores = torch.tensor([0.0, 0.0, torch.log(torch.tensor(2.0))])
    assert patch(
        made, tokens, [Edit("attn_scores", scores, layer=0, position=2)]
    ).after.tolist() == [pytest.approx([0.25, 0.25, 0.5])]
    matrix = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0, 1, 0]])
    assert patch(made, tokens, [Edit("blocks.0.attn.hook_pattern", matrix)]).after.tolist() == [
        [0, 1, 0]
    ]
    third = Edit("resid_pre", torch.tensor([0.0, 0, 3]), layer=0, position=1, block="token")
    assert patch(made, tokens, [third]).after.tolist() == [pytest.approx([1 / 3, 0, 1 + 1 / 3])]
    assert patch(
        made, tokens, [Edit("resid_post", "zero", layer=0, block="L1.token")]
    ).after.tolist() == [[0, 0, 0]]


def test_keys_and_shares_of_attention_by_hand():
    made, tokens = single_layer(), torch.tensor([[0, 1, 2]])

    def after(source, **place):
        return patch(
            made, tokens, [Edit("pattern", source, layer=0, position=-1, **place)]
        ).after.tolist()[0]

    assert after("zero", key=1) == pytest.approx([1 / 3, 0, 1 / 3])  # what is taken goes nowhere
    assert after(torch.tensor([0.2, 0.8]), key=slice(1, 3)) == pytest.approx([1 / 3, 0.2, 0.8])
    assert after(Share(0.5, keys=1)) == pytest.approx(
        [0.25, 0.5, 0.25]
    )  # what is given is taken from the others
    assert after(Share(0.4, keys=[0, 1])) == pytest.approx([0.2, 0.2, 0.6])
    every_row = Edit("pattern", 9.0, layer=0, position=slice(1, 3), key=[0, 1])
    assert patch(made, tokens, [every_row]).weights_after[0, 0].tolist() == pytest.approx(
        [1 / 3, 9, 9]
    )
    with pytest.raises(ValueError, match=r"key: expected positions in -3\.\.2, got 3"):
        after("zero", key=3)
    with pytest.raises(ValueError, match=r"key: blocks\.0\.hook_resid_pre has no key axis"):
        patch(made, tokens, [Edit("resid_pre", "zero", layer=0, key=1)])


def test_a_share_of_a_row_that_has_nothing_there_is_even():
    assert Share(0.5, keys=slice(1, 3))(torch.tensor([[1.0, 0, 0]])).tolist() == [[0.5, 0.25, 0.25]]
    assert Share(0.5, keys=0)(torch.tensor([[1.0, 0, 0]])).tolist() == [
        [0.5, 0, 0]
    ]  # nothing else to give it to


def test_a_row_from_another_position_keeps_its_offsets(model):
    tokens, other = (TASK.sample(1, 7, seed=seed).tokens for seed in (1, 2))
    rows = model.run_with_cache(other)[1]["blocks.1.attn.hook_pattern"][:, :, 3]
    shifted = torch.zeros_like(rows)
    shifted[..., 2:6] = rows[..., :4]  # query 3 at query 5: offsets 0..3 stay, keys move by two

    def after(source, **place):
        return patch(model, tokens, [Edit("pattern", source, layer=0, position=5, **place)]).after

    assert torch.equal(after(FromRun(other, layer=1, position=3)), after(shifted))
    assert torch.equal(
        after(FromRun(other, layer=1, position=3), key=4), after(shifted[..., 4:5], key=4)
    )
    stream = model.run_with_cache(other)[1]["blocks.1.hook_resid_pre"][:, 2]
    moved = [
        Edit("resid_pre", source, layer=1, position=6)
        for source in (FromRun(other, position=2), stream)
    ]
    assert torch.equal(*(patch(model, tokens, [edit]).after for edit in moved))
    with pytest.raises(ValueError, match=r"source layer: expected a layer in 0\.\.2, got 3"):
        after(FromRun(other, layer=3))
    with pytest.raises(ValueError, match="consecutive positions"):
        patch(
            model, tokens, [Edit("pattern", FromRun(other, position=1), layer=0, position=[1, 3])]
        )


def test_steering_is_an_edit(model):
    tokens = TASK.sample(2, 7, seed=1).tokens
    edit = steering_edit([0.25, 0.75], dose=0.5)
    assert torch.equal(
        patch(model, tokens, [edit]).after, steer_weights(model, tokens, [0.25, 0.75], dose=0.5)
    )


def test_edits_apply_in_order_and_together():
    made, tokens = single_layer(), torch.tensor([[0, 1, 2]])
    edits = [
        Edit("pattern", torch.tensor([1.0, 0, 0]), layer=0, position=-1),
        Edit("pattern", lambda there: 0.5 * there, layer=0, position=-1),
        Edit("hook_embed", "zero", position=1),
    ]
    assert patch(made, tokens, edits).after.tolist() == [[0.5, 0, 0]]


def test_every_kind_of_source(model):
    tokens, other = TASK.sample(6, 7, seed=1).tokens, TASK.sample(6, 7, seed=2).tokens
    _, cache = model.run_with_cache(other)
    name = "blocks.1.hook_resid_pre"
    plain = patch(model, tokens, [])
    given = patch(model, tokens, [Edit(name, cache[name])])
    assert torch.allclose(
        patch(model, tokens, [Edit(name, FromRun(other))]).after, given.after, atol=1e-6
    )
    # The whole stream before a layer decides everything after it.
    assert torch.allclose(given.after, model(other)[:, -1], atol=1e-5)
    mean = patch(model, tokens, [Edit(name, MeanOver(other))])
    assert torch.allclose(
        mean.after, patch(model, tokens, [Edit(name, cache[name].mean(0))]).after, atol=1e-6
    )
    assert torch.allclose(
        patch(model, tokens, [Edit(name, Noise(0.0))]).after, plain.after, atol=1e-6
    )
    assert torch.equal(
        patch(model, tokens, [Edit(name, Noise(1.0, seed=3))]).after,
        patch(model, tokens, [Edit(name, Noise(1.0, seed=3))]).after,
    )
    assert torch.allclose(
        patch(model, tokens, [Edit(name, "zero")]).after,
        patch(model, tokens, [Edit(name, 0.0)]).after,
    )


def test_another_models_activation():
    model = one_step(TASK.transition, 2, 7, 5.0)
    stronger = one_step(TASK.transition, 2, 7, 9.0)
    tokens = TASK.sample(4, 7, seed=1).tokens
    found = patch(model, tokens, [Edit("pattern", FromRun(tokens, stronger), layer=2)])
    assert torch.allclose(found.after, stronger(tokens)[:, -1], atol=1e-6)


def test_hook_points_that_need_a_switch_fire_and_are_switched_back(model):
    tokens = TASK.sample(2, 7, seed=1).tokens
    for hook in ("result", "q_input", "attn_in"):
        found = patch(model, tokens, [Edit(hook, "zero", layer=1)])
        assert not torch.allclose(found.before, found.after)
    assert not any(
        (model.cfg.use_attn_result, model.cfg.use_split_qkv_input, model.cfg.use_attn_in)
    )
    with pytest.raises(ValueError, match="cannot be combined"):
        patch(model, tokens, [Edit("attn_in", "zero", layer=0), Edit("q_input", "zero", layer=0)])


def test_heads_positions_and_blocks_select_what_they_name(model):
    tokens = TASK.sample(2, 7, seed=1).tokens
    seen = {}

    def remember(there):
        seen["shape"] = tuple(there.shape)
        return there

    for edit, shape in (
        (Edit("z", remember, layer=0, head=1, position=slice(2, 5)), (2, 3, 1)),
        (Edit("pattern", remember, layer=0, head=0, position=[0, 6]), (2, 1, 2, 7)),
        (Edit("resid_pre", remember, layer=1, position=-1), (2, 1)),
    ):
        found = patch(model, tokens, [edit])
        assert torch.equal(found.before, found.after)
        assert seen["shape"][: len(shape)] == shape


WRONG = {
    "hook: expected one of": Edit("blocks.7.hook_z", "zero"),
    "did you mean 'pattern'": Edit("patern", "zero", layer=0),
    "layer: expected a layer in 0..2, got 3": Edit("z", "zero", layer=3),
    "position: expected positions in -7..6, got 7": Edit("z", "zero", layer=0, position=7),
    "selects none of the 7 positions": Edit("z", "zero", layer=0, position=slice(9, 12)),
    "head: blocks.2.attn.hook_z has heads": Edit("z", "zero", layer=2, head=5),
    "has no heads": Edit("resid_pre", "zero", layer=0, head=0),
    "is not the stream": Edit("pattern", "zero", layer=0, block="token"),
    "source: expected one of zero": Edit("z", "nothing", layer=0),
    "position: expected an index, a slice or indices": Edit(
        "z", "zero", layer=0, position=np.array([1.5])
    ),
    "selects none": Edit("z", "zero", layer=0, position=[]),
    "expected numbers, got NaN": Edit("z", float("nan"), layer=0),
    "a run of the same length, 7, got 5": Edit(
        "z", FromRun(TASK.sample(2, 5, seed=1).tokens), layer=0
    ),
    "does not match the place at": Edit("z", torch.zeros(4, 3), layer=0),
    "expected real numbers": Edit("z", torch.zeros(1, dtype=torch.bool), layer=0),
    "returned NoneType, not a tensor": Edit("z", lambda there: None, layer=0),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_edits_say_what_exists_and_leave_no_hook(model, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        patch(model, TASK.sample(2, 7, seed=1).tokens, [WRONG[message]])
    assert not model.is_watched


def test_a_block_that_is_not_there_yet_is_refused():
    made = one_step(TASK.transition, 2, 7, 5.0)
    tokens = TASK.sample(2, 7, seed=1).tokens
    with pytest.raises(
        ValueError,
        match=r"blocks\.1\.hook_resid_pre has no block L2\.L1\.lag; its blocks are token",
    ):
        patch(made, tokens, [Edit("resid_pre", "zero", layer=1, block="L2.L1.lag")])
    with pytest.raises(ValueError, match=r"block: expected one of token, L1\.token"):
        patch(made, tokens, [Edit("resid_pre", "zero", layer=1, block="L9.lag")])


def test_an_exception_in_a_callable_leaves_no_hook(model):
    def broken(there):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        patch(model, TASK.sample(2, 7, seed=1).tokens, [Edit("z", broken, layer=0)])
    assert not model.is_watched


def test_recovered_fraction():
    made, tokens = single_layer(), torch.tensor([[0, 1, 2]])
    found = patch(
        made, tokens, [Edit("pattern", torch.tensor([2 / 3, 1 / 6, 1 / 6]), layer=0, position=-1)]
    )
    target = torch.tensor([[1.0, 0, 0]])
    assert found.recovered(lambda outputs: outputs[0, 0], target) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="nothing to recover"):
        found.recovered(lambda outputs: 1.0, target)


def test_unread_blocks_change_nothing():
    made = one_step(TASK.transition, 2, 7, 5.0)
    tokens, other = TASK.sample(8, 7, seed=1).tokens, TASK.sample(8, 7, seed=2).tokens
    for block in ("L1.token", "L1.lag", "L2.token", "L2.L1.token", "L2.lag"):
        found = patch(made, tokens, [Edit("resid_pre", FromRun(other), layer=2, block=block)])
        assert (found.after - found.before).abs().max() <= 1e-6


def test_another_layout_is_read_at_its_own_columns():
    """The same block has other columns where lag blocks are wider."""
    torch.manual_seed(0)
    narrow, wide = (new_model("disentangled", 3, 7, d_rel=d_rel) for d_rel in (2, 4))
    tokens = TASK.sample(4, 7, seed=1).tokens
    held = wide.run_with_cache(tokens)[1]["blocks.2.hook_resid_pre"][..., wide.stream["L2.token"]]
    by_run, by_hand = (
        patch(narrow, tokens, [Edit("resid_pre", source, layer=2, block="L2.token")]).after
        for source in (FromRun(tokens, wide), held)
    )
    assert torch.equal(by_run, by_hand)


def test_noise_spares_what_is_masked(model):
    tokens = TASK.sample(4, 7, seed=1).tokens
    found = patch(model, tokens, [Edit("attn_scores", Noise(), layer=0)])
    assert found.after.isfinite().all()
    assert not torch.equal(found.before, found.after)


def test_numpy_and_torch_indices_are_fine(model):
    tokens = TASK.sample(2, 7, seed=1).tokens
    expected = patch(model, tokens, [Edit("z", "zero", layer=0, position=[1, 3])]).after
    for position in (np.array([1, 3]), torch.tensor([1, 3]), slice(1, 4, 2), slice(3, 0, -2)):
        assert torch.equal(
            patch(model, tokens, [Edit("z", "zero", layer=0, position=position)]).after, expected
        )
    assert torch.equal(
        patch(model, tokens, [Edit("z", "zero", layer=np.int64(0), position=np.int64(3))]).after,
        patch(model, tokens, [Edit("z", "zero", layer=-3, position=-4)]).after,
    )
