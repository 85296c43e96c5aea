"""Reports say what is so, and no more: sentences are checked from the numbers that go with them."""

import json
import re

import pytest
import torch

from mtdinterp import load_checkpoint, save_checkpoint
from mtdinterp.cli import main
from mtdinterp.commands.report import _check_own
from mtdinterp.construction import one_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.pages.markdown import escape
from mtdinterp.report import collect, write_report
from mtdinterp.tasks import MTDTask

LENGTH = 24
BEYOND = "how predictions differ from those of uniform weights"
EXPLAINED = f"One estimator explains at least 90% of {BEYOND}"
INFERS = f"Weights that depend on the sequence explain at least 60% of {BEYOND}"
CLOSES_THE_GAP = (
    "The model closes 80% of the KL gap between uniform weights and the exact posterior mean"
)


def written(path, findings):
    """The numbers and the page of a report."""
    page, numbers = write_report([findings], path / "report.html", "mtdinterp report '<b>'")
    return json.loads(numbers.read_text()), page.read_text()


def claim_of(numbers, words):
    (claim,) = [entry for entry in numbers["verdict"]["claims"] if entry["claim"] == words]
    return claim["passed"]


def collected(path, model, task):
    return collect(load_checkpoint(save_checkpoint(path / "model", model, task)))


def test_the_construction_is_one_step_with_its_beta(tmp_path, construction):
    numbers, page = written(tmp_path, construction)
    verdict = numbers["verdict"]
    assert verdict["algorithm"] == "one_step"
    assert verdict["branch"] == "direct"
    assert numbers["beta"]["attention"] == pytest.approx(numbers["beta"]["optimal"], rel=1e-3)
    assert numbers["beta"]["output"] == pytest.approx(numbers["beta"]["optimal"], rel=1e-2)
    assert numbers["transition"]["row_kl"]["attention"] < 1e-6
    assert "predicts like one step of mirror descent" in verdict["sentences"][0]
    assert all(claim["passed"] for claim in verdict["claims"])
    assert verdict["misfits"] == []
    assert "which the model matches within 0.2%" in verdict["sentences"][2]
    assert verdict["sentences"][-1].startswith("Everything matches")
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
    assert verdict["sentences"][0].startswith("No algorithm was identified")
    assert re.match(r"\d+ of \d+ claims hold", verdict["sentences"][-1])


def test_another_task_does_not_fit(tmp_path, task):
    other = MTDTask.random(5, 3, seed=1)
    findings = collected(tmp_path, one_step(other.transition, 3, LENGTH, 12.0), task)
    verdict = written(tmp_path, findings)[0]["verdict"]
    assert verdict["algorithm"] == "other_task"
    assert verdict["sentences"][0].startswith("The task does not fit")


def test_a_model_for_another_number_of_lags_is_not_explained(tmp_path, task):
    """The same matrix, so only the predictions can tell."""
    longer = MTDTask(task.transition, 4)
    numbers, page = written(
        tmp_path, collected(tmp_path, one_step(task.transition, 3, LENGTH, 12.0), longer)
    )
    assert numbers["verdict"]["algorithm"] == "none"
    assert claim_of(numbers, EXPLAINED) is False
    assert "Its β is" not in page


@pytest.mark.slow
@pytest.mark.promise
def test_uniform_weights_are_called_what_they_are(tmp_path, task):
    numbers, _ = written(
        tmp_path, collected(tmp_path, one_step(task.transition, 3, LENGTH, 0.0), task)
    )
    assert numbers["verdict"]["algorithm"] == "uniform"
    assert "infers nothing in context" in " ".join(numbers["verdict"]["sentences"])
    assert claim_of(numbers, INFERS) is False
    few = (
        "At most 10% of the edges close 95% of the KL gap between all edges at their means and "
        "the model"
    )
    assert claim_of(numbers, few) is None


@pytest.mark.slow
@pytest.mark.promise
def test_a_step_against_the_likelihood_is_said(tmp_path, task):
    numbers, _ = written(
        tmp_path, collected(tmp_path, one_step(task.transition, 3, LENGTH, -8.0), task)
    )
    assert "against the likelihood" in numbers["verdict"]["sentences"][0]
    assert claim_of(numbers, CLOSES_THE_GAP) is False


