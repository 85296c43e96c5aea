"""`mtdinterp reproduce`: names, files, JSON alone on standard output."""

import json

import pytest

from mtdinterp.cli import main
from mtdinterp.reproduce.registry import FIGURES, chosen


def test_figures_are_made_in_the_papers_order_and_once(tmp_path, capsys):
    assert (
        main(["reproduce", "parameters", "dimensions", "dimensions", "-o", str(tmp_path), "--json"])
        == 0
    )
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert list(result) == ["dimensions", "parameters"]
    assert result["dimensions"]["numbers"]["m4"] == [5, 14, 32, 68]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{suffix}" for name in result for suffix in (".png", ".pdf", ".csv")
    }
    assert "parameters …" in printed.err


def test_words_have_claim_and_measurement(tmp_path, capsys):
    assert main(["reproduce", "dimensions", "-o", str(tmp_path)]) == 0
    words = capsys.readouterr().out
    assert "8q + 6m" in words
    assert "8q + 7m" in words
    assert str(tmp_path / "dimensions.png") in words


def test_all_means_every_figure():
    assert chosen(["all"]) == chosen(["gradient", "all"]) == list(FIGURES)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("atention", "attention"),
        ("five-layer", "five-layers"),
        ("al", "all"),
        ("learning_rate", "learning-rate"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, suggestion, capsys):
    assert main(["reproduce", name]) == 2
    assert capsys.readouterr().err == (
        f"mtdinterp reproduce: no figure is called {name!r}; did you mean {suggestion}?\n"
    )


def test_a_name_like_no_other_lists_them_all(capsys):
    assert main(["reproduce", "qqq"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in FIGURES)
