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
from mtdinterp.report.markdown import escape
from mtdinterp.task import MTDTask

LENGTH = 24


def written(path, findings):
    """The numbers and the page of a report."""
    page, numbers = write_report([findings], path / "report.html", "mtdinterp report '<b>'")
    return json.loads(numbers.read_text()), page.read_text()


def collected(path, model, task):
    return collect(load_checkpoint(save_checkpoint(path / "model", model, task)))


def test_the_construction_is_one_step_with_its_beta(tmp_path, construction):
    numbers, page = written(tmp_path, construction)
    verdict = numbers["verdict"]
    assert verdict["algorithm"] == "one_step"
    assert verdict["branch"] == "direct"
    assert numbers["beta"]["attention"] == pytest.approx(12, rel=1e-3)
    assert numbers["transition"]["row_kl"]["attention"] < 1e-6
    assert "predicts like one step of mirror descent" in verdict["sentences"][0]
    failed = [claim["claim"] for claim in verdict["claims"] if claim["passed"] is False]
    assert set(failed) <= {"β by attention is the optimum", "β by output is the optimum"}  # 12 is not tuned
    assert "predicts like one step of mirror descent" in page


def test_the_mirrored_model_is_called_mirrored(tmp_path, mirrored):
    verdict = written(tmp_path, mirrored)[0]["verdict"]
    assert verdict["branch"] == "mirrored"
    assert any("mirrored" in sentence for sentence in verdict["sentences"])


def test_an_untrained_model_shows_nothing(tmp_path, task):
    torch.manual_seed(0)
    model = DisentangledTransformer(DisentangledConfig(vocab_size=5, length=LENGTH, d_rel=3))
    verdict = written(tmp_path, collected(tmp_path, model, task))[0]["verdict"]
    assert verdict["algorithm"] == "none"
    assert verdict["branch"] == "undecided"
    assert verdict["sentences"][0].startswith("Nothing was found")


def test_another_task_does_not_fit(tmp_path, task):
    other = MTDTask.random(5, 3, seed=1)
    findings = collected(tmp_path, one_step(other.transition, 3, LENGTH, 12.0), task)
    verdict = written(tmp_path, findings)[0]["verdict"]
    assert verdict["algorithm"] == "other_task"
    assert verdict["sentences"][0].startswith("The task does not fit")


def test_a_page_is_self_contained_and_escapes_what_it_is_given(tmp_path, construction):
    _, text = written(tmp_path, construction)
    assert construction.name not in text
    assert "&lt;script&gt;document.title" in text
    assert "&lt;b&gt;" in text
    assert len(re.findall("<script", text)) == 1
    assert not re.search(r"src\s*=|href=\"[^#]|https?://|@import|url\(", text)
    assert len(text) < 5e6


def test_the_command_writes_both_files_and_compares_several(tmp_path, capsys, task):
    for name, beta in (("a", 12.0), ("b", 3.0)):
        save_checkpoint(tmp_path / name, one_step(task.transition, 3, 12, beta), task)
    out = tmp_path / "compared.html"
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(out)]) == 0
    assert "a: This model predicts like one step" in capsys.readouterr().out
    assert "Side by side" in out.read_text()
    assert len(json.loads(out.with_suffix(".json").read_text())["models"]) == 2


def test_markdown_has_the_same_words_and_every_figure(tmp_path, construction):
    path, numbers = write_report([construction], tmp_path / "report.md", "mtdinterp report")
    text = path.read_text()
    assert escape(json.loads(numbers.read_text())["verdict"]["sentences"][0]) in text
    assert construction.name not in text
    assert escape(construction.name) in text
    figures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert len(figures) >= 10
    assert all((tmp_path / figure).read_bytes().startswith(b"\x89PNG") for figure in figures)
    lines = text.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("| model |"))
    columns = [len(re.findall(r"(?<!\\)\|", line)) for line in lines[first : first + 3]]
    assert columns == [6, 6, 6]  # five columns, also in the line with the hostile name


@pytest.mark.parametrize(("arguments", "words"), [
    (["--format", "md", "-o", "a.html"], "--format md does not go with a.html"),
    (["-o", "a.txt"], "ends in .html or .md"),
])
def test_formats_that_do_not_fit_are_refused(arguments, words, capsys):
    try:
        code = main(["report", "disentangled-m4-T64", *arguments])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert words in capsys.readouterr().err
