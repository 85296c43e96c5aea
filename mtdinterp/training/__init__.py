"""Training: recipes, starts, the loop, and runs that survive being killed."""

from mtdinterp.training.evaluation import HeldOut
from mtdinterp.training.initialise import INITIALISATIONS, initialise
from mtdinterp.training.loop import DivergedError, Trainer
from mtdinterp.training.recipes import PAPER, Recipe, fast, recipe_for

__all__ = [
    "INITIALISATIONS",
    "PAPER",
    "DivergedError",
    "HeldOut",
    "Recipe",
    "Trainer",
    "fast",
    "initialise",
    "recipe_for",
]