@pytest.mark.slow
@pytest.mark.promise
def test_where_there_is_nothing_to_infer_nothing_is_held_against_the_model(tmp_path, task):
    single = MTDTask(task.transition, 1)
    numbers, page = written(
        tmp_path, collected(tmp_path, one_step(task.transition, 1, LENGTH, 5.0), single)
    )
    assert numbers["verdict"]["algorithm"] == "nothing_to_infer"
    assert not any(
        "infers" in sentence or "interchange" in sentence
        for sentence in numbers["verdict"]["misfits"]
    )
    assert "nan" not in re.sub("<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL)


def test_sentences_say_the_numbers_that_are_in_the_json(tmp_path, mirrored):
    numbers, _ = written(tmp_path, mirrored)
    answer = " ".join(numbers["verdict"]["sentences"])
    kl, ratio, bayes = (numbers["kl"][name] for name in ("model", "kl_ratio", "bayes_ratio"))
    assert f"KL to the truth is {kl['kl']:.5f} ± {kl['stderr']:.5f}" in answer
    assert f"{ratio['value']:.3f} ± {ratio['stderr']:.3f} times that of tuned one-step" in answer
    assert f"{bayes['value']:.3f} ± {bayes['stderr']:.3f} times the Bayes optimum" in answer
    assert (
        f"{numbers['beta']['output']:.2f} ± {numbers['beta']['output_stderr']:.2f} by output"
        in answer
    )
    variation = numbers["transition"]["total_variation"]
    assert f"{variation['attention']:.3f} by layer 1's scores" in answer
    assert f"{variation['output']:.3f} by the output" in answer
    estimators = numbers["kl"]["estimators"]
    assert ratio["value"] == pytest.approx(kl["kl"] / estimators["one_step"]["kl"], rel=1e-6)
    assert bayes["value"] == pytest.approx(kl["kl"] / estimators["exact_bayes"]["kl"], rel=1e-6)
    # Paired: far better known than the KL itself.
    assert ratio["stderr"] < 0.5 * kl["stderr"] / kl["kl"]


def test_predictions_that_are_no_numbers_are_refused(tmp_path, task):
    model = one_step(task.transition, 3, LENGTH, 12.0)
    with torch.no_grad():
        model.W_U[0, 0] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        collected(tmp_path, model, task)


def test_a_page_is_self_contained_and_escapes_what_it_is_given(tmp_path, construction):
    _, text = written(tmp_path, construction)
    assert construction.name not in text
    assert "&lt;script&gt;document.title" in text
    assert "&lt;b&gt;" in text
    assert len(re.findall("<script", text)) == 1
    assert not re.search(r"src\s*=\s*\"(?!data:)|href=\"[^#]|https?://|@import|url\(", text)
    assert len(text) < 5e6


def test_the_command_writes_both_files_and_compares_several(tmp_path, capsys, task):
    paths = [tmp_path / name / "run" for name in ("a", "b")]
    for path, beta in zip(paths, (12.0, 3.0), strict=True):
        save_checkpoint(path, one_step(task.transition, 3, 12, beta), task)
    out = tmp_path / "compared.html"
    assert main(["report", *map(str, paths), "-o", str(out)]) == 0
    assert f"{paths[0]}: The model predicts like one step" in capsys.readouterr().out
    assert "Side by side" in out.read_text()
    models = json.loads(out.with_suffix(".json").read_text())["models"]
    assert [model["name"] for model in models] == [
        "a/run",
        "b/run",
    ]  # one name would not tell them apart


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


def test_a_report_destroys_nothing(tmp_path, task, capsys):
    path = save_checkpoint(tmp_path / "model", one_step(task.transition, 3, LENGTH, 5.0), task)
    before = (path / "config.json").read_bytes()
    assert main(["report", str(path), "-o", str(path / "config.html")]) == 2
    assert "is a checkpoint" in capsys.readouterr().err
    assert (path / "config.json").read_bytes() == before
    (tmp_path / "mine.json").write_text('{"data": 1}')
    assert main(["report", str(path), "-o", str(tmp_path / "mine.html")]) == 2
    assert "was not written by mtdinterp report" in capsys.readouterr().err
    assert main(["report", str(path), "-o", str(path / "config.json" / "x.html")]) == 2
    assert "cannot write here" in capsys.readouterr().err


def test_a_page_does_not_replace_the_numbers_of_another_page(tmp_path, capsys):
    page = tmp_path / "a.html"
    page.write_text("")
    numbers = tmp_path / "a.json"
    command = f"mtdinterp report standard-m4-T64 -o {page} --seed 0 --quick"
    numbers.write_text(json.dumps({"verdict": {}, "command": command}))
    before = numbers.read_bytes()
    flags = ["disentangled-m4-T64", "--quick", "-o", str(tmp_path / "a.md")]
    assert main(["report", *flags]) == 2
    assert f"contains the numbers of {page}" in capsys.readouterr().err
    assert numbers.read_bytes() == before
    # The same measurements on another kind of page, or the same page again, are no conflict.
    _check_own(tmp_path / "a.md", command.replace("a.html", "a.md"))
    _check_own(page, "mtdinterp report disentangled-m4-T64 -o a.html --seed 0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "md", "-o", "a.html"], "--format md does not match the file name a.html"),
        (["-o", "a.txt"], "ends in .html or .md"),
    ],
)
def test_formats_that_do_not_fit_are_refused(arguments, words, capsys):
    try:
        code = main(["report", "disentangled-m4-T64", *arguments])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert words in capsys.readouterr().err
