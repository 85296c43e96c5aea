"""How much does each position count for the last layer, and does its token matter?

Layer 1 may attend partly off the lags, and layer 2 may prefer some positions: what the last layer
reads depends on their product alone. Each of the two can be far from the construction's while the
product is flat over positions, as in the construction.

A deeper model has several paths from layer 1 to the last layer, and the last layer reads each with
a strength of its own. Then the paths together decide: their sum, each times its read.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import CLEAR_R2, FLAT_ATTENTION
from mtdinterp.errors import NotApplicable
from mtdinterp.formatting import MISSING, counted, fixed, listed, with_error
from mtdinterp.metrics import total_variation
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Bar, Bars, Block, Level, Line, Lines, Table, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import Slope, attention_of, probe_sequences, readable_sequences
from mtdinterp.readings.effective import carrying_heads, lag_mass, token_weights, weights_along
from mtdinterp.readings.lag_blocks import (
    MOST_COPIES,
    folded_of,
    identity_share,
    lag_blocks,
    position_scores_of,
)
from mtdinterp.readings.mechanism import lag_offsets
from mtdinterp.readings.regression import NO_SLOPE
from mtdinterp.results import Result
from mtdinterp.tasks import Task

N_BINS = 8
"""Positions with evidence are divided into this many parts, from first to last."""
N_RESAMPLES = 1000
"""Bootstrap samples of the sequences."""
NORMAL_95 = 1.96
"""Standard errors to each side of a 95% interval."""
MOST_BARS = 26
"""Tasks with more tokens than this get no bars by token."""


@dataclass(frozen=True)
class Profile:
    """Attention by position, relative to the mean of the first seven eighths."""

    values: tuple[float, ...]
    """The mean of each eighth of the positions with evidence, divided by the mean of the first
    seven."""
    stderr: tuple[float, ...]
    flatness: float
    """The largest |value - 1| of the first seven eighths: 0 if every position counts the same."""
    interval: tuple[float, float]
    """The largest lower and the largest upper end of the seven intervals of |value - 1|, each at
    95%."""

    def text(self) -> str:
        """The values from first to last, and the flatness."""
        shown = " ".join(fixed(value) for value in self.values)
        return f"{shown}; flatness {self.flatness_text()}"

    def flatness_text(self) -> str:
        """The flatness with its interval; a dash if the first seven eighths count nothing."""
        low, high = self.interval
        if not math.isfinite(self.flatness):
            return MISSING
        return f"{fixed(self.flatness, 3)} ({fixed(low, 3)} to {fixed(high, 3)})"


@dataclass(frozen=True)
class PathAttention:
    """What reaches the last layer from each position along one chain of layers."""

    name: str
    """The chain, such as "L1→L2→L5"."""
    layers: tuple[int, ...]
    """Its layers, from 1: layer 1, those that average, the last one."""
    profile: Profile
    by_token: tuple[float, ...]
    """The weight of a position by its token, with a mean of 1 over positions; NaN for a token that
    does not occur."""
    by_token_stderr: tuple[float, ...]
    last: float
    """What the last position counts, divided by the mean of the first seven eighths."""
    last_stderr: float
    total: float
    """The sum over positions: 1 in the one-step construction. For all paths together each counts
    with its read, so the sum is comparable with β."""
    read: float
    """How the last layer reads this average: the multiple of I - 11ᵀ/m by weights; NaN for all
    paths together."""
    read_r2: float

    @property
    def is_read(self) -> bool:
        """Whether the last layer's read of this average is clear."""
        return self.read_r2 >= CLEAR_R2


