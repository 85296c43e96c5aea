"""`mtdinterp reproduce`: names, files, JSON alone on standard output."""

import json

import pytest

from mtdinterp.cli import main
from mtdinterp.reproduce.registry import FIGURES, chosen, read_figures


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


def test_figures_are_in_the_order_of_the_paper():
    assert list(FIGURES) == [
        "attention",
        "kl-lengths",
        "transition",
        "five-layers",
        "regularised-path",
        "attention-grids",
        "dimensions",
        "parameters",
        "first-order",
        "learning-rate",
        "gradient",
        "estimators",
    ]


def test_a_figure_is_found_by_adding_a_file(tmp_path):
    source = """
from nothing_that_exists import register_figure

@register_figure("late", summary="drawn last", rank=2)
def draw_late(context): ...

@register_figure("early", summary="drawn first", rank=1.5)
def draw_early(context): ...

def helper(): ...
"""
    (tmp_path / "new.py").write_text(source)
    (tmp_path / "other.py").write_text("x = 1")
    found = read_figures(tmp_path)
    assert list(found) == ["early", "late"]
    assert found["late"] == ("new", "draw_late", "drawn last", 2)


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
