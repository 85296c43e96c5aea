"""CITATION.cff, the pre-commit hooks and pyproject.toml say what is true of the project."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import mtdinterp

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOOKS = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]


@pytest.fixture(scope="module")
def citation() -> dict:
    return yaml.safe_load((ROOT / "CITATION.cff").read_text())


def test_the_citation_is_of_this_version(citation):
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == mtdinterp.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert {"message", "title", "authors"} <= set(citation)


def test_the_cited_paper_is_the_one_of_the_documentation(citation):
    (paper,) = citation["references"]
    text = " ".join((ROOT / "docs" / "paper.md").read_text().split())
    assert paper["title"] in text
    assert paper["url"] in text
    for author in paper["authors"]:
        assert f"{author['given-names']} {author['family-names']}" in text


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook["id"])
def test_hooks_run_what_is_installed(hook):
    assert hook["language"] == "system"
    program, *arguments = shlex.split(hook["entry"])
    assert program == ".venv/bin/python"
    if arguments[0] == "-m":
        command = [sys.executable, "-m", arguments[1], "--version"]
    else:
        command = [sys.executable, str(ROOT / arguments[0]), "--help"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_hooks_and_scripts_test_run_the_same_tools():
    script = (ROOT / "scripts" / "test").read_text()
    tools = set(re.findall(r"-m (ruff \w+|mypy)", script))
    entries = " ".join(hook["entry"] for hook in HOOKS)
    assert set(re.findall(r"-m (ruff \w+|mypy)", entries)) == tools


def test_every_extra_is_imported_somewhere():
    extras = PROJECT["project"]["optional-dependencies"]
    assert "cluster" not in extras
    sources = [*(ROOT / "mtdinterp").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources)
    for requirement in extras["app"]:
        package = re.split(r"[<>=\[]", requirement)[0]
        assert re.search(rf"(import|from) {package}\b", text), package


def test_no_host_is_invented():
    assert "urls" not in PROJECT["project"]
