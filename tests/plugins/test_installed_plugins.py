"""A package with one plugin of every kind is installed, used everywhere, and removed again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SESSION = Path(__file__).parent / "session.py"
PACKAGE = "mtd-menagerie 1.2.3"


def python(*words: str, path: tuple[Path, ...] = ()) -> subprocess.CompletedProcess:
    """Run a fresh interpreter that finds this project and the given folders."""
    found = os.pathsep.join(map(str, (ROOT, *path)))
    environment = {**os.environ, "PYTHONPATH": found}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=600
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def happened(installed, folder):
    """What `session.py` printed with the package installed."""
    done = python(str(SESSION), str(folder), path=(installed,))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_command_succeeds(happened):
    for name in ("train", "probe", "report"):
        assert happened[name]["code"] == 0, happened[name]["err"]


def test_the_task_and_architecture_train_and_are_recorded(happened, folder):
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["task"]["kind"] == "powers"
    assert config["model"]["architecture"] == "narrow"
    assert config["model"]["d_head"] == 6  # from --setting
    written_by = {"name": "mtd-menagerie", "version": "1.2.3"}
    assert config["plugins"] == {"task": written_by, "architecture": written_by}


def test_estimators_are_in_every_table_and_figure(happened, folder):
    trained = json.loads(happened["train"]["out"])
    probed = json.loads(happened["probe"]["out"])
    report = json.loads((folder / "report.json").read_text())
    shown = {row["name"]: row for row in happened["workbench"]["estimators"]}
    for name in ("recency", "last_token"):
        assert trained["kl_of_estimators"][name] > 0
        assert name in probed["identify_algorithm"]["divergences"]
        assert name in report["kl"]["estimators"]
        assert shown[name]["kl"] is not None
        assert name in happened["figure"]
    assert "weights that fall with the lag" in (folder / "report.html").read_text()


def test_the_probe_is_on_the_command_line_in_the_report_and_in_the_workbench(happened, folder):
    label = "Which offset does the last query attend to most?"
    probed = json.loads(happened["probe"]["out"])["peak_offset"]
    assert probed["n_sequences"] == 32
    assert probed["seed"] == 0
    page = (folder / "report.html").read_text()
    assert f"{label}</h2>" in page
    assert "The last layer attends most to a recent token" in page
    report = json.loads((folder / "report.json").read_text())
    claims = [claim["claim"] for claim in report["verdict"]["claims"]]
    assert "The last layer attends most to a recent token" in claims
    workbench = happened["workbench"]
    assert {"name": "peak_offset", "label": label} in workbench["probes"]
    assert "attends most to the offsets" in workbench["answer"]["summary"]


def test_a_broken_plugin_is_named_in_one_sentence_and_skipped(happened):
    warnings = [
        line for line in happened["probe"]["err"].splitlines() if line.startswith("mtdinterp: ")
    ]
    assert warnings == [
        f"mtdinterp: the probe 'absent' of {PACKAGE} is skipped: loading it registered no probe "
        "of that name",
        f"mtdinterp: the probe 'broken' of {PACKAGE} could not be loaded and is skipped "
        "(ModuleNotFoundError: No module named 'a_package_that_is_not_installed'; broken.py, "
        "line 1)",
    ]
    probes = [probe["name"] for probe in happened["workbench"]["probes"]]
    assert "broken" not in probes


def test_a_plugin_that_fails_in_use_is_named_and_the_rest_goes_on(happened):
    probed = json.loads(happened["probe"]["out"])
    assert probed["not_computed"]["stumbling"] == (
        f"the probe 'stumbling' of {PACKAGE} failed: RuntimeError: it stumbled; clumsy.py, line 19"
    )
    reason = f"the estimator 'clumsy' of {PACKAGE} failed: KeyError: 'missing'; clumsy.py, line 14"
    assert probed["identify_algorithm"]["left_out"]["clumsy"] == reason
    assert json.loads(happened["train"]["out"])["left_out"]["clumsy"] == reason
    shown = {row["name"]: row for row in happened["workbench"]["estimators"]}
    assert shown["clumsy"]["reason"] == reason


def test_help_lists_installed_plugins_without_importing_them(installed):
    code = (
        "import contextlib, io, sys\n"
        "from mtdinterp.cli import main\n"
        "said = io.StringIO()\n"
        "with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):\n"
        "    main(sys.argv[1:])\n"
        "print(said.getvalue(), 'torch' in sys.modules, 'mtd_menagerie' in sys.modules)"
    )
    for words in (["probe", "--help"], ["train", "--help"]):
        done = python("-c", code, *words, path=(installed,))
        assert f"from {PACKAGE}" in done.stdout
        assert done.stdout.splitlines()[-1] == " False False"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["train", "--task", "powrs"], "--task: expected one of lag-specific, mtd, powers; "),
        (
            ["train", "--architecture", "x"],
            "--architecture: expected one of disentangled, standard, narrow",
        ),
        (["probe", "m", "--probe", "peak"], "got 'peak'"),
    ],
)
def test_names_are_checked_without_importing_plugins(installed, words, sentence):
    code = (
        "import sys; from mtdinterp.cli import main; code = main(sys.argv[1:])\n"
        "print(code, 'torch' in sys.modules, 'mtd_menagerie' in sys.modules)"
    )
    done = python("-c", code, *words, path=(installed,))
    assert sentence in done.stderr
    assert done.stdout == "2 False False\n"


def test_without_the_package_one_sentence_names_it(happened, folder):
    for words in (["probe"], ["report"], ["train", "--resume"]):
        done = python("-m", "mtdinterp", *words, str(folder / "run"))
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].endswith(
            "config.json: task: expected one of mtd, lag-specific; got 'powers'. It was written "
            f"with {PACKAGE}; if you trust that package, install it"
        )


def test_without_the_package_listings_keep_working(happened, folder):
    code = (
        "import sys; from mtdinterp.app.models import Registry\n"
        "registry = Registry([sys.argv[1]])\n"
        "print(registry.first, len(registry.left_out), 'disentangled-m4-T64' in registry.entries)"
    )
    done = python("-c", code, str(folder / "run"))
    assert done.stdout == "disentangled-m4-T64 1 True\n", done.stderr


def announce(folder, package, name):
    """Metadata of an installed package that announces a task, and nothing else."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[mtdinterp.tasks]\n{name} = {package}:Task\n")


def test_help_survives_names_that_cannot_be_registered_and_names_given_twice(tmp_path):
    announce(tmp_path, "percent", "50%s")
    announce(tmp_path, "first", "same")
    announce(tmp_path, "second", "same")
    done = python("-m", "mtdinterp", "train", "--help", path=(tmp_path,))
    assert done.returncode == 0, done.stderr
    assert "50%" not in done.stdout
    assert "same: from " in done.stdout
    warnings = done.stderr.splitlines()
    assert len(warnings) == 2
    assert all(warning.startswith("mtdinterp: ") for warning in warnings)
    assert "percent 1.0 announces the task '50%s', which is skipped" in done.stderr
    assert "also announces; the former is skipped" in done.stderr
