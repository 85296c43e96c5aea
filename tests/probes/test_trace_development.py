"""The development of a model from its history, its snapshots or both."""

import shutil

import pytest

from mtdinterp import MTDTask, load_checkpoint, save_checkpoint
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.blocks import Lines, Text
from mtdinterp.pages.pictures import png
from mtdinterp.pages.svg.lines import lines
from mtdinterp.report import collect
from mtdinterp.report.document import result_blocks
from mtdinterp.training import HeldOut, Recipe
from mtdinterp.training.run import new_run
from probes import compare_attention, trace_development

TASK = MTDTask.random(3, 2, seed=0)
LENGTH = 12
HELD_OUT = HeldOut.prepare(TASK, LENGTH, bayes=False)
NAMED = ("beta", "beta_r2", "gain", "gain_r2", "branch", "transition_kl", "kl", "ratio")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run"
    model = DisentangledTransformer(DisentangledConfig(vocab_size=3, length=LENGTH, d_rel=2))
    recipe = Recipe(steps=40, batch_size=8, learning_rate=1e-2, evaluate_every=20, snapshots=4)
    with new_run(path, model, TASK, recipe, {"model": 0}, HELD_OUT) as run:
        run.train()
    return path


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def readings_at(found, step):
    place = found.steps.index(step)
    return {name: found.series[name][place] for name in NAMED}


def assert_close(found, wanted):
    for name, value in wanted.items():
        close = value if isinstance(value, str | None) else pytest.approx(value, rel=1e-4, abs=1e-7)
        assert found[name] == close, name


def test_evaluations_and_snapshots_are_read_together(run):
    found = trace_development(run)
    assert found.steps == (0, 1, 3, 11, 20, 40)
    assert found.snapshots == (0, 1, 3, 11, 40)
    assert found.unreadable == ()
    assert "6 steps, 5 of them with a snapshot" in found.summary()
    has_lags = [value is not None for value in found.series["lag_attention"]]
    assert has_lags == [True, True, True, True, False, True]


def test_a_snapshot_reads_as_the_evaluation_of_its_step(run):
    evaluated = trace_development(run)
    (run / "history.jsonl").unlink()
    # What is stored with the weights is the last line of the history.
    from_weights = trace_development(run)
    assert from_weights.steps == (0, 1, 3, 11, 40)
    assert_close(readings_at(from_weights, 0), readings_at(evaluated, 0))


def test_snapshots_alone_are_enough(run, tmp_path):
    checkpoint = load_checkpoint(run)
    path = tmp_path / "saved"
    save_checkpoint(
        path, checkpoint.model, TASK, seeds={"model": 0}, snapshots=checkpoint.snapshots
    )
    found = trace_development(path)
    wanted = readings_at(trace_development(run), 40)
    assert found.steps == (0, 1, 3, 11, 40)
    assert_close(readings_at(found, 40), {**wanted, "ratio": None})
    assert "left_plateau" not in found.events
    assert set(found.levels) == {"uniform"}


def test_the_attention_on_the_lags_is_that_of_the_comparison(run):
    found = trace_development(run)
    compared = compare_attention(load_checkpoint(run).model, TASK, n_sequences=2000)
    mass = compared.layers[0].mass_on_lags
    assert found.series["lag_attention"][-1] == pytest.approx(mass, abs=0.02)


def test_without_snapshots_only_the_history_is_read(run):
    shutil.rmtree(run / "snapshots")
    found = trace_development(run)
    assert found.steps == (0, 20, 40)
    assert found.snapshots == ()
    assert "lag_attention" not in found.series
    assert "3 evaluations" in found.summary()
    assert len([block for block in found.blocks() if isinstance(block, Lines)]) == 2


def test_a_damaged_snapshot_is_named_and_the_others_are_read(run):
    path = run / "snapshots" / "3.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    found = trace_development(run)
    assert found.snapshots == (0, 1, 11, 40)
    (reason,) = found.unreadable
    assert str(path) in reason
    assert str(path) in found.summary()
    shown = [block for block in found.blocks() if isinstance(block, Text)]
    assert any(str(path) in line for block in shown for line in block.lines)


def test_without_any_readable_snapshot_the_history_is_read(run):
    for path in (run / "snapshots").iterdir():
        path.write_bytes(b"")
    found = trace_development(run)
    assert found.steps == (0, 20, 40)
    assert found.snapshots == ()
    assert len(found.unreadable) == 5
    shown = [block for block in found.blocks() if isinstance(block, Text)]
    assert any(found.unreadable == block.lines for block in shown)


def test_the_chart_of_the_snapshots_has_a_logarithmic_axis_without_step_0(run):
    found = trace_development(run)
    charts = [block for block in found.blocks() if isinstance(block, Lines)]
    (chart,) = [chart for chart in charts if chart.logarithmic_x]
    image = lines(chart)
    assert "step (logarithmic)" in image
    assert "at 1:" in image
    assert "at 0:" not in image
    assert png(chart).startswith(b"\x89PNG")


def test_a_report_shows_snapshots(run):
    findings = collect(load_checkpoint(run), quick=True, n_sequences=64)
    found = findings.probes["trace_development"]
    assert found.snapshots == (0, 1, 3, 11, 40)
    assert any(isinstance(b, Lines) and b.logarithmic_x for b in result_blocks(found))
