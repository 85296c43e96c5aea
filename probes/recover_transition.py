"""Which transition matrix did the model learn, and where can it be seen?

π can be read from layer 1's scores (if attention weighs lags by likelihood), from the output (how
it maps the last layer's average of tokens), from the weights alone, and from behaviour alone.
Attention shows π only up to a constant per query token, so the paper's row softmax depends on an
arbitrary choice; the stationary marginal fixes it.

Whether π is recovered is judged by total variation. The row KL is reported too, at two floors of
clipping: if an entry of an estimate is clipped, the floor determines its row KL.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import (
    AGREE,
    ALIKE,
    CLEAR_R2,
    DEPENDS,
    LEAST_GAIN,
    LEAST_TOKEN_GAIN,
    RECOVERED,
    ROW_KL_FLOORS,
)
from mtdinterp.formatting import fixed, r2_text
from mtdinterp.metrics import row_kl, to_distribution
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Matrices, Matrix, Table, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import (
    attention_of,
    gauge_fixed,
    probe_sequences,
    readable_sequences,
    token_scores,
)
from mtdinterp.readings.mechanism import HeadPath, head_paths, token_gains
from mtdinterp.readings.transition import (
    MOST_ENDED,
    behaviour,
    mean_variation,
    output_on_tokens,
    problem_of,
    trusted_estimate,
)
from mtdinterp.results import Result
from mtdinterp.tasks import HasTransition, Task, require_transition

ESTIMATES = {
    "attention_softmax": "layer 1, row softmax (the paper's probe)",
    "attention": "layer 1, gauge fixed",
    "output": "output on the last layer's tokens",
    "output_circuit": "last layer's OV circuit, gauge fixed",
    "behaviour": "predictions after m equal tokens",
}
"""What each estimate is read from."""
FLOOR, COARSE_FLOOR = ROW_KL_FLOORS


@dataclass(frozen=True, eq=False)
class HeadTransition:
    """π as read from one head of layer 1, with the layer-2 head that carries it best."""

    path: HeadPath
    estimate: Float64[Tensor, "vocab vocab"]
    """Gauge fixed, read with the sign of its branch."""
    row_kl: float
    total_variation: float
    token_gains: Float64[Tensor, " vocab"]
    """For every query token, the slope of the head's attention over the lags on γ."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TransitionRecovery(Result):
    """Estimates of π, each row-stochastic, and how far each is from the truth."""

    truth: Float64[Tensor, "vocab vocab"]
    """π itself."""
    attention_softmax: Float64[Tensor, "vocab vocab"]
    attention: Float64[Tensor, "vocab vocab"]
    output: Float64[Tensor, "vocab vocab"]
    output_circuit: Float64[Tensor, "vocab vocab"]
    behaviour: Float64[Tensor, "vocab vocab"]
    row_kl: dict[str, float]
    """Mean over rows a of KL(π[a] ‖ estimate[a]), entries clipped at 1e-9."""
    row_kl_coarse: dict[str, float]
    """The same with entries clipped at 1e-3: where the two differ, the floor decides."""
    total_variation: dict[str, float]
    """Mean over rows; needs no floor, and decides whether π is recovered."""
    control_kl: float
    """Row KL of the estimate that knows only the token marginal p: every row is p."""
    control_variation: float
    """Total variation of the same."""
    branch: str
    gain: float
    gain_r2: float
    token_gains: Float64[Tensor, " vocab"]
    """The gain of layer 1 for every query token: a model may be direct for some and mirrored for
    others."""
    heads: tuple[HeadTransition, ...]
    """Every head of layer 1; the estimates named attention are those of the carrying head."""
    carrier: int
    """The head of layer 1 that carries most, from 1."""
    trusted: str | None
    """The estimate to use, chosen without the truth; None if no matrix can be read from the model.
    """
    untrusted: str
    """What is wrong with the predictions after m equal tokens; empty if nothing is."""
    n_read: int
    """Sequences whose attention was read, for the gain and the branch."""

    @property
    def mixed(self) -> str:
        """A sentence if query tokens are on different branches; empty otherwise."""
        if not _is_mixed(self.token_gains):
            return ""
        gains = self.token_gains.tolist()
        direct = ", ".join(str(token) for token, gain in enumerate(gains) if gain > 0)
        mirrored = ", ".join(str(token) for token, gain in enumerate(gains) if gain < 0)
        return (
            f"Layer 1 is direct for the query tokens {direct} and mirrored for {mirrored}; its "
            "scores are read with the sign of each query token."
        )

    def recovered(self, name: str) -> bool:
        """Whether an estimate is much nearer to π than the token marginal."""
        return self.total_variation[name] < RECOVERED * self.control_variation

    @property
    def shows_another_matrix(self) -> bool:
        """Whether a matrix can be read from the model, but no reading is near the task's."""
        if self.trusted is None:
            return False
        names = ["output", "behaviour"]
        if self.branch != "undecided":
            names.append("attention")
        return not any(self.recovered(name) for name in names)

    def trust_sentence(self) -> str:
        """Which estimate to use, and why."""
        if self.trusted is None:
            sentence = (
                f"No reading is used as the model's transition matrix, because the predictions "
                f"after m equal tokens {self.untrusted}."
            )
            if not self.recovered("behaviour"):
                return sentence
            own = mean_variation(self.truth, self.truth.mean(0, keepdim=True))
            distance = self.total_variation["behaviour"]
            # If the rows of π differ, the predictions fail for another reason: they were clipped.
            if own > DEPENDS:
                return f"{sentence} Clipped, they have a total variation of {distance:.3f} from π."
            return (
                f"{sentence} They are close to π nonetheless (total variation {distance:.3f}): "
                f"its own rows differ from their mean by only {own:.3f}."
            )
        reading = ESTIMATES[self.trusted]
        numbers = (
            f"total variation {self.total_variation[self.trusted]:.3f}, "
            f"row KL {self.row_kl[self.trusted]:.4f}"
        )
        if self.trusted == "output":
            return (
                f"Use: {reading} ({numbers}); predictions after m equal tokens are within "
                f"{AGREE:g} of it."
            )
        return (
            f"Use: {reading} ({numbers}). The reading from the tokens that the last layer attends "
            f"to is not within {AGREE:g} of it, or is not a matrix of distributions, so the output "
            "is not a linear map of those tokens alone."
        )

    def head_sentence(self) -> str:
        """Which head of layer 1 carries π; empty if there is only one."""
        if len(self.heads) == 1:
            return ""
        path = self.heads[self.carrier - 1].path
        if path.branch == "undecided":
            return (
                f"No head of layer 1 follows Γ with an R² of at least {CLEAR_R2:g} (best: "
                f"{r2_text(path.gain.r2)}); layer 1 is read from head {path.first}."
            )
        return (
            f"Of all pairs of heads, head {path.first} of layer 1 averaged by head {path.second} "
            f"of layer 2 follows Γ best (gain {path.gain.value:.3g}, R² {path.gain.r2:.2f}), so "
            f"layer 1 is read from head {path.first}."
        )

    def summary(self) -> str:
        lines = ["Transition matrix: total variation to the true one; row KL (at floor 1e-3)"]
        for name, text in ESTIMATES.items():
            lines.append(
                f"  {text:<44} {self.total_variation[name]:.3f}  {self.row_kl[name]:.4f} "
                f"({self.row_kl_coarse[name]:.4f})"
            )
        control = "control: every row is the token marginal"
        lines.append(f"  {control:<44} {self.control_variation:.3f}  {self.control_kl:.4f}")
        lines.append(f"Branch: {self.branch} (gain {self.gain:.3g}, R² {self.gain_r2:.2f}).")
        gains = ", ".join(f"{gain:+.2f}" for gain in self.token_gains.tolist())
        lines.append(f"Gain by query token: {gains}.")
        if len(self.heads) > 1:
            for head in self.heads:
                path = head.path
                lines.append(
                    f"  layer 1, head {path.first} (through head {path.second} of layer 2): gain "
                    f"{path.gain.value:.3g}, R² {path.gain.r2:.2f}, total variation "
                    f"{head.total_variation:.3f}"
                )
            lines.append(self.head_sentence())
        if self.mixed:
            lines.append(self.mixed)
        elif self.branch == "undecided":
            lines.append(
                f"The branch is undecided because R² is below {CLEAR_R2:g}, so layer 1's scores "
                "say nothing about π."
            )
        lines.append(self.trust_sentence())
        return "\n".join(lines)

    def origin_note(self) -> str:
        n_ended = min(self.n_sequences, MOST_ENDED)
        if self.n_read == n_ended == self.n_sequences:
            return ""
        return f"attention on {self.n_read} of them, behaviour on {n_ended}"

    def claims(self) -> tuple[Claim, ...]:
        return (
            self._branch_claim(),
            self._matrix_claim("attention", "Layer 1's scores are"),
            self._matrix_claim("output", "The map from attended tokens to the output is"),
            self._matrix_claim("behaviour", "Predictions after m equal tokens are"),
        )

    def _head_note(self, name: str) -> str:
        """Which heads a number comes from, appended to its description; empty for one head."""
        if len(self.heads) == 1:
            return ""
        if name == "gain":
            path = self.heads[self.carrier - 1].path
            return f", head {path.first} of layer 1 through head {path.second} of layer 2"
        return {"attention": f", head {self.carrier}", "output": ", all heads together"}.get(
            name, ""
        )

    def _branch_claim(self) -> Claim:
        return Claim(
            claim="What layers 1 and 2 average follows Γ, directly or mirrored",
            status=decide(self.branch != "undecided"),
            evidence=f"Gain: slope of that average on Γ{self._head_note('gain')}",
            number=f"{fixed(self.gain, 3)} (R² {r2_text(self.gain_r2)})",
            threshold=f"R² ≥ {CLEAR_R2:g}; a gain below {LEAST_GAIN:g} counts as none",
            control="R² 0 if there is no relation",
            n_sequences=self.n_read,
            seed=self.seed,
        )

    def _matrix_claim(self, name: str, subject: str) -> Claim:
        limit = RECOVERED * self.control_variation
        counts = {"attention": self.n_read, "behaviour": min(self.n_sequences, MOST_ENDED)}
        status = decide(self.recovered(name))
        reason = ""
        if not self.control_variation > ALIKE:
            status = Status.UNDECIDABLE
            reason = "the rows of π are alike, so the token marginal is π itself"
        elif name == "attention" and self.branch == "undecided":
            status = Status.UNDECIDABLE
            reason = "layer 1's branch is undecided, so the sign of its scores is unknown"
        return Claim(
            claim=f"{subject} less than {RECOVERED:.0%} as far from π as the token marginal",
            status=status,
            evidence=f"Total variation to π, mean over rows{self._head_note(name)}",
            number=f"{self.total_variation[name]:.3f} (row KL {self.row_kl[name]:.4f})",
            threshold=f"< {limit:.3f}, {RECOVERED:.0%} of the control",
            control=f"token marginal {self.control_variation:.3f}",
            n_sequences=counts.get(name, self.n_sequences),
            seed=self.seed,
            reason=reason,
        )

    def blocks(self) -> list[Block]:
        shown = {"attention_softmax": "the paper's probe", "attention": "layer 1, gauge fixed"}
        shown |= {"output": "the output", "behaviour": "behaviour"}
        panels = [Matrix("the truth", "π", self.truth)]
        for name, title in shown.items():
            note = f"total variation {self.total_variation[name]:.3f}"
            panels.append(Matrix(title, note, getattr(self, name)))
        rows = []
        for name, text in ESTIMATES.items():
            rows.append(
                (
                    text,
                    f"{self.total_variation[name]:.3f}",
                    f"{self.row_kl[name]:.4f}",
                    f"{self.row_kl_coarse[name]:.4f}",
                )
            )
        control = ("control: the token marginal", f"{self.control_variation:.3f}")
        rows.append((*control, f"{self.control_kl:.4f}", ""))
        title = "π and its recoveries, from token (down) to token (across)"
        header = ("read from", "total variation", "row KL", "row KL, entries ≥ 1e-3")
        blocks: list[Block] = [
            Matrices(title, tuple(panels), self.truth.max().item()),
            Table(header, tuple(rows)),
        ]
        if len(self.heads) > 1:
            blocks.append(self._head_table())
        sentences = [self.head_sentence(), self.mixed, self.trust_sentence()]
        blocks.append(Text(tuple(text for text in sentences if text)))
        return blocks

    def _head_table(self) -> Table:
        header = ("layer 1", "through layer 2", "gain", "R²", "branch", "total variation of π")
        rows = []
        for head in self.heads:
            path = head.path
            rows.append(
                (
                    f"head {path.first}",
                    f"head {path.second}",
                    f"{path.gain.value:.3f}",
                    f"{path.gain.r2:.2f}",
                    path.branch,
                    f"{head.total_variation:.3f}",
                )
            )
        return Table(header, tuple(rows))


