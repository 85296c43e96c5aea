"""Reports say what is so, and no more: sentences are checked from the numbers that go with them."""

import json
import re

import pytest
import torch

from mtdinterp import load_checkpoint, save_checkpoint
from mtdinterp.cli import main
from mtdinterp.construction import one_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.report import collect, write_report
from mtdinterp.task import MTDTask

LENGTH = 32
TASK = MTDTask.random(5, 3, seed=0)


def report_on(path, model, task):
    """The numbers and the page of a report on a model that was saved with a task."""
    checkpoint = load_checkpoint(save_checkpoint(path / "model", model, task))
    page, numbers = write_report([collect(checkpoint)], path / "report.html", "mtdinterp report")
    return json.loads(numbers.read_text()), page.read_text()


def test_the_construction_is_one_step_with_its_beta(tmp_path):
    numbers, page = report_on(tmp_path, one_step(TASK.transition, 3, LENGTH, 12.0), TASK)
    verdict = numbers["verdict"]
    assert verdict["algorithm"] == "one_step"
    assert verdict["branch"] == "direct"
    assert numbers["beta"]["attention"] == pytest.approx(12, rel=1e-3)
    assert numbers["transition"]["row_kl"]["attention"] < 1e-6
    assert "predicts like one step of mirror descent" in verdict["sentences"][0]
    failed = [claim["claim"] for claim in verdict["claims"] if claim["passed"] is False]
    assert set(failed) <= {"β by attention is the optimum", "β by output is the optimum"}  # 12 is not tuned
    assert "predicts like one step of mirror descent" in page


def test_the_mirrored_model_is_called_mirrored(tmp_path):
    findings = collect(load_checkpoint("disentangled-m4-T64-mirrored"))
    _, numbers = write_report([findings], tmp_path / "report.html")
    verdict = json.loads(numbers.read_text())["verdict"]
    assert verdict["branch"] == "mirrored"
    assert any("mirrored" in sentence for sentence in verdict["sentences"])


def test_an_untrained_model_shows_nothing(tmp_path):
    torch.manual_seed(0)
    model = DisentangledTransformer(DisentangledConfig(vocab_size=5, length=LENGTH, d_rel=3))
    verdict = report_on(tmp_path, model, TASK)[0]["verdict"]
    assert verdict["algorithm"] == "none"
    assert verdict["branch"] == "undecided"
    assert verdict["sentences"][0].startswith("Nothing was found")


def test_another_task_does_not_fit(tmp_path):
    other = MTDTask.random(5, 3, seed=1)
    verdict = report_on(tmp_path, one_step(other.transition, 3, LENGTH, 12.0), TASK)[0]["verdict"]
    assert verdict["algorithm"] == "other_task"
    assert verdict["sentences"][0].startswith("The task does not fit")


def test_a_page_is_self_contained_and_escapes_what_it_is_given(tmp_path):
    model = one_step(TASK.transition, 3, LENGTH, 12.0)
    name = "<script>alert(1)<"
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / name, model, TASK))
    page, _ = write_report([collect(checkpoint)], tmp_path / "report.html", "mtdinterp report '<b>'")
    text = page.read_text()
    assert name not in text
    assert "&lt;script&gt;alert(1)&lt;" in text
    assert len(re.findall("<script", text)) == 1
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", text)
    assert len(text) < 5e6


def test_the_command_writes_both_files_and_compares_several(tmp_path, capsys):
    for name, beta in (("a", 12.0), ("b", 3.0)):
        save_checkpoint(tmp_path / name, one_step(TASK.transition, 3, 16, beta), TASK)
    out = tmp_path / "compared.html"
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(out)]) == 0
    assert "a: This model predicts like one step" in capsys.readouterr().out
    assert "Side by side" in out.read_text()
    assert len(json.loads(out.with_suffix(".json").read_text())["models"]) == 2