@dataclass(frozen=True, kw_only=True, eq=False)
class EffectiveAttention(Result):
    """What reaches the last layer by position and by token, along every path."""

    paths: tuple[PathAttention, ...]
    """The path through layer 2 alone comes first."""
    together: PathAttention | None
    """The sum over all paths that the last layer clearly reads, each times its read; None if there
    are fewer than two."""
    layer_1: Profile
    """The control: layer 1's attention on the lags, by position."""
    layer_2: Profile
    """The control: layer 2's attention at the last query, by position."""
    lag_mass: tuple[float, ...]
    """Layer 1's attention on the lags in each eighth: 1 in the construction."""
    averaging: tuple[float, ...]
    """Layer 2's attention in each eighth times the number of positions with evidence: 1 in the
    construction."""
    distances: dict[str, float]
    """Total variation, mean over sequences: "layer 1" from γ at each position, "layer 2" and
    "effective attention" from uniform attention over the positions with evidence. 0 in the one-step
    construction. The effective attention is first divided by its sum."""
    direct_read: float
    """How the last layer reads its own position's lags directly: the multiple of I - 11ᵀ/m by
    weights."""
    direct_r2: float
    last_total: float
    """What the last position counts by the averages and by the direct read together, in units of
    `last`; equal to `last` if no read is clear."""
    heads: tuple[int, ...]
    """The head of every layer that was read, from 1."""
    n_heads: int
    """The largest number of heads of a layer."""
    n_positions: int
    """The number of positions with evidence."""
    first_position: int
    """The first of them."""
    no_reads: str
    """Why the last layer's reads are not computed, in one sentence; empty if they are."""

    @property
    def main(self) -> PathAttention:
        """All paths together, or the only one that is read, or the one through layer 2."""
        return _main(self.paths, self.together)

    @property
    def by_position(self) -> tuple[float, ...]:
        """The effective attention by eighths, relative to the first seven."""
        return self.main.profile.values

    @property
    def by_token(self) -> tuple[float, ...]:
        """The weight of each token."""
        return self.main.by_token

    @property
    def flatness(self) -> float:
        """The largest distance from 1 of the first seven eighths."""
        return self.main.profile.flatness

    @property
    def interval(self) -> tuple[float, float]:
        """What the sequences say about the flatness; see `Profile`."""
        return self.main.profile.interval

    @property
    def last(self) -> float:
        """What the last position counts through the averages."""
        return self.main.last

    def summary(self) -> str:
        lines = [
            "Effective attention: what reaches the last layer from each position (eighths of "
            "the sequence, first to last, divided by the mean of the first seven)",
            f"  layer 1, attention on the lags   {self.layer_1.text()}",
            f"  layer 2, attention               {self.layer_2.text()}",
        ]
        for path in self._shown_paths():
            if path is self.main or path.is_read:
                lines.append(f"  {path.name:<32} {path.profile.text()}{_read_text(path)}")
        tokens = []
        for value, stderr in zip(self.by_token, self.main.by_token_stderr, strict=True):
            tokens.append(with_error(value, stderr, 3))
        if len(tokens) <= MOST_BARS:
            lines.append(f"  by token, {self.main.name}: {', '.join(tokens)}")
        lines.append(f"  {self.last_sentence()}")
        lines.append(f"  {self.distance_sentence()}")
        if self.head_sentence():
            lines.append(f"  {self.head_sentence()}")
        if self.no_reads:
            lines.append(f"  Reads of the last layer: not computed: {self.no_reads}")
        return "\n".join(lines)

    def _shown_paths(self) -> tuple[PathAttention, ...]:
        """Every path, then their sum if there is one."""
        return self.paths if self.together is None else (*self.paths, self.together)

    def last_sentence(self) -> str:
        """What the last position counts."""
        times = with_error(self.last, self.main.last_stderr)
        through = "layer 2" if len(self.paths) == 1 else "the layers that average"
        text = f"The last position counts {times} times as much as the others through {through}"
        if self.last_total == self.last:
            return f"{text}."
        return (
            f"{text}, and {fixed(self.last_total)} times with the last layer's direct read of its "
            "own lags."
        )

    def distance_sentence(self) -> str:
        """The distances of each layer alone, and of their product."""
        shown = [f"{name} {value:.3f}" for name, value in self.distances.items()]
        return (
            "Total variation on each sequence, from γ (layer 1) and from uniform attention over "
            f"the positions with evidence: {listed(shown)}."
        )

    def head_sentence(self) -> str:
        """Which heads were read; empty if every layer has one."""
        if self.n_heads == 1:
            return ""
        shown = ", ".join(f"L{layer}.H{head}" for layer, head in enumerate(self.heads, start=1))
        return f"Read from the heads that carry the lags: {shown}."

    def claims(self) -> tuple[Claim, ...]:
        low, high = self.interval
        status = decide(self.flatness <= FLAT_ATTENTION)
        reason = ""
        if not math.isfinite(self.flatness):
            status = Status.UNDECIDABLE
            reason = "the first seven eighths count nothing"
        elif low < FLAT_ATTENTION < high:
            status = Status.UNDECIDABLE
            reason = (
                f"the interval {low:.3f} to {high:.3f} contains the threshold "
                f"{FLAT_ATTENTION:g}; more sequences would decide"
            )
        return (
            Claim(
                claim=(
                    "Positions count the same for the last layer, within "
                    f"{FLAT_ATTENTION:.0%}, but for the last eighth"
                ),
                status=status,
                evidence=(
                    "Largest deviation of the effective attention from its mean, over the first "
                    "seven eighths of the positions"
                ),
                number=self.main.profile.flatness_text(),
                threshold=f"≤ {FLAT_ATTENTION:g}",
                control=(
                    f"layer 1 alone {self.layer_1.flatness:.3f}, layer 2 alone "
                    f"{self.layer_2.flatness:.3f}"
                ),
                n_sequences=self.n_sequences,
                seed=self.seed,
                reason=reason,
            ),
        )

    def blocks(self) -> list[Block]:
        blocks: list[Block] = [self._position_chart()]
        if len(self.by_token) <= MOST_BARS:
            blocks.append(self._token_chart())
        rows = []
        for path in self._shown_paths():
            read = MISSING
            if math.isfinite(path.read):
                read = f"{fixed(path.read, 1)} ({fixed(path.read_r2)})"
            rows.append(
                (
                    path.name,
                    path.profile.flatness_text(),
                    with_error(path.last, path.last_stderr),
                    fixed(path.total, 3),
                    read,
                )
            )
        header = ("path", "flatness (95%)", "last position", "sum", "last layer's read (R²)")
        blocks.append(Table(header, tuple(rows)))
        sentences = [self.last_sentence(), self.distance_sentence(), self.head_sentence()]
        if self.no_reads:
            sentences.append(f"Reads of the last layer: not computed: {self.no_reads}")
        blocks.append(Text(tuple(text for text in sentences if text), "soft"))
        return blocks

    def _position_chart(self) -> Lines:
        """The product and its two factors, by position."""
        factors = (
            ("series_6", "layer 1: attention on the lags", self.layer_1.values),
            ("series_8", "layer 2: attention", self.layer_2.values),
            ("model", f"effective attention, {self.main.name}", self.by_position),
        )
        positions = torch.arange(self.n_positions).double() + self.first_position
        middles = [part.mean().item() for part in positions.tensor_split(N_BINS)]
        lines: list[Line] = []
        for key, label, values in factors:
            lines.append(Line(key, label, tuple(zip(middles, values, strict=True))))
        for path in self.paths:
            # Longer chains are in the table: seven lines hide each other.
            if path.is_read and len(path.layers) == 3 and path is not self.main:
                points = tuple(zip(middles, path.profile.values, strict=True))
                key = f"series_{path.layers[1]}"
                lines.append(Line(key, f"effective attention, {path.name}", points))
        return Lines(
            "How much each position counts",
            tuple(lines),
            "position",
            "relative to the first seven eighths",
            levels=(Level("truth", "the same everywhere", 1.0),),
        )

    def _token_chart(self) -> Bars:
        """The weight of each token."""
        bars = []
        for token, value in enumerate(self.by_token):
            stderr = self.main.by_token_stderr[token]
            bars.append(Bar("model", f"token {token}", value, stderr))
        title = "How much a position counts, by its token (the construction has 1)"
        return Bars(title, tuple(bars), "relative to the mean over positions")