@register_probe(
    "recover_transition",
    label="Which transition matrix did the model learn, and where is it visible?",
    rank=30,
)
def recover_transition(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 1024,
    seed: int = 0,
) -> TransitionRecovery:
    """Read π from the model.

    Args:
        model: any hooked model.
        task: a task with one transition matrix for all lags.
        tokens: sequences [batch, pos] to probe on; drawn from the task if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.

    Returns:
        Five estimates of π; those of layer 1 are read from its carrying head.

    Raises:
        NotApplicable: if the task has no single transition matrix.
    """
    known = require_transition(task, "Recovering π")
    sequence = probe_sequences(model, task, tokens, n_sequences, seed)
    watched = readable_sequences(sequence)
    heads = _read_heads(model, task, known, watched)
    carrier = max(heads, key=lambda head: _strength(head.path))
    scores = token_scores(model)[carrier.path.first - 1]
    estimates = {
        "attention_softmax": scores.T.softmax(-1),
        "attention": carrier.estimate,
        "output": output_on_tokens(model, sequence),
        "output_circuit": output_circuit(model, known),
        "behaviour": behaviour(model, task, sequence),
    }
    rows = {name: to_distribution(raw, FLOOR) for name, raw in estimates.items()}
    truth = known.transition
    marginal = known.stationary.expand_as(truth)
    coarse = {name: row_kl(truth, estimate, COARSE_FLOOR) for name, estimate in rows.items()}
    return TransitionRecovery(
        truth=truth,
        **rows,
        row_kl={name: row_kl(truth, estimate, FLOOR) for name, estimate in rows.items()},
        row_kl_coarse=coarse,
        total_variation={name: mean_variation(estimate, truth) for name, estimate in rows.items()},
        control_kl=row_kl(truth, marginal, FLOOR),
        control_variation=mean_variation(marginal, truth),
        branch=carrier.path.branch,
        gain=carrier.path.gain.value,
        gain_r2=carrier.path.gain.r2,
        token_gains=carrier.token_gains,
        heads=tuple(heads),
        carrier=carrier.path.first,
        trusted=trusted_estimate(estimates, rows),
        untrusted=problem_of(estimates["behaviour"], rows["behaviour"]),
        n_read=len(watched),
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


def _strength(path: HeadPath) -> float:
    return path.gain.r2 if path.gain.r2 >= 0 else -1.0


def _read_heads(
    model: LensTransformer, task: Task, known: HasTransition, tokens: Int[Tensor, "batch pos"]
) -> list[HeadTransition]:
    """Every head of layer 1 with its best partner in layer 2."""
    evidence = task.evidence(tokens)
    gains = token_gains(model, task, tokens, evidence)
    has_second = len(model.blocks) > 1
    watched = attention_of(model, tokens, patterns=range(2 if has_second else 1))
    first = watched.patterns[0]
    second = watched.patterns[1] if has_second else torch.zeros_like(first[:, :1])
    paths = head_paths(first, second, task, evidence)
    heads = []
    for number, scores in enumerate(token_scores(model), start=1):
        own = [path for path in paths if path.first == number]
        path = max(own, key=_strength)
        signs = _signs(path.branch, gains[number - 1])
        estimate = gauge_fixed(scores, known.stationary, signs)
        kl = row_kl(known.transition, estimate, FLOOR)
        variation = mean_variation(estimate, known.transition)
        heads.append(HeadTransition(path, estimate, kl, variation, gains[number - 1]))
    return heads


def _is_mixed(gains: Float64[Tensor, " vocab"]) -> bool:
    """Whether every query token has a branch, but not all have the same one."""
    return bool((gains.abs() >= LEAST_TOKEN_GAIN).all()) and len(gains.sign().unique()) > 1


def _signs(branch: str, gains: Float64[Tensor, " vocab"]) -> int | Float64[Tensor, " vocab"]:
    if _is_mixed(gains):
        return gains.sign()
    return -1 if branch == "mirrored" else 1


def output_circuit(model: LensTransformer, known: HasTransition) -> Float64[Tensor, "vocab vocab"]:
    """Token in, output out, through the last layer's OV circuits: W_E·W_V·W_O·W_U, summed.

    Any constant may be added to all rows elsewhere in the model, so the stationary marginal fixes
    it: pᵀπ = pᵀ.
    """
    attn = model.layers[-1].attn
    with torch.no_grad():
        circuits = model.W_E @ attn.W_V @ attn.W_O @ model.W_U
    direct = circuits.sum(0).cpu().double()
    return direct + known.stationary - known.stationary @ direct
