"""The command line; in a process of its own where start-up is what is tested."""

import dataclasses
import inspect
import io
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
import torch

from mtdinterp import LagSpecificMTDTask, catalogue, load_checkpoint, save_checkpoint
from mtdinterp.algorithms import two_step
from mtdinterp.architectures import Architecture, start_names
from mtdinterp.checkpoint_files import zoo_names
from mtdinterp.cli import main
from mtdinterp.commands import train_summary
from mtdinterp.commands.bench import GROUP_NAMES
from mtdinterp.commands.progress import LiveLine
from mtdinterp.commands.train import RECIPES
from mtdinterp.commands.train_flags import COMMON_SETTINGS, RECIPE_FLAGS, STARTS
from mtdinterp.commands.train_summary import summary_table
from mtdinterp.models import DisentangledConfig, DisentangledTransformer
from mtdinterp.native.step import LOSSES
from mtdinterp.registry import ESTIMATORS, TASKS
from mtdinterp.training.recipes import PAPER, SCHEDULES, SUPERVISIONS, TARGETS, Recipe, fast, quick


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mtdinterp", *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["train", "--help"],
        ["zoo", "--help"],
        ["construct", "--help"],
        ["probe", "--help"],
        ["decompile", "--help"],
        ["patch", "--help"],
        ["report", "--help"],
        ["reproduce", "--help"],
        ["bench", "--help"],
        ["app", "--help"],
        ["import", "--help"],
        ["sweep", "--help"],
        ["sweep", "run", "--help"],
        ["sweep", "cell", "--help"],
        ["sweep", "status", "--help"],
        ["sweep", "table", "--help"],
    ],
)
def test_help_shows_an_example_without_importing_torch(arguments):
    code = (
        f"import sys; from mtdinterp.cli import main\ntry: main({arguments})\nexcept SystemExit as "
        "e: "
        "print(e.code, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "example" in result.stdout
    assert result.stdout.splitlines()[-1] == "0 False False"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "The following arguments are required: COMMAND"),
        (["constrct"], "invalid choice: 'constrct'"),
        (["construct", "--order", "x"], "expected an integer, got 'x'"),
        (["construct", "--order", "1"], "expected an integer ≥ 2, got 1"),
        (["construct", "--beta", "nan"], "--beta: expected a finite number, got 'nan'"),
        (["construct", "--delta", "-1"], "--delta: expected a number > 0, got -1"),
        (
            ["construct", "--out", "pyproject.toml"],
            "pyproject.toml: expected a directory, got a file",
        ),
        (
            ["construct", "--out", "tests"],
            "expected a new or empty directory, or a checkpoint, but it contains",
        ),
        (
            ["construct", "--order", "9", "--length", "9"],
            "--order must be less than --length 9, got 9",
        ),
        (["construct", "--beta", "1", "--constants", "1"], "not allowed with argument --beta"),
        (["construct", "--task", "hmm"], "--task: expected one of"),
        (["train", "--task", "hmm"], "got 'hmm'"),
        (["train", "--steps", "0"], "--steps: expected an integer ≥ 1, got 0"),
        (["train", "--learning-rate", "-1"], "--learning-rate: expected a number > 0, got -1"),
        (["train", "--recipe", "slow"], "invalid choice: 'slow'"),
        (["train", "--order", "9", "--length", "9"], "--order must be less than --length 9, got 9"),
        (
            ["train", "--out", "tests"],
            "tests: expected a new or empty directory; choose another with --out",
        ),
        (["train", "--resume", "nowhere", "--steps", "5"], "leave out --steps"),
        (["train", "--resume", "nowhere", "--task", "mtd"], "leave out --task"),
        (
            ["train", "--resume", "nowhere", "--order", "4"],
            "leave out --order",
        ),  # also where it is the default
        (["train", "--d-model", "64"], "--d-model is a width of the standard transformer"),
        (
            ["train", "--architecture", "standard", "--d-rel", "3"],
            "--d-rel is a width of the disentangled",
        ),
        (["train", "--seed", "9" * 30], "--seed: expected an integer below 2^63"),
        (["train", "--out", ""], "--out: expected a path, got ''"),
        (
            ["train", "--out", "pyproject.toml/run"],
            "pyproject.toml is not a writable directory",
        ),
        (["train", "--resume", "nowhere"], "nowhere: no such directory to resume"),
        (["train", "--resume", "disentangled-m4-T64"], "zoo models cannot be resumed"),
        (["train", "--resume", "tests"], "tests: not a checkpoint (config.json is missing)"),
        (["probe", "disentangled-m4-T65"], "did you mean the zoo's disentangled-m4-T64?"),
        (
            ["probe", "disentangled-m4-T64", "--probe", "beta"],
            "recover_beta, recover_reweighting",
        ),
        (["patch", "disentangled-m4-T64"], "One of the arguments --hook --sweep is required"),
        (["patch", "nowhere", "--sweep", "block"], "nowhere: no such checkpoint directory"),
        (
            ["patch", "disentangled-m4-T64", "--sweep", "block", "--layer", "1"],
            "a sweep covers all places",
        ),
        (["patch", "disentangled-m4-T64", "--hook", "z"], "--hook z is a short name: add --layer"),
        (
            ["patch", "disentangled-m4-T64", "--hook", "z", "--same-end"],
            "--same-end and --direction apply only to --sweep",
        ),
        (
            ["patch", "disentangled-m4-T64", "--sweep", "block", "--out", "a.txt"],
            "ends in .png, .pdf or .svg",
        ),
        (
            ["patch", "disentangled-m4-T64", "--hook", "z", "--source", "nil"],
            "expected zero, mean, noise, other",
        ),
        (["report", "nowhere"], "nowhere: no such checkpoint directory"),
        (["report", "disentangled-m4-T64", "-o", "a.pdf"], "expected a file that ends in .html"),
        (["reproduce", "figure-4"], "no figure is called 'figure-4'"),
        (
            ["reproduce", "gradient", "-o", "pyproject.toml"],
            "pyproject.toml: expected a directory, got a file",
        ),
        (["bench", "--group", "sampling"], "invalid choice: 'sampling'"),
        (["app", "nowhere"], "nowhere: no such checkpoint directory"),
        (["app", "tests"], "tests: not a checkpoint (config.json is missing)"),
        (["app", "--port", "65536"], "--port: expected a port in 0..65535, got 65536"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(arguments, message):
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "truth"], "--target applies only when the two-step construction is tuned"),
        (["--algorithm", "nil"], "known for nil in disentangled with 3 layers"),
        (["--layers", "4"], "there are one_step (disentangled, 3 layers), "),
        (["--layers", "5", "--beta", "3"], "takes --constants β₁ a c₁ c₂"),
        (
            ["--constants", "1", "2", "3", "4"],
            "expected 1 for one step of mirror descent (β), got 4",
        ),
        (["--layers", "5", "--constants", "1"], "expected 4 for the two-step construction (β₁ a"),
        (["--task", "lag-specific"], "needs one transition matrix that all lags share"),
    ],
)
def test_what_no_construction_can_do_gets_one_sentence_after_the_import(arguments, message, capsys):
    assert main(["construct", *arguments]) == 2
    captured = capsys.readouterr()
    progress, sentence = captured.err.splitlines()
    assert progress == "importing …"
    assert message in sentence
    assert captured.out == ""


