"""Where does each quantity of the algorithm live? Linear probes from every named block at the last
position.

Ridge regression on half of the sequences, R² on the other half. Two controls: labels shuffled over
sequences (what a probe of this size finds in noise) and the same architecture with fresh weights
(what the tokens give away by themselves). Selectivity is the held-out R² minus the larger of the
two.
"""

import contextlib
import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.fitting import FAMILIES, Evidence, one_step_weights, usual_beta
from mtdinterp.models import LensTransformer
from mtdinterp.readout import first_step_beta, sequences, some_to_read
from mtdinterp.task import MTDTask

QUANTITIES = {
    "responsibilities": "γ of the last token",
    "mean_responsibilities": "Γ, the average of γ",
    "one_step_weights": "softmax(β·Γ)",
    "posterior_mean": "exact posterior mean",
    "true_weights": "λ that made the sequence",
}
PENALTIES = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
"""Ridge penalties to choose from, in units of a feature's variance times the number of sequences.
"""
FOUND = 0.9
"""A quantity is said to live where it is decoded with at least this R² beyond the controls."""


@dataclass(frozen=True)
class Decoding:
    """How well one quantity is read from one place."""

    r2: float
    shuffled_r2: float
    untrained_r2: float

    @property
    def selectivity(self) -> float:
        return self.r2 - max(self.shuffled_r2, self.untrained_r2, 0.0)


@dataclass(frozen=True)
class LatentDecoding:
    """R² of every quantity from every place, with controls."""

    table: dict[str, dict[str, Decoding]]
    """By quantity, then by place: a named block of the stream, or a layer's attention at the last
    query."""
    widths: dict[str, int]
    """Features of every place."""
    beta: float
    """Of the one-step weights: by the attention of the layer that takes the first step."""
    ceiling: float
    """R² of the exact posterior mean itself as a prediction of λ: no reading of the sequence can do
    better."""

    def best(self, quantity: str) -> tuple[str, Decoding]:
        """Where a quantity is decoded best; of equals, the narrowest place."""
        places = self.table[quantity]
        top = max(places, key=lambda place: (round(places[place].r2, 3), -self.widths[place]))
        return top, places[top]

    def summary(self) -> str:
        lines = [
            "Linear decoding at the last position (held-out R²; controls: shuffled labels, "
            "untrained model)"
        ]
        for name, meaning in QUANTITIES.items():
            if name not in self.table:
                lines.append(
                    f"  {meaning:<28} not computed: the exact rule would be too large here"
                )
                continue
            place, found = self.best(name)
            limit = self.ceiling if name == "true_weights" and self.ceiling > 0 else 1.0
            words = f", at most {limit:.3f} possible" if limit < 1 else ""
            words += "" if found.selectivity >= FOUND * limit else ": weak"
            lines.append(
                f"  {meaning:<28} {found.r2:.3f} from {place} (shuffled {found.shuffled_r2:.3f}, "
                "untrained "
                f"{found.untrained_r2:.3f}, selectivity {found.selectivity:.3f}{words})"
            )
        return "\n".join(lines)


def decode_latents(
    model: LensTransformer,
    task: MTDTask,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 1024,
    seed: int = 0,
) -> LatentDecoding:
    """A table of where γ, Γ, the one-step weights, the posterior mean and λ can be read.

    With given tokens their true weights are unknown, and that row is left out.
    """
    true_weights = None
    if tokens is None:
        tokens = sequences(model, task, None, n_sequences, seed, least=16)
        true_weights = task.sample(n_sequences, model.config.length, seed).weights
    sequence = sequences(model, task, tokens, n_sequences, seed, least=16)
    evidence = Evidence(task, sequence)
    shown, fresh = _shown(model, sequence), _shown(_untrained(model, seed), sequence)
    places = _places(shown)
    beta = first_step_beta(model, task, some_to_read(sequence))
    if beta is None:
        beta = usual_beta(task, evidence.length)
    labels = _labels(evidence, beta, true_weights)
    shuffled = torch.randperm(len(sequence), generator=torch.Generator().manual_seed(seed))
    stacked = torch.cat([*labels.values(), *(label[shuffled] for label in labels.values())], dim=1)
    table: dict[str, dict[str, Decoding]] = {name: {} for name in labels}
    for place, where in places.items():
        found, control = (
            _held_out_r2(features[where], stacked, task.order) for features in (shown, fresh)
        )
        for i, name in enumerate(labels):
            table[name][place] = Decoding(
                found[i].item(), found[i + len(labels)].item(), control[i].item()
            )
    ceiling = math.nan
    if true_weights is not None and "posterior_mean" in labels:
        ceiling = _r2(labels["posterior_mean"], true_weights, task.order).item()
    return LatentDecoding(
        table, {place: shown[where].shape[1] for place, where in places.items()}, beta, ceiling
    )


