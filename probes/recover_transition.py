"""Which transition matrix did the model learn, and where can it be seen?

From layer 1's scores (where attention weighs lags by likelihood), from the output (what the last
layer's average of tokens is turned into), from the weights alone, and from behaviour alone.
Attention shows π only up to a constant a query token, so the paper's row softmax depends on an
arbitrary choice; the stationary marginal fixes it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.metrics import ROW_CLIP, clip_to_distribution, row_kl, total_variation
from mtdinterp.models import LensTransformer
from mtdinterp.readout import (
    LEAST_TOKEN_GAIN,
    attention,
    gauge_fixed,
    predictions,
    read,
    sequences,
    some_to_read,
    token_gains,
    token_scores,
)
from mtdinterp.task import MTDTask

ESTIMATES = {
    "attention_softmax": "layer 1, row softmax (the paper's probe)",
    "attention": "layer 1, gauge fixed",
    "output": "output on the last layer's tokens",
    "output_circuit": "last layer's OV circuit, gauge fixed",
    "behaviour": "predictions after m equal tokens",
}
"""What each estimate is read from."""
STOCHASTIC, AGREE, DEPENDS = 0.1, 0.1, 0.1
"""An estimate is trusted without looking at the truth: its rows are nearly distributions before
they are clipped, it agrees with the other reading of the output, and its rows differ from each
other; all in mean total variation."""


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
    """Mean over rows."""
    control_kl: float
    """Row KL of the estimate that knows only the token marginal p: every row is p."""
    branch: str
    gain: float
    gain_r2: float
    token_gains: Float64[Tensor, " vocab"]
    """The gain of layer 1 alone, for every query token: a model may be direct for some and mirrored
    for others."""
    trusted: str | None
    """The estimate to use, chosen without the truth; None where the model shows no transition
    matrix."""

    @property
    def mixed(self) -> str:
        """A sentence where query tokens are on different branches, and nothing where they are
        not."""
        if not _is_mixed(self.token_gains):
            return ""
        direct, mirrored = (
            [str(token) for token, gain in enumerate(self.token_gains.tolist()) if sign * gain > 0]
            for sign in (1, -1)
        )
        return (
            f"Layer 1 is direct for the query tokens {', '.join(direct)} and mirrored for "
            f"{', '.join(mirrored)}: "
            "its scores are read with the sign of each."
        )

    def summary(self) -> str:
        lines = ["Transition matrix: mean row KL to the true one (total variation)"]
        lines += [
            f"  {text:<44} {self.row_kl[name]:.4f}  ({self.total_variation[name]:.3f})"
            for name, text in ESTIMATES.items()
        ]
        lines.append(f"  {'control: every row the token marginal':<44} {self.control_kl:.4f}")
        lines.append(f"Branch: {self.branch} (gain {self.gain:.3g}, R² {self.gain_r2:.2f}).")
        lines.append(
            "By query token: "
            + ", ".join(f"{gain:+.2f}" for gain in self.token_gains.tolist())
            + "."
        )
        if self.mixed:
            lines.append(self.mixed)
        elif self.branch == "undecided":
            lines.append(
                "Layer 1 does not weigh lags by likelihood here, so its scores say nothing about π."
            )
        if self.trusted is None:
            lines.append(
                "The output's readings are no distributions, disagree or do not depend on the "
                "token: this "
                "model shows no transition matrix."
            )
        else:
            lines.append(
                f"Trust: {ESTIMATES[self.trusted]} (row KL {self.row_kl[self.trusted]:.4f})."
            )
        return "\n".join(lines)


def recover_transition(
    model: LensTransformer,
    task: MTDTask,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 1024,
    seed: int = 0,
) -> TransitionRecovery:
    """π as the model shows it, on given sequences or on `n_sequences` drawn from the task.

    With several heads a layer, scores and attention are means over them.
    """
    sequence = sequences(model, task, tokens, n_sequences, seed)
    some = some_to_read(sequence)
    reading, gains = read(model, task, some), token_gains(model, task, some)
    scores = token_scores(model).mean(0)
    estimates = {
        "attention_softmax": scores.T.softmax(-1),
        "attention": gauge_fixed(scores, task.stationary, _signs(reading.branch, gains)),
        "output": output_on_tokens(model, sequence),
        "output_circuit": output_circuit(model, task),
        "behaviour": behaviour(model, task, sequence),
    }
    rows = {
        name: clip_to_distribution(estimate, ROW_CLIP)[0] for name, estimate in estimates.items()
    }
    return TransitionRecovery(
        **rows,
        row_kl={name: row_kl(task.transition, estimate) for name, estimate in rows.items()},
        total_variation={
            name: _variation(estimate, task.transition) for name, estimate in rows.items()
        },
        control_kl=row_kl(task.transition, task.stationary.expand_as(task.transition)),
        branch=reading.branch,
        gain=reading.gain.value,
        gain_r2=reading.gain.r2,
        token_gains=gains,
        trusted=_trusted(estimates, rows),
    )


def _is_mixed(gains: Float64[Tensor, " vocab"]) -> bool:
    """Every query token has a branch, and not all of them the same."""
    return bool((gains.abs() >= LEAST_TOKEN_GAIN).all()) and len(gains.sign().unique()) > 1


def _signs(branch: str, gains: Float64[Tensor, " vocab"]) -> int | Float64[Tensor, " vocab"]:
    return gains.sign() if _is_mixed(gains) else -1 if branch == "mirrored" else 1


def _trusted(estimates: dict[str, Tensor], rows: dict[str, Tensor]) -> str | None:
    """The output's two readings stand on different ground: where they agree on a stochastic matrix,
    the first is it."""
    usable = [
        name
        for name in ("output", "behaviour")
        if _variation(estimates[name], rows[name]) < STOCHASTIC
        and _variation(rows[name], rows[name].mean(0, keepdim=True)) > DEPENDS
    ]
    if len(usable) < 2 or _variation(rows["output"], rows["behaviour"]) > AGREE:
        return None
    return usable[0]


def _variation(first: Tensor, second: Tensor) -> float:
    """Mean over rows."""
    return total_variation(first, second).mean().item()


def output_on_tokens(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "vocab vocab"]:
    """Least squares of the output on the tokens that the last layer attends to: the map that the
    head applies.

    The unembedding alone would not do: its token blocks share a constant vector.
    """
    vocab_size, last = model.config.vocab_size, len(model.blocks) - 1
    attended, outputs = [], []
    for part in tokens.split(len(some_to_read(tokens))):
        by_offset = attention(model, part, log_at_last=[last]).log_at_last[last].exp()
        one_hot = F.one_hot(part.flip(-1), vocab_size).double()
        attended.append(torch.einsum("bo,bov->bv", by_offset, one_hot))
        outputs.append(predictions(model, part))
    # "gelsd" takes tokens that the model never attends to as well: their rows are then zero.
    return torch.linalg.lstsq(torch.cat(attended), torch.cat(outputs), driver="gelsd").solution


def output_circuit(model: LensTransformer, task: MTDTask) -> Float64[Tensor, "vocab vocab"]:
    """Token in, output out, through the last layer's OV circuit: W_E·W_V·W_O·W_U, summed over
    heads.

    Any constant may be added to all rows elsewhere in the model, so the stationary marginal fixes
    it: pᵀπ = pᵀ.
    """
    attn = model.layers[-1].attn
    with torch.no_grad():
        direct = (model.W_E @ attn.W_V @ attn.W_O @ model.W_U).sum(0).double()
    return direct + task.stationary - task.stationary @ direct


def behaviour(
    model: LensTransformer, task: MTDTask, tokens: Int[Tensor, "batch pos"]
) -> Float64[Tensor, "vocab vocab"]:
    """What the model predicts after m equal tokens: whatever its weights over the lags, that is a
    row of π."""
    some = tokens[:256]
    rows = []
    for token in range(task.vocab_size):
        ended = some.clone()
        ended[:, -task.order :] = token
        rows.append(predictions(model, ended).mean(0))
    return torch.stack(rows)
