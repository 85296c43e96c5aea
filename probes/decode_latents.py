"""Where does each quantity of the algorithm live? Linear probes from every stream block.

Ridge regression on half of the sequences, R² on the other half. Two controls: labels shuffled over
sequences (what a probe of this size finds in noise) and the same architecture with fresh weights
(what the tokens give away by themselves). Selectivity is the held-out R² minus the larger of the
two.
"""

import copy
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.criteria import DECODED
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.base import accuracy_notes
from mtdinterp.evidence import Evidence
from mtdinterp.explanation import Explanation, explain
from mtdinterp.formatting import r2_text
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Table, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import probe_sequences, readable_sequences
from mtdinterp.registry import ESTIMATORS
from mtdinterp.results import Result
from mtdinterp.tasks import Task

QUANTITIES = {
    "responsibilities": "γ of the last token",
    "mean_responsibilities": "Γ, the mean of γ",
    "one_step_weights": "softmax(β·Γ)",
    "posterior_mean": "exact posterior mean",
    "true_weights": "λ that made the sequence",
}
HEAD = re.compile(r"L\d+\.H\d+(?=\.)")
"""The prefix of a place's name that identifies the layer and head that wrote it."""
PENALTIES = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
"""Ridge penalties to choose from, in units of a feature's variance times the number of
sequences."""


@dataclass(frozen=True)
class Decoding:
    """How well one quantity can be decoded from one place."""

    r2: float
    shuffled_r2: float
    untrained_r2: float

    @property
    def selectivity(self) -> float:
        """R² beyond the larger control."""
        return self.r2 - max(self.shuffled_r2, self.untrained_r2, 0.0)


@dataclass(frozen=True, kw_only=True)
class LatentDecoding(Result):
    """R² of every quantity from every place, with controls."""

    table: dict[str, dict[str, Decoding]]
    """By quantity, then by place: a named stream block, or a head's attention at the last query."""
    widths: dict[str, int]
    """Features of every place."""
    beta: float
    """β of the one-step weights: the first constant of the model's explanation."""
    ceiling: float
    """R² of the exact posterior mean as a prediction of λ: nothing computed from the sequence can
    do better.
    """
    left_out: dict[str, str]
    """Quantities that could not be computed, and why."""
    notes: dict[str, str]
    """How accurate quantities are that are not computed exactly here."""

    def best(self, quantity: str) -> tuple[str, Decoding]:
        """The place from which a quantity is decoded best; of several equally good ones, the
        narrowest.
        """
        places = self.table[quantity]
        top = max(places, key=lambda place: (round(places[place].r2, 3), -self.widths[place]))
        return top, places[top]

    def limit(self, quantity: str) -> float:
        """The largest R² that is possible."""
        has_ceiling = quantity == "true_weights" and self.ceiling > 0
        return self.ceiling if has_ceiling else 1.0

    def is_decoded(self, quantity: str) -> bool:
        """Whether a quantity is read with an R² well beyond the controls."""
        _, found = self.best(quantity)
        return found.selectivity >= DECODED * self.limit(quantity)

    def _has_weak(self) -> bool:
        """Whether some quantity is marked as weak, so that the word needs its rule."""
        return not all(self.is_decoded(name) for name in self.table)

    def summary(self) -> str:
        lines = [
            "Linear decoding at the last position (held-out R²; controls: shuffled labels, "
            "untrained model)"
        ]
        for name, meaning in QUANTITIES.items():
            if name not in self.table:
                why = self.left_out.get(name, "the given sequences come without their λ")
                lines.append(f"  {meaning:<28} not computed: {why}")
                continue
            place, found = self.best(name)
            limit = self.limit(name)
            possible = f", at most {limit:.3f} possible" if limit < 1 else ""
            weak = "" if self.is_decoded(name) else f", weak: below {DECODED * limit:.2f}"
            lines.append(
                f"  {meaning:<28} {found.r2:.3f} from {place} (shuffled {found.shuffled_r2:.3f}, "
                f"untrained {found.untrained_r2:.3f}, selectivity {found.selectivity:.3f}"
                f"{possible}{weak})"
            )
            if name in self.notes:
                lines.append(f"  {'':<28} {self.notes[name]}")
        if self._has_weak():
            lines.append(f"  weak: selectivity below {DECODED:.0%} of what is possible")
        lines += [f"  {text}" for text in self._head_lines()]
        return "\n".join(lines)

    @property
    def heads(self) -> tuple[str, ...]:
        """Every head with places of its own, such as L1.H2; empty with one head per layer."""
        found = (HEAD.match(place) for place in self.widths)
        return tuple(dict.fromkeys(match.group() for match in found if match))

    def best_of_head(self, quantity: str, head: str) -> tuple[str, Decoding]:
        """The place that a head writes, or its attention, from which a quantity is read best."""
        places = self.table[quantity]
        own = [place for place in places if place.startswith(f"{head}.")]
        top = max(own, key=lambda place: (round(places[place].r2, 3), -self.widths[place]))
        return top, places[top]

    def _head_lines(self) -> list[str]:
        """What every head shows by itself; empty with one head per layer."""
        if not self.heads:
            return []
        lines = ["R² (selectivity) from each head's own blocks and attention:"]
        for head in self.heads:
            parts = []
            for name in self.table:
                _, found = self.best_of_head(name, head)
                number = f"{r2_text(found.r2)} ({r2_text(found.selectivity)})"
                parts.append(f"{QUANTITIES[name]} {number}")
            lines.append(f"  {head}: {', '.join(parts)}")
        return lines

    def _head_table(self) -> Table:
        """R² of every quantity from every head's own blocks and attention."""
        rows = []
        for head in self.heads:
            cells = []
            for name in self.table:
                place, found = self.best_of_head(name, head)
                cells.append(f"{r2_text(found.r2)} ({place.removeprefix(f'{head}.')})")
            rows.append((head, *cells))
        header = ("head: R² (best place)", *(QUANTITIES[name] for name in self.table))
        return Table(header, tuple(rows))

    def blocks(self) -> list[Block]:
        rows = []
        for name, meaning in QUANTITIES.items():
            if name not in self.table:
                continue
            place, found = self.best(name)
            rows.append(
                (
                    meaning,
                    place,
                    f"{found.r2:.3f}",
                    f"{found.shuffled_r2:.3f}",
                    f"{found.untrained_r2:.3f}",
                    f"{found.selectivity:.3f}" + ("" if self.is_decoded(name) else " (weak)"),
                )
            )
        header = ("quantity", "best read from", "R²", "shuffled labels", "untrained model")
        notes = []
        if self._has_weak():
            notes.append(f"Weak: selectivity below {DECODED:.0%} of what is possible.")
        if math.isfinite(self.ceiling):
            notes.append(
                f"λ itself can be known to R² {self.ceiling:.3f} at most: that of the exact "
                "posterior mean."
            )
        notes += [f"{QUANTITIES[name]}: {note}." for name, note in self.notes.items()]
        notes += [
            f"Not computed: {QUANTITIES[name]} ({why})." for name, why in self.left_out.items()
        ]
        blocks: list[Block] = [Table((*header, "selectivity"), tuple(rows))]
        if self.heads:
            blocks.append(self._head_table())
        return [*blocks, Text(tuple(notes), "soft")] if notes else blocks


