"""Whether a task keeps the promises of `Task`, found out before anything is computed with it."""

import json

import torch
from torch import Tensor

from mtdinterp.checks import ROW_SUM_TOLERANCE
from mtdinterp.tasks.base import Task

N_SEQUENCES = 4
SEED = 0


def check_task(task: Task, length: int) -> None:
    """Refuse a task whose probabilities or whose description are wrong, in one sentence.

    Args:
        task: the task, such as one of a plugin.
        length: tokens per sequence that it will be used with.

    Raises:
        ValueError: if a few sequences or the way through JSON show a mistake.
    """
    _check_description(task)
    data = task.sample(N_SEQUENCES, length, SEED)
    size = (N_SEQUENCES, task.vocab_size)
    _check_rows("sample().next_probs", data.next_probs, size)
    _check_shape("sample().tokens", data.tokens, (N_SEQUENCES, length))
    everywhere = task.true_next_everywhere(data.tokens, data.weights)
    _check_rows("true_next_everywhere()", everywhere, (N_SEQUENCES, length, task.vocab_size))
    _check_rows("true_next()", task.true_next(data.tokens, data.weights), size)
    evidence = task.evidence(data.tokens)
    _check_rows("evidence().rows", evidence.rows, (N_SEQUENCES, task.n_components, task.vocab_size))
    steps = (N_SEQUENCES, length - task.warm_up, task.n_components)
    _check_shape("evidence().likelihoods", evidence.likelihoods, steps)
    if not ((evidence.likelihoods >= 0) & (evidence.likelihoods <= 1 + ROW_SUM_TOLERANCE)).all():
        raise ValueError("evidence().likelihoods: expected probabilities between 0 and 1")


def _check_description(task: Task) -> None:
    """What a checkpoint stores must give the same task again."""
    values = json.loads(json.dumps(task.to_dict()))
    kind = values.pop("kind", None)
    if kind != task.name:
        raise ValueError(f"to_dict(): expected the kind {task.name!r}, got {kind!r}")
    if type(task).from_dict(values) != task:
        raise ValueError("from_dict(to_dict()) gives another task")


def _check_rows(what: str, rows: Tensor, shape: tuple[int, ...]) -> None:
    _check_shape(what, rows, shape)
    is_distribution = (rows >= 0).all() and torch.allclose(
        rows.sum(-1), torch.ones(shape[:-1], dtype=rows.dtype), atol=ROW_SUM_TOLERANCE
    )
    if not is_distribution:
        raise ValueError(f"{what}: expected probabilities that sum to 1")


def _check_shape(what: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(f"{what}: expected shape {list(shape)}, got {list(value.shape)}")
