"""Batches for training: drawn ahead in large chunks on a thread of their own, and a function of
seed and step alone.

Because a chunk depends on nothing but the seed and its number, a run that was stopped goes on with
the very sequences it would have seen.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from mtdinterp.task import MTDTask, Sample
from mtdinterp.training.recipes import Recipe

CHUNK_TOKENS = 2**20
TRAINING_SEED = 1
"""Second word of the seed of training data, which keeps it apart from what is drawn to look at or
to score."""


@dataclass(frozen=True)
class Batch:
    tokens: Int64[Tensor, "batch pos"]
    targets: Float[Tensor, "batch *pos vocab"]


def batches(
    task: MTDTask, length: int, recipe: Recipe, seed: int, first_step: int = 0
) -> Iterator[Batch]:
    """The batch of `first_step`, of the next one, and so on to the end of the recipe."""
    each = max(1, min(recipe.steps, CHUNK_TOKENS // (recipe.batch_size * length)))

    def draw(chunk: int) -> list[Batch]:
        data = task.sample(each * recipe.batch_size, length, seed=[seed, TRAINING_SEED, chunk])
        tokens, targets = data.tokens.contiguous(), targets_of(task, data, recipe)
        return [
            Batch(*pair)
            for pair in zip(
                tokens.split(recipe.batch_size), targets.split(recipe.batch_size), strict=True
            )
        ]

    with ThreadPoolExecutor(1, thread_name_prefix="mtdinterp-data") as worker:
        pending = worker.submit(draw, first_step // each)
        step = first_step
        while step < recipe.steps:
            chunk = pending.result()
            if (step // each + 1) * each < recipe.steps:
                pending = worker.submit(draw, step // each + 1)
            for batch in chunk[step % each :]:
                if step >= recipe.steps:
                    return
                yield batch
                step += 1


def targets_of(task: MTDTask, data: Sample, recipe: Recipe) -> Float[Tensor, "batch *pos vocab"]:
    """What the recipe asks the model to predict, in float32: at the last position, or at every
    one."""
    last = recipe.supervision == "last"
    if recipe.targets == "expected":
        return (data.next_probs if last else conditional_probs(task, data)).float()
    following = torch.cat([data.tokens[:, 1:], data.next_tokens[:, None]], dim=1)
    return F.one_hot(following[:, -1] if last else following, task.vocab_size).float()


def conditional_probs(task: MTDTask, data: Sample) -> Float[Tensor, "batch pos vocab"]:
    """The true distribution of the token after every position: uniform while fewer than `order`
    have been seen."""
    batch_size, length = data.tokens.shape
    probs = torch.full(
        (batch_size, length, task.vocab_size), 1 / task.vocab_size, dtype=torch.float64
    )
    probs[:, task.order - 1 :] = 0
    for lag in range(1, task.order + 1):
        seen = data.tokens[:, task.order - lag : length - lag + 1]
        probs[:, task.order - 1 :] += data.weights[:, lag - 1, None, None] * task.transition[seen]
    return probs
