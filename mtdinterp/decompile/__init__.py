"""From the weights of a model to a short program that predicts like it."""

from mtdinterp.decompile.decompiling import (
    Decompilation,
    TermEffect,
    check_decompilable,
    decompile,
)

__all__ = ["Decompilation", "TermEffect", "check_decompilable", "decompile"]
