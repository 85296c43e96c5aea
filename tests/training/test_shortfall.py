"""When a finished run is called a failure, and when not."""

import pytest

from mtdinterp import load_checkpoint
from mtdinterp.checkpoint_files import zoo_names
from mtdinterp.criteria import CLEARLY_WORSE
from mtdinterp.training import recipe_for
from mtdinterp.training.recipes import Recipe
from mtdinterp.training.shortfall import shortfall

RECIPE = recipe_for("fast", "disentangled", 3, 1)
GOOD = {"ratio": 1.0, "branch": "direct", "gain": 0.5}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ratio": 2.9}, "its KL is 2.90 times that of one-step mirror descent"),
        ({"branch": "mirrored", "gain": -0.5}, "the mirrored branch"),
        ({"branch": "undecided", "gain": 0.0}, "branch undecided"),
    ],
)
def test_each_failure_is_named_with_what_to_try(changes, words):
    sentence = shortfall({**GOOD, **changes}, RECIPE)
    assert words in sentence
    assert sentence.endswith("; try other seeds (--restarts 3), or more --steps")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ratio": CLEARLY_WORSE},
        {"ratio": None, "branch": "undecided", "gain": 0.0},  # nothing to compare with
        {"branch": "undecided", "gain": None},  # one layer has no branch
    ],
)
def test_a_good_or_unmeasured_run_is_no_failure(changes):
    assert shortfall({**GOOD, **changes}, RECIPE) is None


def test_a_mirrored_branch_that_was_asked_for_is_no_failure():
    recipe = recipe_for("fast", "disentangled", 3, 1, initialisation="mirrored")
    assert shortfall({**GOOD, "branch": "mirrored"}, recipe) is None


def test_the_zoo_of_the_fast_recipe_has_no_failures_and_that_of_the_papers_only_failures():
    for name in zoo_names():
        loaded = load_checkpoint(name)
        recipe = Recipe.from_dict(loaded.config["recipe"])
        failed = shortfall(loaded.history[-1], recipe) is not None
        assert failed == name.endswith("-paper"), name
