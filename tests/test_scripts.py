"""The flags of scripts/test and scripts/quickstart, with stand-ins for everything they call."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
USED = ("bash", "cat", "chmod", "cksum", "dirname", "env", "grep", "mktemp", "rm")
"""Programs that the scripts and the stand-ins call."""
TOOLS = ("c++", "chromium", "chromedriver")
"""Programs that the tests need."""
RECORDING = '#!/usr/bin/env bash\necho "{name} $*" >>"{log}"\n'


class Sandbox:
    """A copy of the scripts with a path of its own, in which every call is written down."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.log = root / "calls"
        self.log.touch()
        shutil.copytree(ROOT / "scripts", root / "scripts")
        shutil.copytree(ROOT / ".ci", root / ".ci")
        shutil.copytree(ROOT / "requirements", root / "requirements")
        for name in ("pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, root)
        self.bin.mkdir()
        for name in USED:
            (self.bin / name).symlink_to(shutil.which(name))
        (root / ".venv" / "bin").mkdir(parents=True)
        self.stand_in(root / ".venv" / "bin" / "python", "python")
        self.stand_in(self.bin / "python3", "python3")

    def stand_in(self, path: Path, name: str, then: str = "") -> None:
        """A program that writes down its arguments."""
        path.write_text(RECORDING.format(name=name, log=self.log) + then)
        path.chmod(0o755)

    def provide(self, *tools: str) -> None:
        """Put programs on the path."""
        for tool in tools:
            self.stand_in(self.bin / tool, tool)

    def provide_apt_get(self, then: str = "") -> None:
        """Put an apt-get on the path that only writes down what it is asked for."""
        self.stand_in(self.bin / "apt-get", "apt-get", then)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the copy."""
        environment = {**os.environ, "PATH": str(self.bin)}
        environment.pop("CXX", None)
        return subprocess.run(
            [shutil.which("bash"), *command],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, program: str) -> list[str]:
        """The arguments of all calls of a program, in order."""
        lines = self.log.read_text().splitlines()
        start = f"{program} "
        return [line.removeprefix(start) for line in lines if line.startswith(start)]

    def pip_calls(self) -> list[str]:
        """The arguments of all calls of pip."""
        return [call for call in self.calls("python") if call.startswith("-m pip ")]

    def pytest_arguments(self) -> str:
        """What pytest was called with after all checks."""
        return self.calls("python")[-1].removeprefix("-m pytest -n 2").strip()


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_no_install_stops_with_the_names_of_what_is_missing(sandbox):
    sandbox.provide("c++")
    sandbox.provide_apt_get()
    result = sandbox.run("scripts/test", "--no-install")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "apt-get install --no-install-recommends chromium chromium-driver" in result.stderr
    assert sandbox.log.read_text() == ""


def test_what_is_about_to_be_installed_is_said_first(sandbox):
    sandbox.provide("c++")
    then = 'if [ "$1" = install ]; then printf "" >chromium; chmod +x chromium; fi\n'
    sandbox.provide_apt_get(f'cd "{sandbox.bin}"\n{then}{then.replace("chromium", "chromedriver")}')
    result = sandbox.run("scripts/test")
    assert result.returncode == 0, result.stderr
    first = result.stderr.splitlines()[0]
    assert first == "scripts/test: about to install with apt-get: chromium chromium-driver"
    assert sandbox.calls("apt-get") == [
        "update -qq",
        "install --no-install-recommends -y -qq chromium chromium-driver",
    ]


def test_a_failed_installation_is_one_sentence_and_runs_no_test(sandbox):
    sandbox.provide_apt_get("exit 100\n")
    result = sandbox.run("scripts/test")
    assert result.returncode == 1
    assert "apt-get could not install the packages; run" in result.stderr
    assert "g++ chromium chromium-driver" in result.stderr
    assert sandbox.calls("python") == []


def test_packages_that_do_not_bring_the_programs_are_named(sandbox):
    sandbox.provide("c++", "chromium")
    sandbox.provide_apt_get()
    result = sandbox.run("scripts/test")
    assert result.returncode == 1
    assert "still missing after the installation: chromium-driver" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), ""),
        (("--ci",), "-m not slow or promise"),
        (("--all",), "-m slow or not slow"),
        (("--no-install", "tests/test_zoo.py", "-k", "name"), "tests/test_zoo.py -k name"),
        (("tests/test_zoo.py", "--ci", "-x"), "-m not slow or promise tests/test_zoo.py -x"),
        (("-m", "slow"), "-m slow"),
        (("--", "--help"), "--help"),
    ],
)
def test_arguments_reach_pytest_after_all_checks(sandbox, arguments, expected):
    sandbox.provide(*TOOLS)
    result = sandbox.run("scripts/test", *arguments)
    assert result.returncode == 0, result.stderr
    modules = [call.split()[1] for call in sandbox.calls("python") if call.startswith("-m ")]
    assert modules == ["pip", "pip", "pip", "pip", "ruff", "ruff", "mypy", "pytest"]
    assert sandbox.pytest_arguments() == expected


def test_the_second_run_sets_nothing_up(sandbox):
    sandbox.provide(*TOOLS)
    sandbox.run("scripts/test")
    installations = sandbox.pip_calls()
    sandbox.run("scripts/test")
    assert sandbox.pip_calls() == installations


def test_every_package_is_installed_with_its_hash_and_the_project_without_dependencies(sandbox):
    sandbox.provide(*TOOLS)
    assert sandbox.run("scripts/test").returncode == 0
    *packages, project = sandbox.pip_calls()
    assert all("--require-hashes" in call for call in packages)
    assert [call.split()[-1] for call in packages] == [
        "requirements/build.txt",
        "requirements/dev.txt",
        "requirements/torch.txt",
    ]
    assert "--no-deps --no-build-isolation" in project


@pytest.mark.parametrize(
    ("reason", "falls_back"),
    [
        ("No matching distribution found for torch==2.13.0+cpu", True),
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", False),
        ("No space left on device", False),
    ],
)
def test_only_a_missing_build_of_torch_is_replaced_by_another_one(sandbox, reason, falls_back):
    sandbox.provide(*TOOLS)
    then = f'case "$*" in *requirements/torch.txt) echo "{reason}" >&2; exit 1 ;; esac\n'
    sandbox.stand_in(sandbox.root / ".venv" / "bin" / "python", "python", then)
    result = sandbox.run("scripts/test")
    calls = sandbox.pip_calls()
    assert any(call.endswith("-c constraints.txt torch") for call in calls) == falls_back
    hashed = [call for call in calls if call.endswith("requirements/torch-default.txt")]
    assert [("--require-hashes" in call) for call in hashed] == [True] * falls_back
    assert ("only this build needs" in result.stderr) == falls_back
    assert (result.returncode == 0) == falls_back
    assert (reason in result.stderr) != falls_back


@pytest.mark.parametrize("is_locked", [True, False])
def test_a_hash_of_torch_that_does_not_match_stops_only_where_it_is_known(sandbox, is_locked):
    sandbox.provide(*TOOLS)
    reason = "THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."
    then = f'case "$*" in *requirements/torch.txt) echo "{reason}" >&2; exit 1 ;; esac\n'
    then += f'case "$*" in "-c import platform"*) exit {int(not is_locked)} ;; esac\n'
    sandbox.stand_in(sandbox.root / ".venv" / "bin" / "python", "python", then)
    result = sandbox.run("scripts/test")
    assert (result.returncode == 0) != is_locked
    assert (reason in result.stderr) == is_locked
    assert ("installing it without checking its hash" in result.stderr) != is_locked
    unchecked = [call for call in sandbox.pip_calls() if "-c constraints.txt torch" in call]
    assert len(unchecked) == (not is_locked)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--ci", "--all"), "expected one of --ci and --all, got both"),
        (("--ci", "-m", "slow"), "--ci already selects tests by marker"),
        (("-mslow", "--all"), "--all already selects tests by marker"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(sandbox, arguments, sentence):
    result = sandbox.run("scripts/test", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith(f"scripts/test: {sentence}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("script", ["test", "quickstart"])
def test_help_shows_the_usage_and_does_nothing(sandbox, script):
    result = sandbox.run(f"scripts/{script}", "--help")
    assert result.returncode == 0
    assert result.stdout.startswith(f"usage: scripts/{script}")
    assert sandbox.log.read_text() == ""


def test_quickstart_says_what_it_does_before_it_does_it(sandbox):
    result = sandbox.run("scripts/quickstart")
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("scripts/quickstart does three things:")
    assert [call.split()[2] for call in sandbox.calls("python") if "-m mtdinterp" in call] == [
        "train",
        "report",
    ]


def test_quickstart_refuses_arguments(sandbox):
    result = sandbox.run("scripts/quickstart", "--order")
    assert result.returncode == 2
    assert "expected no arguments, got --order" in result.stderr
    assert sandbox.log.read_text() == ""


def test_ci_runs_the_promises(sandbox):
    sandbox.provide(*TOOLS)
    result = sandbox.run(".ci/run")
    assert result.returncode == 0, result.stderr
    assert sandbox.pytest_arguments() == "-m not slow or promise"


def test_no_test_is_skipped_because_a_program_is_missing():
    conditional = ("skip" + "if(", "import" + "orskip")
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        assert not any(name in text for name in conditional), path