@register_probe(
    "decode_latents", label="Where can the algorithm's quantities be read linearly?", rank=50
)
def decode_latents(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 1024,
    seed: int = 0,
    explanation: Explanation | None = None,
) -> LatentDecoding:
    """Where γ, Γ, the one-step weights, the posterior mean and λ can be read.

    Args:
        model: any hooked model.
        task: the model's task.
        tokens: sequences [batch, pos] to probe on; drawn from the task if None. With given tokens
            the true weights are unknown, and that row is left out.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.
        explanation: the model's explanation, if already known.

    Returns:
        R² of every quantity from every place, with controls.
    """
    true_weights = None
    if tokens is None:
        sequence = probe_sequences(model, task, None, n_sequences, seed, least=16)
        true_weights = task.sample(n_sequences, model.config.length, seed).weights
    else:
        sequence = probe_sequences(model, task, tokens, n_sequences, seed, least=16)
    if explanation is None:
        explanation = explain(model, task, length=sequence.shape[1], seed=seed)
    beta = next(iter(explanation.constants.values()))
    evidence = task.evidence(sequence)
    labels, left_out = _labels(evidence, beta, true_weights)
    notes = {}
    if "posterior_mean" in labels:
        for note in accuracy_notes(["exact_bayes"], evidence).values():
            notes["posterior_mean"] = note
    shown = _features(model, sequence)
    fresh = _features(_untrained(model, seed), sequence)
    places = _places(shown)
    shuffled = torch.randperm(len(sequence), generator=torch.Generator().manual_seed(seed))
    controls = [label[shuffled] for label in labels.values()]
    stacked = torch.cat([*labels.values(), *controls], dim=1)
    table: dict[str, dict[str, Decoding]] = {name: {} for name in labels}
    for place, where in places.items():
        found = _held_out_r2(shown[where], stacked, task.n_components)
        untrained = _held_out_r2(fresh[where], stacked, task.n_components)
        for i, name in enumerate(labels):
            table[name][place] = Decoding(
                found[i].item(), found[i + len(labels)].item(), untrained[i].item()
            )
    ceiling = math.nan
    if true_weights is not None and "posterior_mean" in labels:
        ceiling = _r2(labels["posterior_mean"], true_weights, task.n_components).item()
    return LatentDecoding(
        table=table,
        widths={place: shown[where].shape[1] for place, where in places.items()},
        beta=beta,
        ceiling=ceiling,
        left_out=left_out,
        notes=notes,
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


Where = tuple[str, int]
"""A stream block, or a head's attention, and the layer after which it is read (0: embedding)."""
ATTENTION = "attention"


def _features(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> dict[Where, Float64[Tensor, "batch feature"]]:
    """Every block after every layer, and every head's attention by offset, at the last position."""
    parts = []
    for part in tokens.split(len(readable_sequences(tokens))):
        parts.append(_features_of_part(model, part))
    features = {}
    for where in parts[0]:
        features[where] = torch.cat([part[where] for part in parts])
    return features


def _features_of_part(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> dict[Where, Float64[Tensor, "batch feature"]]:
    layers = range(len(model.blocks))
    streams = ["hook_embed", *(f"blocks.{layer}.hook_resid_post" for layer in layers)]
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in layers]
    with torch.no_grad():
        _, cache = model.run_with_cache(tokens, last_only=True, names_filter=[*streams, *patterns])
    found: dict[Where, Tensor] = {}
    for layer, name in enumerate(streams):
        last = cache[name][:, -1].cpu().double()
        for block, columns in model.stream.items():
            found[block, layer] = last[:, columns]
    for layer, name in enumerate(patterns, start=1):
        by_head = cache[name][:, :, -1].cpu().double().flip(-1)
        n_heads = by_head.shape[1]
        for head in range(n_heads):
            label = ATTENTION if n_heads == 1 else f"H{head + 1}.{ATTENTION}"
            found[label, layer] = by_head[:, head]
    return found


def _places(shown: Mapping[Where, Tensor]) -> dict[str, Where]:
    """Features worth probing, by name; a block that a layer does not change is listed once.

    If several layers write to a block, as in an additive stream, its name says after which:
    `residual@L0` is the embedding, `residual@L1` what it is after layer 1.
    """
    versions: dict[str, list[int]] = {}
    attention: dict[str, Where] = {}
    for (block, layer), value in shown.items():
        if block.endswith(ATTENTION):
            attention[f"L{layer}.{block}"] = (block, layer)
            continue
        known = versions.setdefault(block, [])
        before = shown[block, known[-1]] if known else torch.zeros_like(value)
        if not torch.equal(value, before):
            known.append(layer)
    names: dict[str, Where] = {}
    for block, layers in versions.items():
        for layer in layers:
            name = block if len(layers) == 1 else f"{block}@L{layer}"
            names[name] = (block, layer)
    return names | attention


def _labels(
    evidence: Evidence, beta: float, true_weights: Tensor | None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The quantities to decode, and those that cannot be computed with the reason."""
    labels = {
        "responsibilities": evidence.responsibilities()[:, -1],
        "mean_responsibilities": evidence.mean_responsibilities,
        "one_step_weights": ESTIMATORS["one_step"].weights(evidence, beta=beta),
    }
    left_out = {}
    try:
        labels["posterior_mean"] = ESTIMATORS["exact_bayes"].weights(evidence)
    except CannotCompute as error:
        left_out["posterior_mean"] = str(error)
    if true_weights is not None:
        labels["true_weights"] = true_weights
    return labels, left_out


def _untrained(model: LensTransformer, seed: int) -> LensTransformer:
    """The same architecture with newly initialised weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = copy.deepcopy(model)
        fresh.reset_hooks(including_permanent=True)
        fresh.reset_parameters()
    return fresh


def _held_out_r2(
    features: Float64[Tensor, "batch feature"],
    labels: Float64[Tensor, "batch label"],
    n_components: int,
) -> Float64[Tensor, " quantity"]:
    """R² on the second half of a ridge regression from a place to all labels at once.

    The penalty is chosen for each quantity on a quarter of the first half that the fit does not
    see.
    """
    half = len(features) // 2
    cut = half - half // 4
    train, choose, test = slice(0, cut), slice(cut, half), slice(half, None)
    centre = features[:half].mean(0)
    scale = features[:half].std(0)
    used = scale > 1e-9 * features[:half].abs().max()
    if not used.any():
        return torch.zeros(labels.shape[1] // n_components, dtype=torch.float64)
    x = (features[:, used] - centre[used]) / scale[used]
    y = labels - labels[:half].mean(0)
    chosen = []
    tested = []
    for penalty in PENALTIES:
        partial = _ridge(x[train], y[train], penalty)
        chosen.append(_r2(x[choose] @ partial, y[choose], n_components))
        full = _ridge(x[:half], y[:half], penalty)
        tested.append(_r2(x[test] @ full, y[test], n_components))
    best = torch.stack(chosen).argmax(0)
    return torch.stack(tested).gather(0, best[None])[0]


def _ridge(x: Tensor, y: Tensor, penalty: float) -> Float64[Tensor, "feature label"]:
    gram = x.T @ x + penalty * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.T @ y)


def _r2(prediction: Tensor, truth: Tensor, n_components: int) -> Float64[Tensor, " quantity"]:
    """R² of each quantity over all its entries together."""
    groups = (len(truth), -1, n_components)
    error = (prediction - truth).view(groups).square().sum((0, 2))
    spread = (truth - truth.mean(0)).view(groups).square().sum((0, 2))
    return 1 - error / spread.clamp_min(1e-300)
