"""Training: recipes, the loop, and runs that survive being killed."""

from mtdinterp.architectures import initialise
from mtdinterp.training.evaluation import HeldOut
from mtdinterp.training.growth import grow
from mtdinterp.training.loop import DivergedError, Trainer
from mtdinterp.training.recipes import PAPER, Recipe, fast, quick, recipe_for

__all__ = [
    "PAPER",
    "DivergedError",
    "HeldOut",
    "Recipe",
    "Trainer",
    "fast",
    "grow",
    "initialise",
    "quick",
    "recipe_for",
]
