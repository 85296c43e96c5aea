"""β of one step as a model's attention shows it, on any architecture."""

from jaxtyping import Int
from torch import Tensor

from mtdinterp.models.lens import LensTransformer
from mtdinterp.readings.attention import attention_of
from mtdinterp.readings.mechanism import head_betas
from mtdinterp.readings.regression import Slope
from mtdinterp.tasks.base import Task


def attention_betas(
    model: LensTransformer, task: Task, tokens: Int[Tensor, "batch pos"], layer: int = -1
) -> list[Slope]:
    """For every head of a layer, the slope of its log-attention over the lags on Γ.

    Args:
        model: any hooked model.
        task: the task that the sequences come from.
        tokens: the sequences.
        layer: from 0; -1 is the last.

    Returns:
        One slope per head; NaN if some component is read at no offset.
    """
    number = range(len(model.blocks))[layer]
    logs = attention_of(model, tokens, log_at_last=[number]).log_at_last[number]
    return head_betas(logs, task, task.evidence(tokens))
