"""β of one step as a model's attention shows it, on any architecture."""

from jaxtyping import Int
from torch import Tensor

from mtdinterp.evidence import Evidence
from mtdinterp.models.lens import LensTransformer
from mtdinterp.readings.attention import attention_of, mean_over_heads
from mtdinterp.readings.mechanism import lag_offsets
from mtdinterp.readings.regression import NO_SLOPE, Slope, fit_slope, varying
from mtdinterp.tasks.base import Task


def attention_beta(
    model: LensTransformer, task: Task, tokens: Int[Tensor, "batch pos"], layer: int = -1
) -> Slope:
    """The slope of a layer's log-attention over the lags on Γ, with the mean over heads.

    Args:
        model: any hooked model.
        task: what the sequences belong to.
        tokens: the sequences.
        layer: from 0; -1 is the last.

    Returns:
        β; NaN if some component is read at no offset.
    """
    slopes = attention_betas(model, task, tokens, layer)
    return slopes[-1]


def attention_betas(
    model: LensTransformer, task: Task, tokens: Int[Tensor, "batch pos"], layer: int = -1
) -> tuple[Slope, ...]:
    """The same for every head, and last of their mean.

    Args:
        model: any hooked model.
        task: what the sequences belong to.
        tokens: the sequences.
        layer: from 0; -1 is the last.

    Returns:
        One slope per head, then that of the mean over heads.
    """
    number = range(len(model.blocks))[layer]
    logs = attention_of(model, tokens, log_at_last=[number]).log_at_last[number]
    evidence: Evidence = task.evidence(tokens)
    offsets = lag_offsets(task)
    if offsets is None:
        return (NO_SLOPE,) * (logs.shape[1] + 1)
    average = varying(evidence.mean_responsibilities)
    heads = [fit_slope(average, varying(logs[:, head, offsets])) for head in range(logs.shape[1])]
    mean = fit_slope(average, varying(mean_over_heads(logs)[:, offsets]))
    return (*heads, mean)
