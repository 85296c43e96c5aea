"""Which sequences a model is probed on, and what it predicts after them.

Code that needs only predictions accepts a hooked model or any function from tokens to predictions.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_float, as_tokens, check_count
from mtdinterp.formatting import counted
from mtdinterp.models.lens import LensTransformer
from mtdinterp.tasks.base import Task

READ_CELLS = 2**22
"""Attention entries per layer that a reading may hold: 256 sequences at T = 128, 64 at 256."""
PROBABLE = (-1.0, 2.0)
"""A function whose predictions leave this range does not return probabilities. Raw outputs of a
trained model are not quite probabilities either, but they stay well inside."""

Predictor = LensTransformer | Callable[[Tensor], ArrayLike]
"""A hooked model, or a function from tokens [batch, pos] to predictions [batch, vocab]."""


@dataclass(frozen=True)
class Predictions:
    """A hooked model as a function from tokens to predictions, for probes that need no more."""

    model: LensTransformer

    def __call__(self, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "batch vocab"]:
        return predictions_of(self.model, tokens)


def hooked_or_function(model: Predictor) -> Predictor:
    """The hooked model behind `Predictions`, whose outputs need no checks; or what was given."""
    return model.model if isinstance(model, Predictions) else model


def probe_sequences(
    model: Predictor,
    task: Task,
    tokens: ArrayLike | None,
    n_sequences: int,
    seed: int,
    least: int = 8,
    length: int | None = None,
) -> Int[Tensor, "batch pos"]:
    """The sequences to probe on: those given, or drawn from the task.

    Args:
        model: the model to probe; a hooked model decides the length of drawn sequences.
        task: the task to draw sequences from.
        tokens: sequences [batch, pos], or None to draw them.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.
        least: fewer sequences than this are refused.
        length: length of drawn sequences; the hooked model's own if None.

    Returns:
        Sequences that fit the model and the task.
    """
    if isinstance(model, LensTransformer):
        _check_vocabulary(model, task)
    if tokens is None:
        count = check_count("n_sequences", n_sequences, minimum=least)
        tokens = task.sample(count, _length_of(model, length), seed).tokens
    elif length is not None:
        raise ValueError("length: the given tokens determine it; give length= or tokens=, not both")
    if isinstance(model, LensTransformer):
        checked = model.check_tokens(tokens)
    else:
        checked = as_tokens(tokens, task.vocab_size)
    if checked.shape[1] <= task.warm_up:
        raise ValueError(
            f"order: expected less than the length {checked.shape[1]}, got {task.warm_up}"
        )
    if len(checked) < least:
        raise ValueError(
            f"tokens: expected at least {counted(least, 'sequence')}, got {len(checked)}"
        )
    return checked


def _check_vocabulary(model: LensTransformer, task: Task) -> None:
    if model.config.vocab_size != task.vocab_size:
        raise ValueError(
            f"task: expected a vocabulary of {model.config.vocab_size} tokens, like the model, "
            f"got {task.vocab_size}"
        )


def _length_of(model: Predictor, length: int | None) -> int:
    """The length of drawn sequences."""
    if length is not None:
        return check_count("length", length)
    if isinstance(model, LensTransformer):
        return model.config.length
    raise ValueError(
        "length: a function does not determine the length of its sequences; give length= or tokens="
    )


def readable_sequences(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "some pos"]:
    """The first sequences, as many as whole attention patterns can be held for at once."""
    return tokens[: max(8, min(256, READ_CELLS // tokens.shape[1] ** 2))]


def predictions_of(
    model: Predictor, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "batch vocab"]:
    """The model's unclipped predictions after the last position, in batches that fit memory.

    Args:
        model: a hooked model or a function; see `Predictor`.
        tokens: the sequences.

    Returns:
        Predictions; those of a function are checked.
    """
    at_once = max(1, min(512, 2 * READ_CELLS // tokens.shape[1] ** 2))
    with torch.no_grad():
        if isinstance(model, LensTransformer):
            parts = [model(part, last_only=True).cpu() for part in tokens.split(at_once)]
            return model.to_probabilities(torch.cat(parts).double())
        return torch.cat([_checked(model(part), part) for part in tokens.split(at_once)])


def _checked(given: ArrayLike, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "batch vocab"]:
    """What a function predicted, or an error that says what it should have returned."""
    predictions = as_float("model", given).cpu()
    if predictions.ndim != 2 or len(predictions) != len(tokens):
        raise ValueError(
            f"model: expected predictions after the last position, [batch, vocab] with a batch of "
            f"{len(tokens)}, got shape {tuple(predictions.shape)}"
        )
    low, high = PROBABLE
    if not low <= predictions.min() <= predictions.max() <= high:
        raise ValueError(
            f"model: expected probabilities, got values in {predictions.min():.3g}.."
            f"{predictions.max():.3g}; if these are logits, apply a softmax"
        )
    return predictions