def _read_text(path: PathAttention) -> str:
    if not math.isfinite(path.read):
        return ""
    return f"; read {fixed(path.read, 1)} (R² {fixed(path.read_r2)})"


@register_probe(
    "effective_attention",
    label="How much does each position count for the last layer?",
    rank=42,
)
def effective_attention(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 1024,
    seed: int = 0,
) -> EffectiveAttention:
    """What reaches the last layer from each position and each token.

    Args:
        model: any hooked model with at least three layers.
        task: the model's task.
        tokens: sequences [batch, pos] to probe on; drawn from the task if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.

    Returns:
        The effective attention along every path, next to the attention of layers 1 and 2 alone.

    Raises:
        NotApplicable: if some component of the task is read at no offset, if the model has fewer
            than three layers, or if there are too few positions with evidence.
    """
    sequence = probe_sequences(model, task, tokens, n_sequences, seed)
    n_positions = sequence.shape[1] - task.warm_up
    offsets = _checked_offsets(model, task, n_positions)
    n_layers = len(model.blocks)
    few = readable_sequences(sequence)
    watched = attention_of(model, few, range(n_layers - 1), [n_layers - 1])
    heads = carrying_heads(watched, task, task.evidence(few), offsets).heads

    chains = _chains(n_layers)
    measured = [_measure(model, task, part, heads, chains) for part in sequence.split(len(few))]
    weights = {chain: torch.cat([part.effective[chain] for part in measured]) for chain in chains}
    mass = torch.cat([part.lag_mass for part in measured])
    averaging = torch.cat([part.averaging for part in measured])
    repeats = _repeats(len(sequence))

    reads, no_reads = _reads(model, watched.patterns, heads, offsets)
    later = sequence[:, task.warm_up :].cpu()
    describe = _Describer(later, repeats, task.vocab_size)
    paths = []
    combined = torch.zeros_like(mass)
    n_read = 0
    for chain in chains:
        read = reads.get((1, *chain), NO_SLOPE)
        layers = (1, *chain, n_layers)
        name = "→".join(f"L{layer}" for layer in layers)
        path = describe(name, layers, weights[chain], read)
        paths.append(path)
        if path.is_read:
            combined += read.value * weights[chain]
            n_read += 1
    together = None
    if n_read > 1:
        together = describe("all paths, each times its read", (), combined, NO_SLOPE)
    direct = reads.get((1,), NO_SLOPE)
    effective = combined if n_read else weights[chains[0]]
    last_total = _main(paths, together).last
    if n_read and direct.r2 >= CLEAR_R2:
        # The direct read adds the lag mass of the last position once.
        level = _binned(combined)[:, :-1].mean()
        through = (combined[:, -1].mean() / level).item()
        last_total = through + (direct.value * mass[:, -1].mean() / level).item()
    return EffectiveAttention(
        paths=tuple(paths),
        together=together,
        layer_1=_profile(_binned(mass), repeats),
        layer_2=_profile(_binned(averaging), repeats),
        lag_mass=tuple(_binned(mass).mean(0).tolist()),
        averaging=tuple((_binned(averaging).mean(0) * n_positions).tolist()),
        distances={
            "layer 1": torch.cat([part.first_distance for part in measured]).mean().item(),
            "layer 2": _from_uniform(averaging),
            "effective attention": _from_uniform(effective),
        },
        direct_read=direct.value,
        direct_r2=direct.r2,
        last_total=last_total,
        heads=tuple(head + 1 for head in heads),
        n_heads=model.cfg.n_heads,
        n_positions=n_positions,
        first_position=task.warm_up,
        no_reads=no_reads,
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


def _checked_offsets(model: LensTransformer, task: Task, n_positions: int) -> list[int]:
    """Where the last query reads the components, if this question makes sense here."""
    offsets = lag_offsets(task)
    if offsets is None:
        raise NotApplicable(
            "Effective attention needs components that are read at fixed offsets, and this task "
            "has components that no single position shows"
        )
    n_layers = len(model.blocks)
    if n_layers < 3:
        raise NotApplicable(
            "Effective attention needs a layer between the one that attends to the lags and the "
            f"last one, and this model has {counted(n_layers, 'layer')}"
        )
    if n_positions < N_BINS:
        raise NotApplicable(
            f"Effective attention needs at least {N_BINS} positions with evidence, and these "
            f"sequences have {n_positions}"
        )
    return offsets


def _chains(n_layers: int) -> list[tuple[int, ...]]:
    """The layers that average, for every path: layer 2 alone first, then by length."""
    middle = range(2, n_layers)
    found: list[tuple[int, ...]] = []
    for length in range(1, min(MOST_COPIES, len(middle)) + 1):
        found += combinations(middle, length)
    return found


@dataclass(frozen=True, eq=False)
class _Measured:
    """Attention of some sequences at the positions with evidence."""

    lag_mass: Float64[Tensor, "batch step"]
    averaging: Float64[Tensor, "batch step"]
    first_distance: Float64[Tensor, " batch"]
    effective: dict[tuple[int, ...], Float64[Tensor, "batch step"]]


def _measure(
    model: LensTransformer,
    task: Task,
    tokens: Int[Tensor, "batch pos"],
    heads: tuple[int, ...],
    chains: Sequence[tuple[int, ...]],
) -> _Measured:
    """Lag mass, layer 2's attention and the effective attention of some sequences."""
    patterns = attention_of(model, tokens, range(len(model.blocks) - 1)).patterns
    offsets = [offset for offset in task.read_offsets if offset is not None]
    first = patterns[0][:, heads[0]]
    steps = slice(task.warm_up, None)
    mass = lag_mass(first, offsets)
    effective = {}
    for chain in chains:
        effective[chain] = (weights_along(patterns, heads, chain) * mass)[:, steps]

    by_offset = attention_by_offset(first[:, None])[:, 0].double()
    on_lags = by_offset[:, steps, [offset + 1 for offset in offsets]]
    # Where layer 1 should attend, the distance from γ; everything off the lags is too much.
    gamma = task.evidence(tokens).responsibilities()
    off_lags = (1 - on_lags.sum(-1)).clamp_min(0)
    distance = total_variation(on_lags, gamma) + off_lags / 2
    return _Measured(
        lag_mass=mass[:, steps],
        averaging=patterns[1][:, heads[1], -1].double()[:, steps],
        first_distance=distance.mean(-1),
        effective=effective,
    )


def _reads(
    model: LensTransformer,
    patterns: dict[int, Tensor],
    heads: tuple[int, ...],
    offsets: list[int],
) -> tuple[dict[tuple[int, ...], Slope], str]:
    """The last layer's read of every copy of layer 1's code, or why there are none."""
    try:
        last = folded_of(model)[-1]
        blocks = lag_blocks(model, patterns, heads, offsets)
    except NotApplicable as error:
        return {}, str(error)
    found: dict[tuple[int, ...], Slope] = {}
    for block in blocks:
        if block.layers[0] == 1:
            scores = position_scores_of(last, heads[-1], block, offsets)
            found[block.layers] = identity_share(scores)
    return found, ""


@dataclass(frozen=True, eq=False)
class _Describer:
    """Describes the attention along one path by position and by token."""

    tokens: Int[Tensor, "batch step"]
    repeats: Float64[Tensor, "sample batch"]
    vocab_size: int

    def __call__(
        self,
        name: str,
        layers: tuple[int, ...],
        weights: Float64[Tensor, "batch step"],
        read: Slope,
    ) -> PathAttention:
        bins = _binned(weights)
        level = bins[:, :-1].mean(-1)
        last = weights[:, -1]
        ratios = (self.repeats @ last) / (self.repeats @ level)

        # The last position has its own weight, which says nothing about its token.
        one_hot = F.one_hot(self.tokens[:, :-1], self.vocab_size).double()
        counts = one_hot.sum(1)
        totals = torch.einsum("bt,btv->bv", weights[:, :-1], one_hot)
        # Reads, and with them sums over paths, are negative in mirrored models.
        totals = totals * totals.sum().sign()
        once = torch.ones(1, len(weights), dtype=torch.float64)
        by_token = token_weights(totals, counts, once)[0]
        spread = token_weights(totals, counts, self.repeats).std(0)
        return PathAttention(
            name=name,
            layers=layers,
            profile=_profile(bins, self.repeats),
            by_token=tuple(by_token.tolist()),
            by_token_stderr=tuple(spread.tolist()),
            last=(last.mean() / level.mean()).item(),
            last_stderr=ratios.std().item(),
            total=weights.sum(-1).mean().item(),
            read=read.value,
            read_r2=read.r2,
        )


def _main(paths: Sequence[PathAttention], together: PathAttention | None) -> PathAttention:
    """All paths together, or the only one that is read, or the one through layer 2."""
    if together is not None:
        return together
    read = [path for path in paths if path.is_read]
    return read[0] if read else paths[0]


def _binned(weights: Float64[Tensor, "batch step"]) -> Float64[Tensor, "batch bin"]:
    """The mean over each eighth of the positions, for every sequence."""
    return torch.stack([part.mean(-1) for part in weights.tensor_split(N_BINS, dim=-1)], dim=-1)


def _profile(
    bins: Float64[Tensor, "batch bin"], repeats: Float64[Tensor, "sample batch"]
) -> Profile:
    """Means by position, relative to the first seven, with their uncertainty over sequences."""
    values = _relative(bins.mean(0))
    samples = _relative(repeats @ bins / repeats.sum(-1, keepdim=True))
    stderr = samples.std(0)
    away = (values - 1).abs()[:-1]
    half_width = NORMAL_95 * stderr[:-1]
    low = (away - half_width).clamp_min(0).max().item()
    high = (away + half_width).max().item()
    return Profile(
        values=tuple(values.tolist()),
        stderr=tuple(stderr.tolist()),
        flatness=away.max().item(),
        interval=(low, high),
    )


def _relative(means: Float64[Tensor, "*sample bin"]) -> Float64[Tensor, "*sample bin"]:
    return means / means[..., :-1].mean(-1, keepdim=True)


def _repeats(n_sequences: int) -> Float64[Tensor, "sample batch"]:
    """How often each sequence occurs in each bootstrap sample."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(n_sequences, (N_RESAMPLES, n_sequences), generator=generator)
    counts = torch.zeros(N_RESAMPLES, n_sequences, dtype=torch.float64)
    return counts.scatter_add_(1, drawn, torch.ones_like(counts))


def _from_uniform(weights: Float64[Tensor, "batch step"]) -> float:
    """Total variation from uniform attention over the positions with evidence."""
    shares = weights / weights.sum(-1, keepdim=True).clamp_min(1e-300)
    uniform = torch.full_like(shares, 1 / shares.shape[-1])
    return total_variation(shares, uniform).mean().item()
