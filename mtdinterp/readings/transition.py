"""Read a transition matrix from a model's outputs: by attended tokens, and by behaviour.

Behaviour needs predictions alone, so it can be read from any function.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.criteria import AGREE, DEPENDS, ROW_KL_FLOORS, STOCHASTIC
from mtdinterp.errors import NotApplicable
from mtdinterp.metrics import to_distribution, total_variation
from mtdinterp.models.lens import LensTransformer
from mtdinterp.readings.attention import attention_of
from mtdinterp.readings.predictions import Predictor, predictions_of, readable_sequences
from mtdinterp.tasks.base import Task, require_transition

MOST_ENDED = 256
"""Sequences whose last tokens are replaced to see what the model predicts after equal ones."""


def shown_transition(
    model: Predictor, task: Task, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "vocab vocab"]:
    """The transition matrix read from the model itself, chosen without knowing the truth.

    Args:
        model: a hooked model, which is read as `recover_transition` does; or a function, whose
            predictions after m equal tokens are used.
        task: a task with one transition matrix for all lags.
        tokens: sequences to read it on.

    Returns:
        The matrix, row-stochastic.

    Raises:
        NotApplicable: if the task has no single transition matrix, or none can be read from the
            model.
    """
    require_transition(task, "The model's own π")
    estimates = {"behaviour": behaviour(model, task, tokens)}
    if isinstance(model, LensTransformer):
        estimates["output"] = output_on_tokens(model, tokens)
    rows = {name: to_distribution(raw, ROW_KL_FLOORS[0]) for name, raw in estimates.items()}
    trusted = trusted_estimate(estimates, rows)
    if trusted is None:
        problem = problem_of(estimates["behaviour"], rows["behaviour"])
        raise NotApplicable(
            f"No transition matrix can be read from the model: its predictions after m equal "
            f"tokens {problem}"
        )
    return rows[trusted]


def trusted_estimate(estimates: Mapping[str, Tensor], rows: Mapping[str, Tensor]) -> str | None:
    """The estimate to use, chosen without the truth.

    Behaviour assumes least: whatever the weights over lags, the prediction after m equal tokens is
    a row of π. The reading of the output is more precise, and is used if behaviour agrees with it.
    """
    if problem_of(estimates["behaviour"], rows["behaviour"]):
        return None
    if "output" not in rows:
        return "behaviour"
    agrees = mean_variation(rows["output"], rows["behaviour"]) <= AGREE
    if agrees and not problem_of(estimates["output"], rows["output"]):
        return "output"
    return "behaviour"


def problem_of(raw: Tensor, rows: Tensor) -> str:
    """Why an estimate cannot be a transition matrix, as a predicate; empty if it can."""
    clipped = mean_variation(raw, rows)
    if not clipped < STOCHASTIC:
        return (
            f"are not distributions (clipping moves them by a total variation of {clipped:.3f}; "
            f"allowed: below {STOCHASTIC:g})"
        )
    spread = mean_variation(rows, rows.mean(0, keepdim=True))
    if not spread > DEPENDS:
        return (
            f"hardly depend on the token (total variation from their mean {spread:.3f}; needed: "
            f"above {DEPENDS:g})"
        )
    return ""


def output_on_tokens(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "vocab vocab"]:
    """Least squares of the output on the tokens that the last layer attends to.

    The unembedding alone would not do: its token blocks share a constant vector. With several
    heads, output = Σ_h (attended tokens of head h)·M_h; after m equal tokens every head attends to
    that token, so that the matrix applied is Σ_h M_h. (A constant moved from one M_h to another
    leaves the sum as it is.)
    """
    vocab_size = model.config.vocab_size
    last = len(model.blocks) - 1
    attended = []
    outputs = []
    for part in tokens.split(len(readable_sequences(tokens))):
        by_offset = attention_of(model, part, log_at_last=[last]).log_at_last[last].exp()
        one_hot = F.one_hot(part.cpu().flip(-1), vocab_size).double()
        attended.append(torch.einsum("bho,bov->bhv", by_offset, one_hot).flatten(1))
        outputs.append(predictions_of(model, part))
    # "gelsd" also handles tokens that the model never attends to: their rows are then zero.
    found = torch.linalg.lstsq(torch.cat(attended), torch.cat(outputs), driver="gelsd").solution
    return found.view(-1, vocab_size, vocab_size).sum(0)


def behaviour(
    model: Predictor, task: Task, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "vocab vocab"]:
    """The model's predictions after m equal tokens, which are rows of π for any weights.

    Args:
        model: a hooked model, or a function from tokens to predictions.
        task: the task that the sequences come from.
        tokens: sequences whose last m tokens are replaced.

    Returns:
        The mean prediction for every token.
    """
    some = tokens[:MOST_ENDED]
    rows = []
    for token in range(task.vocab_size):
        ended = some.clone()
        ended[:, -task.n_components :] = token
        rows.append(predictions_of(model, ended).mean(0))
    return torch.stack(rows)


def mean_variation(first: Tensor, second: Tensor) -> float:
    """Total variation, mean over rows."""
    return total_variation(first, second).mean().item()
