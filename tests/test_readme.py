"""The README's recipes, run one after the other as a reader would."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from mtdinterp.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RECIPES = README[README.index("## Five recipes") : README.index("## Where to read on")]
PLUGIN = ROOT / "tests" / "plugins" / "package" / "src" / "mtd_menagerie" / "peak_offset.py"
SHORTER = {"train": ["--steps", "40", "--evaluate-every", "40"], "report": ["--quick"]}
"""What is added to a command so that it takes seconds."""


def fenced(language: str) -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", RECIPES, re.MULTILINE | re.DOTALL)
    return [block for found, block in blocks if found == language]


def test_there_are_five_recipes():
    assert len(re.findall(r"^\*\*[A-Z]", RECIPES, re.MULTILINE)) == 5
    assert len(fenced("python")) + len(fenced("")) == 5


def test_the_python_recipes_run(capsys):
    names: dict = {}
    for block in fenced("python"):
        exec(block, names)
    printed = capsys.readouterr().out
    assert "The model predicts like one step of mirror descent" in printed
    assert "The model predicts like the exact posterior mean" in printed


@pytest.mark.usefixtures("clean_registries")
def test_the_commands_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copy(PLUGIN, tmp_path)
    page = (ROOT / "docs" / "own-data.md").read_text()
    rows = re.search(r"cat > pi\.csv <<END\n(.*?)END", page, re.DOTALL)
    (tmp_path / "pi.csv").write_text(rows[1])
    for block in fenced(""):
        for line in block.splitlines():
            _, command, *words = shlex.split(line)
            code = main([command, *words, *SHORTER.get(command, [])])
            assert code == 0, capsys.readouterr().err
    assert (tmp_path / "out" / "own.html").exists()
    assert "attends most to the offsets" in capsys.readouterr().out
