"""A program that runs: its terms, its constants, and its source."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.decompile.constants import Constants, Means, Weights, constants_of
from mtdinterp.decompile.source import code_of, code_of_scores, names_in, source_of

TOKENS_AT_ONCE = 2**14
"""Tokens that a program predicts from at once; more would only take more memory."""
SIZES = ("LENGTH", "VOCAB", "LAGS", "FIRST", "AVERAGED", "OWN", "OTHER")
"""Constants that say where something is, and are no weights."""


@dataclass(frozen=True)
class Program:
    """A program and what it needs to run."""

    terms: tuple[str, ...]
    code: str
    constants: Constants

    @property
    def source(self) -> str:
        """The program as a file that needs NumPy only."""
        return source_of(self.code, self.constants)

    @property
    def n_constants(self) -> int:
        """How many numbers the program takes from the weights and means."""
        names = [name for name in names_in(self.code, self.constants) if name not in SIZES]
        return sum(int(np.size(self.constants[name])) for name in names)

    def predict(self, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "batch vocab"]:
        """What the program predicts after each sequence."""
        return _run(self.code, self.constants, tokens)


def program_of(weights: Weights, means: Means, terms: tuple[str, ...]) -> Program:
    """The program with some terms.

    What it leaves out of layer 3's scores is replaced by its mean, so that these scores have the
    model's mean at every offset.

    Args:
        weights: the weights of the model.
        means: means of its stream.
        terms: the names of the terms.

    Returns:
        The program.
    """
    constants = constants_of(weights, means, terms)
    bias = np.zeros_like(constants["BIAS"])
    computed = _run(code_of_scores(terms), {**constants, "BIAS": bias}, means.tokens)
    constants["BIAS"] = constants["BIAS"] - computed.mean(0).numpy()
    code = code_of(terms)
    used = names_in(code, constants)
    return Program(terms, code, {name: constants[name] for name in used})


def run_source(source: str, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "batch vocab"]:
    """Run a program that was written as a file."""
    return _run(source, {}, tokens)


def _run(
    code: str, constants: Constants, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "batch column"]:
    """Call the function of a program on sequences, some at a time."""
    names: dict[str, Any] = {"np": np, **constants}
    exec(compile(code, "<program>", "exec"), names)  # our own lines, see source.py
    predict: Callable[[Any], Any] = names["predict"]
    at_once = max(1, TOKENS_AT_ONCE // tokens.shape[1])
    parts = [torch.from_numpy(predict(some.numpy())) for some in tokens.split(at_once)]
    return torch.cat(parts)
