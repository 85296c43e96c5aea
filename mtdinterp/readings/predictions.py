"""Which sequences a model is probed on, and what it predicts after them."""

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, check_count
from mtdinterp.models.lens import LensTransformer
from mtdinterp.tasks.base import Task

READ_CELLS = 2**22
"""Attention entries per layer that a reading may hold: 256 sequences at T = 128, 64 at 256."""


def probe_sequences(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None,
    n_sequences: int,
    seed: int,
    least: int = 8,
) -> Int[Tensor, "batch pos"]:
    """The sequences to probe on: those given, or drawn from the task.

    Args:
        model: the model to probe; it decides the length of drawn sequences.
        task: the task to draw sequences from.
        tokens: sequences [batch, pos], or None to draw them.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.
        least: fewer sequences than this are refused.

    Returns:
        Sequences that fit the model and the task.
    """
    if model.config.vocab_size != task.vocab_size:
        raise ValueError(
            f"task: it has {task.vocab_size} tokens and the model {model.config.vocab_size}"
        )
    if tokens is None:
        count = check_count("n_sequences", n_sequences, minimum=least)
        tokens = task.sample(count, model.config.length, seed).tokens
    checked = model.check_tokens(tokens)
    if checked.shape[1] <= task.warm_up:
        raise ValueError(
            f"order: expected less than the length {checked.shape[1]}, got {task.warm_up}"
        )
    if len(checked) < least:
        raise ValueError(f"tokens: expected at least {least} sequences, got {len(checked)}")
    return checked


def readable_sequences(tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "some pos"]:
    """The first sequences, as many as whole attention patterns can be held for at once."""
    return tokens[: max(8, min(256, READ_CELLS // tokens.shape[1] ** 2))]


def predictions_of(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "batch vocab"]:
    """The model's unclipped predictions after the last position, in batches that fit memory."""
    at_once = max(1, min(512, 2 * READ_CELLS // tokens.shape[1] ** 2))
    with torch.no_grad():
        parts = [model(part, last_only=True).cpu() for part in tokens.split(at_once)]
    return model.to_probabilities(torch.cat(parts).double())
