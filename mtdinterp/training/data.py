"""Batches for training, drawn ahead in large chunks by a separate thread.

A chunk depends only on the seed and its number, so a resumed run sees exactly the sequences that an
uninterrupted run would have seen.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from mtdinterp.tasks import Sample, Task
from mtdinterp.training.recipes import Recipe

CHUNK_TOKENS = 2**20
"""Tokens per chunk: enough to make the overhead of a draw negligible."""
TRAINING_SEED = 1
"""Second part of the seed of training data, which separates it from evaluation and probe data."""


@dataclass(frozen=True)
class Batch:
    """The sequences of one training step and what the model should predict after them."""

    tokens: Int64[Tensor, "batch pos"]
    targets: Float[Tensor, "batch *pos vocab"]


def batches(
    task: Task, length: int, recipe: Recipe, seed: int, first_step: int = 0
) -> Iterator[Batch]:
    """The batches of `first_step` and of every later step of the recipe.

    Args:
        task: the task to draw sequences from.
        length: tokens per sequence.
        recipe: decides the number of steps, the batch size and the targets.
        seed: seed of the training data.
        first_step: the step to start from, counted from 0.

    Returns:
        An iterator over batches; closing it stops the thread that draws them.
    """
    steps_per_chunk = CHUNK_TOKENS // (recipe.batch_size * length)
    steps_per_chunk = max(1, min(recipe.steps, steps_per_chunk))

    def draw(chunk: int) -> list[Batch]:
        n_sequences = steps_per_chunk * recipe.batch_size
        data = task.sample(n_sequences, length, seed=[seed, TRAINING_SEED, chunk])
        tokens = data.tokens.contiguous().split(recipe.batch_size)
        targets = targets_of(task, data, recipe).split(recipe.batch_size)
        return [Batch(*pair) for pair in zip(tokens, targets, strict=True)]

    with ThreadPoolExecutor(1, thread_name_prefix="mtdinterp-data") as worker:
        step = first_step
        pending = worker.submit(draw, step // steps_per_chunk)
        while step < recipe.steps:
            drawn = pending.result()
            next_chunk = step // steps_per_chunk + 1
            if next_chunk * steps_per_chunk < recipe.steps:
                pending = worker.submit(draw, next_chunk)
            for batch in drawn[step % steps_per_chunk :]:
                if step >= recipe.steps:
                    return
                yield batch
                step += 1


def targets_of(task: Task, data: Sample, recipe: Recipe) -> Float[Tensor, "batch *pos vocab"]:
    """The targets that the recipe trains the model on.

    Args:
        task: the task that the sequences come from.
        data: the sequences.
        recipe: decides between true and sampled targets, and between the last and all positions.

    Returns:
        Distributions in float32, [batch, vocab] for the last position or [batch, pos, vocab].
    """
    last_only = recipe.supervision == "last"
    if recipe.targets == "expected":
        if last_only:
            return data.next_probs.float()
        return task.true_next_everywhere(data.tokens, data.weights).float()
    if last_only:
        return F.one_hot(data.next_tokens, task.vocab_size).float()
    following = torch.cat([data.tokens[:, 1:], data.next_tokens[:, None]], dim=1)
    return F.one_hot(following, task.vocab_size).float()
