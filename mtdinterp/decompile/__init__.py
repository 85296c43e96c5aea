"""From the weights of a model to a short program that predicts like it."""

from mtdinterp.decompile.decompiling import Decompilation, TermEffect, decompile

__all__ = ["Decompilation", "TermEffect", "decompile"]