def test_every_kind_of_task_can_be_chosen():
    assert catalogue.known("task") == {name: task.label for name, task in TASKS.items()}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--beta", "8"],
        ["--architecture", "standard"],
        ["--layers", "5", "--constants", "5", "3", "1", "6"],
    ],
)
def test_construct_writes_a_checkpoint_and_says_how_it_compares(arguments, tmp_path, capsys):
    out = tmp_path / "made"
    code = main(
        [
            "construct",
            "--order",
            "3",
            "--length",
            "24",
            "--sequences",
            "300",
            "--json",
            "--out",
            str(out),
            *arguments,
        ]
    )
    report = json.loads(capsys.readouterr().out)
    assert code == 0
    assert report["max_error_to_formula"] <= 5e-5
    construction, *estimators = report["kl_to_truth"]
    assert construction["name"] == "construction"
    scores = {row["estimator"]: row["kl"] for row in estimators}
    assert list(scores) == list(ESTIMATORS)
    assert all(row["name"].startswith(ESTIMATORS[row["estimator"]].label) for row in estimators)
    assert scores["exact_bayes"] < construction["kl"] < scores["uniform"]
    checkpoint = load_checkpoint(out)
    assert checkpoint.task.order == 3
    assert checkpoint.model.config.length == 24


def test_construct_prints_a_table_and_progress_apart_from_it():
    result = run("construct", "--order", "2", "--length", "16", "--sequences", "100", "--beta", "5")
    assert result.returncode == 0, result.stderr
    assert "3-layer disentangled construction: β = 5\n" in result.stdout
    assert "exact posterior mean" in result.stdout
    assert result.stderr.splitlines() == ["importing …", "tuning …", "comparing …"]


