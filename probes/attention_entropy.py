"""How widely is each head's attention spread? Its entropy at the last position.

An averaging head has the entropy of uniform attention over all positions, log T; a head that reads
the m lags of the next token has at most log m.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.metrics import mean_stderr
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Bar, Bars, Block
from mtdinterp.plugins import register_probe
from mtdinterp.readings import attention_of, probe_sequences, readable_sequences
from mtdinterp.results import Result
from mtdinterp.tasks import Task


@dataclass(frozen=True)
class HeadEntropy:
    """The entropy of one head's attention at the last position, in nats."""

    layer: int
    """The number of the layer, from 1."""
    head: int
    """The number of the head, from 1."""
    entropy: float
    """Mean over sequences."""
    stderr: float

    @property
    def n_positions(self) -> float:
        """How many positions uniform attention of this entropy would cover."""
        return math.exp(self.entropy)


@dataclass(frozen=True, kw_only=True)
class AttentionEntropy(Result):
    """The entropy of every head's attention at the last position."""

    heads: tuple[HeadEntropy, ...]
    uniform: float
    """The control: uniform attention over all positions."""

    def summary(self) -> str:
        lines = ["Entropy of attention at the last position (positions covered)"]
        for head in self.heads:
            lines.append(
                f"  layer {head.layer}, head {head.head}: {head.entropy:.3f} ± {head.stderr:.3f} "
                f"({head.n_positions:.1f})"
            )
        covered = math.exp(self.uniform)
        lines.append(f"  control, uniform attention: {self.uniform:.3f} ({covered:.0f})")
        return "\n".join(lines)

    def blocks(self) -> list[Block]:
        bars = [Bar("uniform", "control: uniform attention", self.uniform, 0.0)]
        for head in self.heads:
            name = f"layer {head.layer}, head {head.head}"
            bars.append(Bar("model", name, head.entropy, head.stderr))
        return [Bars("Entropy of attention at the last position", tuple(bars), "entropy in nats")]


@register_probe("attention_entropy", label="How widely is each head's attention spread?", rank=60)
def attention_entropy(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 256,
    seed: int = 0,
) -> AttentionEntropy:
    """The entropy of every head's attention at the last position.

    Args:
        model: any hooked model.
        task: the model's task.
        tokens: sequences [batch, pos] to probe on; drawn from the task if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.

    Returns:
        One entropy per head, with uniform attention as the control.
    """
    sequence = readable_sequences(probe_sequences(model, task, tokens, n_sequences, seed))
    layers = range(len(model.blocks))
    logs = attention_of(model, sequence, log_at_last=layers).log_at_last
    heads = []
    for layer in layers:
        for head in range(logs[layer].shape[1]):
            values = entropy(logs[layer][:, head])
            number = HeadEntropy(layer + 1, head + 1, values.mean().item(), mean_stderr(values))
            heads.append(number)
    return AttentionEntropy(
        heads=tuple(heads),
        uniform=math.log(sequence.shape[1]),
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


def entropy(log_probs: Float64[Tensor, "batch offset"]) -> Float64[Tensor, " batch"]:
    """-Σ p·log p of every row, in nats; a zero probability contributes nothing."""
    return torch.special.entr(log_probs.exp()).sum(-1)
