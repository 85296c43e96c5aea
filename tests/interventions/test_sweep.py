"""The batched sweep against TransformerLens' own, one patch at a time."""

import pytest
import torch
from transformer_lens import patching

from mtdinterp import load_checkpoint
from mtdinterp.interventions import Edit, FromRun, patch, patch_sweep

SWEEPS = {
    "resid_pre": patching.get_act_patch_resid_pre,
    "attn_out": patching.get_act_patch_attn_out,
    "head": patching.get_act_patch_attn_head_out_by_pos,
}


@pytest.fixture(scope="module", params=["disentangled-m3-T64", "standard-m3-T64"])
def pair(request):
    checkpoint = load_checkpoint(request.param)
    clean, corrupted = (checkpoint.task.sample(2, 20, seed=seed).tokens for seed in (1, 2))
    return checkpoint.model, clean, corrupted


def metric(outputs):
    return (outputs @ torch.linspace(-1, 1, 5).to(outputs)).mean()


@pytest.mark.parametrize("direction", ["denoise", "noise"])
@pytest.mark.parametrize("kind", SWEEPS)
def test_the_same_answers_as_one_at_a_time(pair, kind, direction, capsys):
    model, clean, corrupted = pair
    into, taken = (corrupted, clean) if direction == "denoise" else (clean, corrupted)
    _, cache = model.run_with_cache(taken)
    with torch.no_grad():
        expected = SWEEPS[kind](model, into, cache, lambda outputs: metric(outputs[:, -1])).double()
    found = patch_sweep(model, clean, corrupted, kind, direction, metric)
    assert torch.allclose(found.values, expected.reshape(found.values.shape), atol=1e-6)
    assert found.clean == pytest.approx(metric(model(clean)[:, -1]).item(), abs=1e-6)


def test_blocks_against_patches_one_by_one(pair):
    model, clean, corrupted = pair
    found = patch_sweep(model, clean, corrupted, "block", metric=metric)
    for layer in range(3):
        for part, block in enumerate(found.parts):
            if found.values[layer, 0, part].isnan():
                continue
            for position in (0, 11, 19):
                alone = patch(
                    model,
                    corrupted,
                    [
                        Edit(
                            "resid_pre", FromRun(clean), layer=layer, block=block, position=position
                        )
                    ],
                )
                assert found.values[layer, position, part].item() == pytest.approx(
                    metric(alone.after).item(), abs=1e-6
                )


@pytest.mark.parametrize("kind", ["block", "head", "resid_pre"])
def test_progress_counts_every_patch_and_can_end_the_sweep(pair, kind, monkeypatch):
    model, clean, corrupted = pair
    monkeypatch.setattr("mtdinterp.interventions.sweep.CELLS_AT_ONCE", 2 * 20 * 20 * 7)
    seen = []
    values = patch_sweep(
        model, clean, corrupted, kind, progress=lambda done, total: seen.append((done, total))
    ).values
    assert seen[-1] == (values.isfinite().sum().item(),) * 2
    assert len(seen) > 3
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        patch_sweep(model, clean, corrupted, kind, progress=stop)


@pytest.mark.parametrize("direction", ["denoise", "noise"])
def test_unpatched_is_the_run_that_patches_go_into(pair, direction):
    """Patching a run with its own activations changes nothing: the metric stays `unpatched`."""
    model, clean, corrupted = pair
    found = patch_sweep(model, clean, corrupted, "attn_out", direction, metric)
    patched_run = corrupted if direction == "denoise" else clean
    with torch.no_grad():
        expected = metric(model(patched_run)[:, -1]).item()
    assert found.clean != pytest.approx(found.corrupted, abs=1e-3)
    assert found.unpatched == pytest.approx(expected, abs=1e-6)
    same = patch_sweep(model, patched_run, patched_run, "attn_out", direction, metric)
    assert torch.allclose(same.values, torch.full_like(same.values, found.unpatched), atol=1e-6)
    layer, position, part = found.strongest()[0]
    moved = found.values[layer, position, part].item() - expected
    assert found.effects(layer)["all"][position].item() == pytest.approx(moved, abs=1e-6)


def test_patching_everything_at_the_last_layer_recovers_the_clean_run(pair):
    model, clean, corrupted = pair
    found = patch_sweep(model, clean, corrupted, "attn_out")
    assert found.clean == pytest.approx(0, abs=1e-9)
    assert found.corrupted < -1e-3
    assert found.summary().startswith("the output of a layer")


def test_wrong_arguments_are_named(pair):
    model, clean, corrupted = pair
    with pytest.raises(ValueError, match="kind: expected one of resid_pre"):
        patch_sweep(model, clean, corrupted, "blocks")
    with pytest.raises(ValueError, match="direction: expected one of denoise"):
        patch_sweep(model, clean, corrupted, direction="both")
    with pytest.raises(ValueError, match="expected the clean tokens' shape"):
        patch_sweep(model, clean, corrupted[:1])


def test_summaries_name_a_place_that_exists(pair):
    model, clean, corrupted = pair
    for direction in ("denoise", "noise"):
        assert "nan" not in patch_sweep(model, clean, corrupted, "block", direction).summary()


def test_hooks_of_ones_own_act_in_patched_runs_too(pair):
    model, clean, corrupted = pair
    with model.hooks(fwd_hooks=[("blocks.1.attn.hook_z", lambda value, hook: 0 * value)]):
        found = patch_sweep(model, clean, corrupted, "resid_pre", metric=metric)
        alone = patch(model, corrupted, [Edit("resid_pre", FromRun(clean), layer=0, position=3)])
    assert found.values[0, 3, 0].item() == pytest.approx(metric(alone.after).item(), abs=1e-6)


def test_a_metric_may_be_a_plain_vector(pair):
    model, clean, corrupted = pair
    vector = torch.arange(5, dtype=torch.float64)
    found = patch_sweep(
        model, clean, corrupted, "attn_out", metric=lambda outputs: (outputs @ vector).mean()
    )
    assert found.values.isfinite().all()