Where = tuple[str, int]
"""A block of the stream, or "attention", and the layer after which it is read (0: the embedding).
"""


def _shown(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"]
) -> dict[Where, Float64[Tensor, "batch feature"]]:
    """Every block after every layer, and every layer's attention by offset (mean over heads), at
    the last position."""
    n_layers = len(model.blocks)
    names = ["hook_embed", *(f"blocks.{layer}.hook_resid_post" for layer in range(n_layers))]
    patterns = [f"blocks.{layer}.attn.hook_pattern" for layer in range(n_layers)]
    parts: list[dict[Where, Tensor]] = []
    for part in tokens.split(len(some_to_read(tokens))):
        with torch.no_grad():
            _, cache = model.run_with_cache(part, last_only=True, names_filter=[*names, *patterns])
        parts.append(
            {
                (block, layer): cache[name][:, -1, columns].double()
                for layer, name in enumerate(names)
                for block, columns in model.stream.items()
            }
        )
        parts[-1] |= {
            ("attention", layer): cache[name][:, :, -1].double().mean(1).flip(-1)
            for layer, name in enumerate(patterns, start=1)
        }
    return {where: torch.cat([part[where] for part in parts]) for where in parts[0]}


def _places(shown: Mapping[Where, Tensor]) -> dict[str, Where]:
    """What is worth probing, by name: a block that a layer leaves as it was is listed once.

    Where several layers write to a block, as in an additive stream, its name says after which:
    `residual@L0` is the embedding, `residual@L1` what it is after layer 1.
    """
    versions: dict[str, list[int]] = {}
    for (block, layer), value in shown.items():
        known = versions.setdefault(block, [])
        before = shown[block, known[-1]] if known else torch.zeros_like(value)
        if block == "attention" or not torch.equal(value, before):
            known.append(layer)
    names = {
        block if len(layers) == 1 else f"{block}@L{layer}": (block, layer)
        for block, layers in versions.items()
        if block != "attention"
        for layer in layers
    }
    return names | {f"L{layer}.attention": ("attention", layer) for layer in versions["attention"]}


def _labels(evidence: Evidence, beta: float, true_weights: Tensor | None) -> dict[str, Tensor]:
    labels = {
        "responsibilities": evidence.responsibilities[:, -1],
        "mean_responsibilities": evidence.mean_responsibilities,
        "one_step_weights": one_step_weights(evidence, beta),
    }
    with contextlib.suppress(ValueError):  # many lags on a long sequence: too large a rule
        labels["posterior_mean"] = FAMILIES["exact_bayes"].weights(evidence, {})
    if true_weights is not None:
        labels["true_weights"] = true_weights
    return labels


def _untrained(model: LensTransformer, seed: int) -> LensTransformer:
    """The same architecture with fresh weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = copy.deepcopy(model)
        fresh.reset_hooks(including_permanent=True)
        fresh.reset_parameters()
    return fresh


def _held_out_r2(
    features: Float64[Tensor, "batch feature"], labels: Float64[Tensor, "batch label"], order: int
) -> Float64[Tensor, " quantity"]:
    """Ridge from a place to all labels at once; R² of every quantity (`order` columns each) on the
    second half.

    The penalty is chosen for each quantity on a quarter of the first half that the fit does not
    see.
    """
    half = len(features) // 2
    cut = half - half // 4
    train, choose, test = slice(0, cut), slice(cut, half), slice(half, None)
    centre, scale = features[:half].mean(0), features[:half].std(0)
    used = scale > 1e-9 * features[:half].abs().max()
    x = (features[:, used] - centre[used]) / scale[used]
    y = labels - labels[:half].mean(0)
    if not used.any():
        return torch.zeros(labels.shape[1] // order, dtype=torch.float64)
    chosen = torch.stack(
        [
            _r2(x[choose] @ _ridge(x[train], y[train], penalty), y[choose], order)
            for penalty in PENALTIES
        ]
    ).argmax(0)
    tested = torch.stack(
        [
            _r2(x[test] @ _ridge(x[:half], y[:half], penalty), y[test], order)
            for penalty in PENALTIES
        ]
    )
    return tested.gather(0, chosen[None])[0]


def _ridge(x: Tensor, y: Tensor, penalty: float) -> Float64[Tensor, "feature label"]:
    gram = x.T @ x + penalty * len(x) * torch.eye(x.shape[1], dtype=torch.float64)
    return torch.linalg.solve(gram, x.T @ y)


def _r2(prediction: Tensor, truth: Tensor, order: int) -> Float64[Tensor, " quantity"]:
    """Of each quantity over all its entries together."""
    groups = (len(truth), -1, order)
    error = (prediction - truth).view(groups).square().sum((0, 2))
    spread = (truth - truth.mean(0)).view(groups).square().sum((0, 2))
    return 1 - error / spread.clamp_min(1e-300)
