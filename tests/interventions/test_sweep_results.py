"""What a sweep says about itself, from numbers that are easy to tell apart."""

from dataclasses import replace

import pytest
import torch

from mtdinterp.interventions import SweepResult, patch_sweep
from mtdinterp.metrics import NO_LEVEL
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.blocks import Map, Table, Text
from mtdinterp.tasks import MTDTask

NAN = float("nan")
TASK = MTDTask.random(3, 2, seed=0)
CLEAN, CORRUPTED = (TASK.sample(2, 7, seed=seed).tokens for seed in (1, 2))


def sweep(**changes):
    """Two layers, two positions and two blocks, of which the first layer has one."""
    values = [[[-4.0, NAN], [-3.0, NAN]], [[-4.5, -4.0], [-4.0, 0.0]]]
    made = SweepResult(
        kind="block",
        direction="denoise",
        values=torch.tensor(values, dtype=torch.float64),
        parts=("token", "L1.lag"),
        clean=0.0,
        corrupted=-4.0,
        n_sequences=2,
        seed=None,
    )
    return replace(made, **changes)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = DisentangledConfig(vocab_size=3, length=7, d_rel=2, n_heads=(2, 1, 3))
    made = DisentangledTransformer(config)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval()


def test_effects_are_changes_of_the_run_that_is_patched():
    assert {name: row.tolist() for name, row in sweep().effects(0).items()} == {"token": [0, 1]}
    second = {name: row.tolist() for name, row in sweep().effects(1).items()}
    assert second == {"token": [-0.5, 0], "L1.lag": [0, 4]}
    noise = sweep(direction="noise")
    assert noise.unpatched == 0
    assert noise.effects(0)["token"].tolist() == [-4, -3]


def test_the_strongest_places_come_first_in_order():
    found = sweep()
    assert found.strongest() == [(1, 1, 1)]
    assert found.strongest(4) == [(1, 1, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0)]
    # Blocks that do not exist come after those that move nothing.
    assert found.strongest(8)[-2:] == [(0, 0, 1), (0, 1, 1)]


def test_the_summary_of_a_sweep():
    assert sweep().summary() == (
        "one named block of the stream before a layer, clean activations into the corrupted run: "
        "the given metric is 0 for the clean run and -4 for the corrupted one; the strongest "
        "patch is layer 2, position 1, L1.lag: 0."
    )
    whole = {"parts": ("all",), "values": sweep().values[..., :1], "clean": -0.0}
    assert sweep(kind="resid_pre", direction="noise", **whole).summary() == (
        "the whole stream before a layer, corrupted activations into the clean run: "
        "the given metric is 0 for the clean run and -4 for the corrupted one; the strongest "
        "patch is layer 2, position 0: -4.5."
    )


def test_the_blocks_of_a_sweep():
    text, maps, table = sweep().blocks()
    sentence = "Activations of the clean run are copied into the corrupted run, one place at a time"
    assert text == Text((f"{sentence} (2 pairs of sequences).",), "soft")
    assert maps.title == "What restores the clean prediction"
    assert [panel.title for panel in maps.panels] == ["before layer 1", "before layer 2"]
    assert all(isinstance(panel, Map) for panel in maps.panels)
    shares = [panel.values.tolist() for panel in maps.panels]
    assert shares == [[[0, 0.25]], [[-0.125, 0], [0, 1]]]
    assert (maps.largest, maps.row_axis, maps.column_axis) == (1, "block", "position")
    assert maps.changes
    assert maps.note == "Blue moves the prediction towards the clean one, red away from it."
    unmoved = sweep(values=torch.full((2, 2, 2), -4.0, dtype=torch.float64))
    assert unmoved.blocks()[1].largest == NO_LEVEL
    assert table == Table(
        ("layer", "position", "block", "restored"),
        (
            ("2", "1", "L1.lag", "+100.0%"),
            ("1", "1", "token", "+25.0%"),
            ("2", "0", "token", "-12.5%"),
            ("1", "0", "token", "+0.0%"),
            ("2", "0", "L1.lag", "+0.0%"),
            ("2", "1", "token", "+0.0%"),
        ),
    )
    noise = sweep(direction="noise").blocks()[0]
    other = "Activations of the corrupted run are copied into the clean run, one place at a time"
    assert noise.lines == (f"{other} (2 pairs of sequences).",)


def test_the_parts_of_a_sweep_have_names():
    words = {
        "resid_pre": ("before layer 1", "stream"),
        "attn_out": ("written by layer 1", "output"),
        "block": ("before layer 1", "block"),
        "head": ("written by layer 1", "head"),
    }
    for kind, (title, part) in words.items():
        _, maps, table = sweep(kind=kind).blocks()
        assert maps.panels[0].title == title
        assert table.header[2] == part


def test_without_a_distance_nothing_can_be_restored():
    for clean in (NO_LEVEL, -NO_LEVEL, 0.0):
        (text,) = sweep(corrupted=0.0, clean=clean).blocks()
        assert text.lines == (
            "Both runs make the same prediction, so there is nothing to restore.",
        )
    assert len(sweep(corrupted=0.0, clean=2 * NO_LEVEL).blocks()) == 3


def test_the_parts_that_are_patched(model):
    assert patch_sweep(model, CLEAN, CORRUPTED, "head").parts == ("H1", "H2", "H3")
    assert patch_sweep(model, CLEAN, CORRUPTED, "attn_out").parts == ("all",)
    found = patch_sweep(model, CLEAN, CORRUPTED)
    read = [name for name in model.stream if not name.startswith("L3")]
    assert found.parts == tuple(read)
    for layer, block in enumerate(model.layers):
        existing = [name for name in read if model.stream[name].stop <= block.reads.stop]
        assert list(found.effects(layer)) == existing


def test_the_default_metric_and_its_name(model):
    found = patch_sweep(model, CLEAN, CORRUPTED)
    assert found.metric == "-KL(clean prediction ‖ prediction)"
    assert (found.kind, found.direction, found.n_sequences) == ("block", "denoise", 2)
    named = patch_sweep(model, CLEAN, CORRUPTED, metric=lambda outputs: outputs[:, 0].mean())
    assert named.metric == "the given metric"


def test_the_number_of_runs_at_once_changes_nothing(model, monkeypatch):
    whole = patch_sweep(model, CLEAN, CORRUPTED, "head").values
    for cells in (0, 2 * 7 * 7, 5 * 2 * 7 * 7):
        monkeypatch.setattr("mtdinterp.interventions.sweep.CELLS_AT_ONCE", cells)
        reports = []

        def report(done, total, reports=reports):
            reports.append(done)

        found = patch_sweep(model, CLEAN, CORRUPTED, "head", progress=report)
        assert torch.allclose(found.values, whole, atol=1e-6, equal_nan=True)
        step = max(1, cells // (2 * 7 * 7))
        assert reports[0] == step
        assert reports[-1] == 7 * 6