def test_what_the_library_refuses_is_one_sentence_too(capsys):
    """Each flag is good by itself; together they are too much for the mask."""
    code = main(
        [
            "construct",
            "--order",
            "2",
            "--length",
            "9",
            "--layers",
            "5",
            "--constants",
            "1",
            "500",
            "1",
            "1",
        ]
    )
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    sentence = captured.err.splitlines()[-1]
    assert (
        sentence == "mtdinterp construct: delta: expected at least 540 to mask such scores, got 100"
    )


def test_bench_prints_the_numbers_it_measured(capsys):
    from mtdinterp.bench import GROUPS  # it imports everything that is measured

    assert tuple(GROUPS) == GROUP_NAMES
    assert main(["bench", "--quick", "--group", "sampler", "--group", "hooks", "--json"]) == 0
    measured = json.loads(capsys.readouterr().out)["measurements"]
    assert [line["unit"] for line in measured] == ["million tokens/s", "% on top", "% on top"]
    assert measured[0]["value"] > 0


TINY = [
    "train",
    "--vocab-size",
    "3",
    "--order",
    "2",
    "--length",
    "8",
    "--steps",
    "20",
    "--evaluate-every",
    "10",
]


def test_train_leaves_a_checkpoint_and_prints_what_it_reached(capsys, tmp_path):
    assert main([*TINY, "--out", str(tmp_path / "run"), "--seed", "3", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    loaded = load_checkpoint(tmp_path / "run")
    assert result["step"] == 20
    assert result["kl"] == loaded.history[-1]["kl"]
    assert set(result["kl_of_estimators"]) == {"uniform", "one_step", "two_step", "exact_bayes"}
    assert result["attention_path"] == "whole step"
    assert loaded.config["seeds"] == {"task": 0, "model": 3}
    lines = captured.err.splitlines()
    assert lines[:2] == ["importing …", "preparing the held-out set …"]
    assert lines[2].startswith("KL ")
    assert lines[2].endswith(" 0/20")
    assert "×MD β " in lines[-2]
    assert " 20/20 " in lines[-2]
    assert len(lines[-2]) < 80
    # Twenty steps are too few to learn anything, and the last line says so.
    assert lines[-1] == f"mtdinterp train: warning: {result['warning']}"
    assert "try other seeds (--restarts 3), or more --steps" in lines[-1]
    # Once more to the same place is refused, resuming a finished run changes nothing.
    assert main([*TINY, "--out", str(tmp_path / "run")]) == 2
    assert "--resume" in capsys.readouterr().err
    for name in ("model.safetensors", "history.jsonl"):  # damaged, but the state is not
        (tmp_path / "run" / name).write_bytes((tmp_path / "run" / name).read_bytes()[:30])
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    repaired = load_checkpoint(tmp_path / "run")
    assert repaired.history == loaded.history
    assert all(
        torch.equal(value, loaded.model.state_dict()[name])
        for name, value in repaired.model.state_dict().items()
    )
    table = capsys.readouterr().out
    assert "step 20 of 20" in table
    assert "ratio to one-step MD" in table


def test_train_takes_every_kind_of_task_and_resumes_it(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = main([*TINY, "--task", "lag-specific", "--out", "whole", "--json"])
    assert whole == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result["kl_of_estimators"]) == {"uniform", "one_step", "two_step", "exact_bayes"}
    assert result["left_out"] == {}
    assert result["notes"] == {}
    loaded = load_checkpoint("whole")
    assert loaded.task == LagSpecificMTDTask.random(3, 2, seed=0)
    assert "one transition matrix per lag" in repr(loaded)
    assert main(["train", "--resume", "whole"]) == 0
    assert "step 20 of 20" in capsys.readouterr().out
    # Without --out the directory is named after the task and the model.
    assert main([*TINY, "--task", "lag-specific"]) == 0
    name = "lag-specific-disentangled-m2-T8"
    repeated = load_checkpoint(tmp_path / "out" / name)
    assert all(
        torch.equal(value, loaded.model.state_dict()[key])
        for key, value in repeated.model.state_dict().items()
    )


def test_train_without_anything_to_tune_says_so(capsys):
    """A ratio that cannot be computed is a dash with its reason, not a number."""
    held_out = {"one_step": "learning_rate: there is nothing to tune"}
    table = summary_table(
        {
            "step": 1,
            "steps": 1,
            "seconds": 0.1,
            "evaluated_at": 1,
            "kl": 0.5,
            "kl_stderr": 0.1,
            "kl_of_estimators": {"uniform": 0.25},
            "left_out": held_out,
            "notes": {"uniform": "known to two digits"},
            "gain": None,
            "gain_r2": None,
            "beta": None,
            "beta_r2": None,
            "ratio": None,
            "optimal_beta": None,
            "branch": "undecided",
            "checkpoint": "out/run",
        }
    )
    assert "one-step MD (tuned)    not computed: learning_rate: there is nothing to tune" in table
    assert "uniform weights        0.25000 (known to two digits)" in table
    assert "ratio to one-step MD     —" in table
    assert "optimum —" in table


def test_the_columns_of_the_result_of_training_are_aligned(monkeypatch):
    label = "weights that fall with the lag"
    monkeypatch.setattr(train_summary, "_estimator_label", lambda name: label)
    held_out = {"kl_of_estimators": {"falling": 0.05039}, "left_out": {}, "notes": {}}
    numbers = dict.fromkeys(("gain", "gain_r2", "beta", "beta_r2", "ratio", "optimal_beta"))
    run = {"step": 1, "steps": 1, "seconds": 0.1, "evaluated_at": 1, "kl": 0.5, "kl_stderr": 0.1}
    table = summary_table(run | held_out | numbers | {"branch": "undecided", "checkpoint": "out"})
    assert f"  {label} 0.05039" in table
    assert f"  {'this model':<{len(label)}} 0.50000" in table


@pytest.mark.parametrize(("layers", "flag"), [("3", "--beta"), ("5", "--constants")])
def test_equal_rows_leave_nothing_to_tune_and_say_what_to_do(layers, flag, tmp_path, capsys):
    path = tmp_path / "equal.csv"
    path.write_text("0.5,0.5\n0.5,0.5\n")
    flags = ["--transition", str(path), "--order", "2", "--length", "16", "--layers", layers]
    assert main(["construct", *flags]) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "all predictions are the same whatever the weights" in sentence
    assert sentence.endswith(f"another --transition, or give {flag}")
    assert "learning_rate" not in sentence


@pytest.mark.parametrize(
    ("interval", "is_flat", "text"),
    [
        ([15.9, 16.4], False, "optimum 16.13 (15.90 to 16.40)"),
        ([2.1, None], True, "optimum flat: every β ≥ 2.1 fits equally well"),
    ],
)
def test_training_says_how_well_the_optimum_is_known(interval, is_flat, text):
    numbers = dict.fromkeys(("gain", "gain_r2", "beta", "beta_r2", "ratio", "left_out"))
    run = {"step": 1, "steps": 1, "seconds": 0.1, "evaluated_at": 1, "kl": 0.5, "kl_stderr": 0.1}
    run |= {"branch": "direct", "checkpoint": "out", "kl_of_estimators": {}}
    run |= {"left_out": {}, "notes": {}}
    optimum = {"optimal_beta": 16.13, "optimal_interval": interval, "optimal_flat": is_flat}
    assert text in summary_table(numbers | run | optimum)


def test_construct_gives_the_interval_of_every_tuned_constant(capsys):
    size = ["--vocab-size", "3", "--order", "2", "--length", "16", "--sequences", "50"]
    assert main(["construct", *size, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    made = result["construction"]
    low, high = made["intervals"]["beta"]
    assert low < made["constants"]["beta"] < high
    assert made["flat"] == []
    rows = {row["estimator"]: row for row in result["kl_to_truth"]}
    assert set(rows["one_step"]["intervals"]) == {"beta"}
    assert rows["maximum_likelihood"]["constants"] == {}


@pytest.mark.slow
@pytest.mark.promise
def test_train_and_construct_have_a_row_for_the_posterior_mean_of_many_lags(tmp_path, capsys):
    size = ["--vocab-size", "3", "--order", "8", "--length", "40"]
    few = ["--steps", "1", "--batch-size", "2", "--out", str(tmp_path / "run")]
    assert main(["train", *size, *few, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["kl_of_estimators"]["exact_bayes"] < result["kl_of_estimators"]["uniform"]
    assert result["left_out"] == {}
    assert set(result["notes"]) == {"exact_bayes"}
    assert result["notes"]["exact_bayes"].startswith("sampled for 128 of 128 sequences")
    assert main(["construct", *size, "--sequences", "20", "--json"]) == 0
    rows = {row["estimator"]: row for row in json.loads(capsys.readouterr().out)["kl_to_truth"]}
    assert rows["exact_bayes"]["note"].startswith("sampled for 20 of 20 sequences")
    assert rows["one_step"]["note"] is None
    assert main(["construct", *size, "--sequences", "20"]) == 0
    (line,) = [
        line for line in capsys.readouterr().out.splitlines() if "exact posterior mean" in line
    ]
    assert line.endswith(f"({rows['exact_bayes']['note']})")


def test_construct_says_that_constants_tuned_together_have_no_intervals(capsys, monkeypatch):
    constants = two_step.TwoStepConstants(5.0, 3.0, 1.0, 6.0)
    monkeypatch.setattr(two_step, "tune_two_step", lambda *arguments: constants)
    size = ["--vocab-size", "3", "--order", "2", "--length", "16", "--sequences", "50"]
    assert main(["construct", *size, "--layers", "5"]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "c₂ = 6 (tuned together, so without intervals)" in first
    given = ["--constants", "5", "3", "1", "6"]
    assert main(["construct", *size, "--layers", "5", *given]) == 0
    assert "without intervals" not in capsys.readouterr().out


def test_construct_says_that_an_optimum_is_flat(capsys, tmp_path):
    path = tmp_path / "nearly-uniform.csv"
    path.write_text("0.5001,0.4999\n0.4999,0.5001\n")
    flags = ["--transition", str(path), "--order", "2", "--length", "16", "--sequences", "50"]
    assert main(["construct", *flags]) == 0
    table = capsys.readouterr().out
    assert "construction: tuned β = " in table
    assert "flat: " in table.splitlines()[0]


def test_a_pipe_in_place_of_the_numbers_of_a_report_is_refused_at_once(capsys, tmp_path):
    os.mkfifo(tmp_path / "report.json")
    page = str(tmp_path / "report.html")
    assert main(["report", "disentangled-m4-T64", "-o", page]) == 2
    assert "was not written by mtdinterp report" in capsys.readouterr().err


def test_train_resumes_below_the_home_directory(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main([*TINY, "--out", "~/run"]) == 0
    assert main(["train", "--resume", "~/run"]) == 0
    assert "step 20 of 20" in capsys.readouterr().out


def test_the_choices_of_flags_are_those_of_recipes():
    known = {
        "schedule": SCHEDULES,
        "targets": TARGETS,
        "loss": LOSSES,
        "supervision": SUPERVISIONS,
    }
    assert {
        name: tuple(flag["choices"]) for name, flag in RECIPE_FLAGS.items() if "choices" in flag
    } == known
    assert start_names() == STARTS
    assert set(RECIPE_FLAGS) == {field.name for field in dataclasses.fields(Recipe)} - {"name"}


def test_help_says_what_the_recipes_are():
    words = " ".join(RECIPES.split())
    three, five, standard = fast(), fast(n_layers=5), fast("standard")
    assert f"Adam {three.adam_betas}, true next-token" in words
    assert (
        f"batch {three.batch_size}, warm-up, {three.schedule} decay, {three.initialisation} "
        "initialisation" in words
    )
    assert f"3 layers: {three.steps} steps, learning rate {three.learning_rate:g} " in words
    assert f"(standard: {standard.learning_rate:g})" in words
    fewer = quick()
    assert f"{fewer.steps} steps at a learning rate of {fewer.learning_rate:g} for 3" in words
    assert (
        f"5 layers: {five.steps} steps, learning rate {five.learning_rate:g}, later rate "
        f"{five.later_rate:g}."
    ) in words
    assert (
        f"Adam {PAPER.adam_betas}, one-hot targets, batch {PAPER.batch_size}, {PAPER.steps} "
        "steps at a "
        f"{PAPER.schedule} learning rate of {PAPER.learning_rate:g}, {PAPER.initialisation} "
        "initialisation"
    ) in words
    assert {standard.steps, three.steps} == {8000}
    assert all(f" {name} " in words for name in start_names())


def test_kernels_that_are_insisted_on_and_cannot_be_built_are_one_sentence(tmp_path):
    result = subprocess.run(
        [sys.executable, "-m", "mtdinterp", *TINY, "--out", str(tmp_path / "run")],
        text=True,
        capture_output=True,
        env={
            **os.environ,
            "CXX": str(tmp_path / "none"),
            "PATH": "",
            "MTDINTERP_KERNEL": "fused",
            "MTDINTERP_CACHE": str(tmp_path),
        },
    )
    assert result.returncode == 2
    assert result.stderr.splitlines()[-1].startswith("mtdinterp train: ")
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "extra",
    [
        ["--architecture", "standard", "--d-model", "8"],
        ["--layers", "5"],
        ["--recipe", "paper"],
        ["--d-mlp", "6"],
        ["--loss", "cross-entropy", "--supervision", "all"],
    ],
)
def test_train_takes_every_kind_of_model(capsys, tmp_path, extra):
    assert main([*TINY, "--out", str(tmp_path / "run"), "--json", *extra]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 20


def test_training_can_be_logged_to_weights_and_biases(monkeypatch, capsys, tmp_path):
    calls = []

    class Fake:
        __spec__ = ModuleSpec("wandb", None)

        def init(self, **settings):
            calls.append(settings)
            return self

        def log(self, entry, step):
            calls.append(step)

        def finish(self):
            calls.append("finished")

    monkeypatch.setitem(sys.modules, "wandb", Fake())
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert main([*TINY, "--out", str(tmp_path / "run"), "--wandb", "mtd"]) == 0
    assert calls[0]["project"] == "mtd"
    assert calls[0]["mode"] == "offline"
    assert calls[1:] == [0, 10, 20, "finished"]


def test_a_live_line_renews_itself_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    line = LiveLine(100, Terminal())
    line.INTERVAL = 0
    line.started(10)
    line.evaluated(20, "KL 0.5")
    line.stepped(20)
    line.close()
    shown = line.stream.getvalue()
    assert "20/100 " in shown
    assert "steps/s" in shown
    assert "KL 0.5" in shown
    assert "\n" not in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_whoever_stops_watching_does_not_stop_training(terminal):
    class Gone(io.StringIO):
        def isatty(self):
            return terminal

        def write(self, text):
            raise OSError(5, "Input/output error")

    line = LiveLine(100, Gone())
    line.started(0)
    line.stepped(1)
    line.evaluated(2, "KL 1")
    line.stepped(3)
    line.close()


def test_a_reading_that_does_not_apply_is_null(capsys, tmp_path):
    """One layer has no second one to average what it attends to."""
    assert main([*TINY, "--out", str(tmp_path / "run"), "--layers", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert result["gain"] is None
    assert result["branch"] == "undecided"


def test_what_is_too_large_is_one_sentence(capsys, tmp_path):
    assert main([*TINY, "--out", str(tmp_path / "run"), "--layers", "40"]) == 2
    assert "more than 25,000,000 parameters" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_an_unknown_device_is_one_sentence(capsys, tmp_path):
    assert main([*TINY, "--out", str(tmp_path / "run"), "--device", "nonsense"]) == 2
    assert "device: 'nonsense' cannot be used here" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_zoo_lists_what_ships(capsys):
    assert main(["zoo", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert [entry["name"] for entry in entries] == zoo_names()
    assert main(["zoo"]) == 0
    table = capsys.readouterr().out
    assert all(entry["name"] in table for entry in entries)


def test_a_reader_that_has_seen_enough_is_no_error():
    command = [sys.executable, "-m", "mtdinterp", "zoo", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""


def test_probe_prints_summaries_and_json(capsys):
    arguments = ["probe", "disentangled-m4-T64", "--probe", "recover_beta", "--sequences", "64"]
    assert main(arguments) == 0
    assert "attention   1" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recover_beta"]["branch"] == "direct"
    assert found["recover_beta"]["two_step"] is None


def test_a_constructed_checkpoint_has_no_development(tmp_path, capsys):
    assert (
        main(
            [
                "construct",
                "--beta",
                "9",
                "--length",
                "20",
                "--sequences",
                "16",
                "--out",
                str(tmp_path / "c"),
            ]
        )
        == 0
    )
    assert main(["probe", str(tmp_path / "c"), "--probe", "trace_development"]) == 2
    assert "has no training history to trace" in capsys.readouterr().err


def test_patch_one_place_and_sweep_all(tmp_path, capsys):
    assert (
        main(
            [
                "patch",
                "disentangled-m4-T64",
                "--hook",
                "pattern",
                "--layer",
                "2",
                "--position",
                "-1",
                "--source",
                "construction",
                "--sequences",
                "8",
            ]
        )
        == 0
    )
    assert "KL(before ‖ after)" in capsys.readouterr().out
    figure = tmp_path / "patch.png"
    assert (
        main(
            [
                "patch",
                "disentangled-m4-T64",
                "--hook",
                "hook_embed",
                "--position",
                "3",
                "--out",
                str(figure),
            ]
        )
        == 0
    )
    assert figure.read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    figure = tmp_path / "sweep.png"
    assert (
        main(
            [
                "patch",
                "disentangled-m4-T64",
                "--sweep",
                "head",
                "--sequences",
                "1",
                "--out",
                str(figure),
            ]
        )
        == 0
    )
    assert figure.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "position" in printed
    assert "-KL(clean prediction ‖ prediction) is 0 for the clean run" in printed
    assert (
        main(["patch", "standard-m4-T64", "--sweep", "attn_out", "--sequences", "1", "--json"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert len(found["values"]) == 3
    assert main(["patch", "disentangled-m4-T64", "--hook", "z", "--layer", "9"]) == 2
    assert "layer: expected a layer in 0..2, got 9" in capsys.readouterr().err


def test_patch_from_a_construction_that_does_not_exist_is_one_sentence(tmp_path, capsys):
    """Neither a task without a single matrix nor a depth without a construction has one."""
    config = DisentangledConfig(vocab_size=3, length=8, d_rel=2)
    task = LagSpecificMTDTask.random(3, 2, seed=0)
    save_checkpoint(tmp_path / "lags", DisentangledTransformer(config), task)
    place = ["--hook", "pattern", "--layer", "1", "--sequences", "8"]
    assert main(["patch", str(tmp_path / "lags"), *place, "--source", "construction"]) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "one transition matrix that all lags share" in sentence
    assert main(["patch", str(tmp_path / "lags"), *place, "--source", "mean"]) == 0
    sweep = ["--sweep", "head", "--same-end", "--sequences", "1"]
    assert main(["patch", str(tmp_path / "lags"), *sweep]) == 0


def test_a_setting_that_every_architecture_has_is_given_by_its_own_flag(capsys):
    parameters = inspect.signature(Architecture.new_model).parameters
    common = [name for name in parameters if name not in ("self", "settings")]
    assert set(common) == set(COMMON_SETTINGS)
    for name in common:
        with pytest.raises(SystemExit):
            main(["train", "--setting", f"{name}=3"])
        assert f"{name} has a flag of its own: --" in capsys.readouterr().err
