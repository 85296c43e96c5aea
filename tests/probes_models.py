"""Models whose answer is known, and changes to models, for the tests of probes and reports."""

import copy

import torch

from mtdinterp.construction import one_step
from mtdinterp.models import DisentangledConfig, DisentangledTransformer


def changed(model, change):
    """A copy of the model with its parameters changed."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        change(other)
    return other


def mirrored(model):
    """Negate layer 1's token scores and layer 3's read of what layer 2 averages."""

    def negate(other):
        other.attention[0].W_A *= -1
        other.attention[2].R_A[..., other.stream["L2.L1.lag"]] *= -1

    return changed(model, negate)


def follows_unlikely_lags(model):
    """Negate layer 1's token scores alone: the last layer then follows unlikely lags."""

    def negate(other):
        other.attention[0].W_A *= -1

    return changed(model, negate)


def with_a_clipped_entry(model, below=0.02):
    """Move mass between two entries of the read-out, so that the smallest becomes negative."""

    def shift(other):
        matrix = other.W_U[other.stream["L3.token"]]
        row, column = divmod(int(matrix.argmin()), matrix.shape[1])
        matrix[row, column] -= below
        matrix[row, matrix[row].argmax()] += below

    return changed(model, shift)


def embedded(single, n_layers, n_heads=1, head=1):
    """A single-head model written into one head of a larger one, whose other weights are zero.

    Other heads attend uniformly; later layers do nothing that the output reads.

    Args:
        single: a disentangled transformer with one head per layer.
        n_layers: of the larger model.
        n_heads: heads per layer of the larger model.
        head: the head that carries the single model, from 1.

    Returns:
        A model with the same outputs.
    """
    config = DisentangledConfig(
        vocab_size=single.config.vocab_size,
        length=single.config.length,
        n_layers=n_layers,
        n_heads=n_heads,
        d_rel=single.config.d_rel,
    )
    model = DisentangledTransformer(config)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)

    def columns(width):
        """Where the first columns of the single model's stream are in the larger one's."""
        found = []
        for block, part in single.stream.items():
            if part.stop <= width:
                there = model.stream[_of_head(block, n_heads, head)]
                found += range(there.start, there.stop)
        return torch.tensor(found)

    with torch.no_grad():
        for source, target in zip(single.attention, model.attention, strict=False):
            where = columns(source.d_in)
            target.W_A[head - 1][where[:, None], where] = source.W_A[0]
            target.R_A[head - 1][:, where] = source.R_A[0]
            target.R_V[head - 1] = source.R_V[0]
        model.W_U[columns(single.stream.width)] = single.W_U
    return model.eval()


def _of_head(block, n_heads, head):
    """The name of a block in which every layer is represented by one head."""
    if n_heads == 1:
        return block
    parts = block.split(".")
    return ".".join(f"{part}.H{head}" if part.startswith("L") else part for part in parts)


def two_heads(task, length, beta=12.0, lean=2.0):
    """One step in head 2 of every layer; head 1 of the last layer leans towards the lags.

    The output depends on head 2 alone. The mean over both heads also varies with the lags, so that
    a reading of the mean finds a matrix that is not π.
    """
    single = one_step(task.transition, task.order, length, beta)
    model = embedded(single, n_layers=3, n_heads=2, head=2)
    with torch.no_grad():
        model.attention[2].R_A[0][: task.order, model.stream["token"]] = lean
    return model
