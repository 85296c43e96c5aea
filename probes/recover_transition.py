"""Which transition matrix did the model learn, and where can it be seen?

From layer 1's scores (where attention weighs lags by likelihood), from the output (what the last layer's average of
tokens is turned into), from the weights alone, and from behaviour alone. Attention shows π only up to a constant a
query token, so the paper's row softmax depends on an arbitrary choice; the stationary marginal fixes it.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.metrics import clip_to_distribution, row_kl
from mtdinterp.models import LensTransformer
from mtdinterp.readout import attention, gauge_fixed, predictions, read, some_to_read, token_scores
from mtdinterp.task import MTDTask

ESTIMATES = {
    "attention_softmax": "layer 1, row softmax (the paper's probe)",
    "attention": "layer 1, gauge fixed",
    "output": "output on the last layer's tokens",
    "output_circuit": "last layer's OV circuit, gauge fixed",
    "behaviour": "predictions after m equal tokens",
}
"""What each estimate is read from."""
GOOD = 0.5
"""An estimate must have less than this share of the control's divergence to be called a recovery."""


@dataclass(frozen=True, eq=False)
class TransitionRecovery:
    """Estimates of π, each row-stochastic, and how far each is from the truth."""

    attention_softmax: Float64[Tensor, "vocab vocab"]
    attention: Float64[Tensor, "vocab vocab"]
    output: Float64[Tensor, "vocab vocab"]
    output_circuit: Float64[Tensor, "vocab vocab"]
    behaviour: Float64[Tensor, "vocab vocab"]
    row_kl: dict[str, float]
    """Mean over rows a of KL(π[a] ‖ estimate[a])."""
    total_variation: dict[str, float]
    """Mean over rows of half the absolute difference."""
    control_kl: float
    """Row KL of the estimate that knows only the token marginal p: every row is p."""
    branch: str
    gain: float
    gain_r2: float
    trusted: str | None
    """The estimate to use; None where nothing is better than the control."""

    def summary(self) -> str:
        lines = ["Transition matrix: mean row KL to the true one (total variation)"]
        lines += [f"  {text:<44} {self.row_kl[name]:.4f}  ({self.total_variation[name]:.3f})"
                  for name, text in ESTIMATES.items()]
        lines.append(f"  {'control: every row the token marginal':<44} {self.control_kl:.4f}")
        lines.append(f"Branch: {self.branch} (gain {self.gain:.3g}, R² {self.gain_r2:.2f}).")
        if self.branch == "undecided":
            lines.append("Layer 1 does not weigh lags by likelihood here, so its scores say nothing about π.")
        if self.trusted is None:
            lines.append("No estimate is clearly better than the control: this model shows no transition matrix.")
        else:
            lines.append(f"Trust: {ESTIMATES[self.trusted]} ({self.row_kl[self.trusted]:.4f}).")
        return "\n".join(lines)


def recover_transition(
    model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"] | None = None, *,
    n_sequences: int = 1024, seed: int = 0,
) -> TransitionRecovery:
    """π as the model shows it, on given sequences or on `n_sequences` drawn from the task."""
    if tokens is None:
        tokens = task.sample(n_sequences, model.config.length, seed).tokens
    tokens = model.check_tokens(tokens)
    reading = read(model, task, some_to_read(tokens))
    scores = token_scores(model).mean(0)
    sign = -1 if reading.branch == "mirrored" else 1
    estimates = {
        "attention_softmax": scores.T.softmax(-1),
        "attention": gauge_fixed(scores, task.stationary, sign),
        "output": output_on_tokens(model, tokens),
        "output_circuit": output_circuit(model, task),
        "behaviour": behaviour(model, task, tokens),
    }
    rows = {name: clip_to_distribution(estimate, 0.0)[0] for name, estimate in estimates.items()}
    divergences = {name: row_kl(task.transition, estimate) for name, estimate in estimates.items()}
    control = row_kl(task.transition, task.stationary.expand_as(task.transition))
    visible = [name for name in ("attention", "output", "behaviour")
               if name != "attention" or reading.branch != "undecided"]
    best = min(visible, key=divergences.__getitem__)
    return TransitionRecovery(
        **rows, row_kl=divergences,
        total_variation={name: 0.5 * (rows[name] - task.transition).abs().sum(-1).mean().item() for name in rows},
        control_kl=control, branch=reading.branch, gain=reading.gain.value, gain_r2=reading.gain.r2,
        trusted=best if divergences[best] < GOOD * control else None,
    )


def output_on_tokens(model: LensTransformer, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "vocab vocab"]:
    """Least squares of the output on the tokens that the last layer attends to: the map that the head applies.

    The unembedding alone would not do: its token blocks share a constant vector.
    """
    vocab_size, last = model.config.vocab_size, len(model.blocks) - 1
    attended, outputs = [], []
    for part in tokens.split(len(some_to_read(tokens))):
        by_offset = attention(model, part, log_at_last=[last]).log_at_last[last].exp()
        one_hot = torch.nn.functional.one_hot(part.flip(-1), vocab_size).double()
        attended.append(torch.einsum("bo,bov->bv", by_offset, one_hot))
        outputs.append(predictions(model, part))
    # "gelsd" takes tokens that the model never attends to as well: their rows are then zero.
    return torch.linalg.lstsq(torch.cat(attended), torch.cat(outputs), driver="gelsd").solution


def output_circuit(model: LensTransformer, task: MTDTask) -> Float64[Tensor, "vocab vocab"]:
    """Token in, output out, through the last layer's OV circuit: W_E·W_V·W_O·W_U, summed over heads.

    Any constant may be added to all rows elsewhere in the model, so the stationary marginal fixes it: pᵀπ = pᵀ.
    """
    attn = cast(Any, model.blocks[-1]).attn
    with torch.no_grad():
        direct = (model.W_E @ attn.W_V @ attn.W_O @ model.W_U).sum(0).double()
    return direct + task.stationary - task.stationary @ direct


def behaviour(
    model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "vocab vocab"]:
    """What the model predicts after m equal tokens: whatever its weights over the lags, that is a row of π."""
    some = tokens[: max(8, min(256, len(tokens)))]
    rows = []
    for token in range(task.vocab_size):
        ended = some.clone()
        ended[:, -task.order :] = token
        rows.append(predictions(model, ended).mean(0))
    return torch.stack(rows)
