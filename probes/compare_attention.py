"""Does each head attend like the reference construction on the same sequences?

The reference construction has the constants of the model's explanation. Distances are total
variation: 0 for the same attention, 1 for disjoint ones. The construction is exact at the last
position only, so later layers are compared there; layer 1 is compared wherever all lags exist.
A model without a reference construction gets the same table without distances.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from mtdinterp.checks import ArrayLike
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.construction.base import LayerRole
from mtdinterp.criteria import FALLS_R2, FAR, NEAR, NEARER
from mtdinterp.evidence import Evidence
from mtdinterp.explanation import Explanation, explain
from mtdinterp.formatting import r2_text, with_error
from mtdinterp.metrics import total_variation
from mtdinterp.models.attention import attention_by_offset
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Map, Maps, Point, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import Slope, attention_of, fit_slope, probe_sequences, readable_sequences
from mtdinterp.readings.mechanism import lag_offsets
from mtdinterp.readings.regression import varying
from mtdinterp.results import Result
from mtdinterp.tasks import Task

MAP_POSITIONS = 64
"""Attention maps show at most this many of the last positions."""

NO_LAGS = (
    "Mass on lags and correlation with γ do not apply: this task has components that no single "
    "position shows."
)
"""Why nothing is said about lags."""


@dataclass(frozen=True, eq=False)
class HeadComparison:
    """One head's attention next to the reference construction's; means over sequences."""

    layer: int
    """The number of the layer, from 1."""
    head: int
    """The number of the head, from 1."""
    n_heads: int
    """The number of heads in the layer."""
    role: LayerRole | None
    """What the layer does in the reference construction, if there is one."""
    total_variation: Float64[Tensor, " query"]
    """Total variation from the reference construction, by query position; NaN without one."""
    distance: float
    """Its mean over the positions that matter: those with all lags in layer 1, the last one in
    later layers."""
    uniform_distance: float
    """The control: the same distance for uniform attention over all visible positions."""
    mass_on_lags: float
    """Attention on the lags: those of each token in layer 1, those of the next token later."""
    responsibility_correlation: float
    """In layer 1, the correlation of its normalised attention over the lags with γ; else NaN."""
    distance_from_uniform: float
    """Distance of the last query from uniform attention over positions with evidence."""
    falls_with: Slope | None
    """A re-weighting layer: slope of its last query's log-attention on w¹·γ_i over positions,
    which is -a in the construction."""

    @property
    def name(self) -> str:
        """The layer, and the head if there are several."""
        return f"layer {self.layer}" + (f", head {self.head}" if self.n_heads > 1 else "")

    @property
    def near(self) -> bool:
        """Whether the head attends like the reference construction."""
        return self.distance < NEAR and self.distance < NEARER * self.uniform_distance


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """One head's attention on one sequence, and the reference construction's next to it."""

    layer: int
    head: int
    own: Float[Tensor, "query key"]
    ideal: Float[Tensor, "query key"] | None


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionComparison(Result):
    """All heads of all layers, and the construction that they were compared with."""

    layers: tuple[HeadComparison, ...]
    """One entry per head, in the order of the layers."""
    construction: str
    """The algorithm of the reference construction; empty without one."""
    no_construction: str
    """Why there is no reference construction, in one sentence; empty if there is one."""
    constants: dict[str, float]
    fitted: bool
    """Whether the constants were fitted to the model."""
    constants_text: str
    """The constants in words, with where they come from."""
    at_bound: tuple[str, ...]
    """Constants that ended on a bound of their range: the predictions do not determine them."""
    maps: tuple[AttentionMap, ...]
    """Attention on the first sequence, over its last positions."""
    map_tokens: tuple[int, ...]
    """The tokens of the maps."""
    order: int
    """The number of lags."""

    def summary(self) -> str:
        title = "Attention, without a reference construction:"
        if self.construction:
            title = f"Attention compared with {self.construction} ({self.constants_text}):"
        lines = [
            title,
            "  layer          total variation (uniform's)  mass on lags  from uniform  "
            "correlation with γ",
        ]
        for head in self.layers:
            lines.append(_table_line(head))
            if head.falls_with is not None:
                lines.append("         " + _fall_text(head.falls_with))
        if not any(math.isfinite(head.mass_on_lags) for head in self.layers):
            lines.append(f"  {NO_LAGS}")
        if self.no_construction:
            return "\n".join([*lines, f"  {self.no_construction}"])
        near = [head.name for head in self.layers if head.near]
        far = [head.name for head in self.layers if head.distance > FAR]
        closest = "; ".join(near) if near else "none"
        rule = f"below {NEAR:g}, and below {NEARER:.0%} of uniform's"
        lines.append(f"  Near the reference construction ({rule}): {closest}.")
        if far:
            lines.append(f"  Far from it (above {FAR:g}): {'; '.join(far)}.")
        return "\n".join(lines)

    def claims(self) -> tuple[Claim, ...]:
        numbers = sorted({head.layer for head in self.layers})
        return tuple(self._layer_claim(number) for number in numbers)

    def _layer_claim(self, number: int) -> Claim:
        heads = [head for head in self.layers if head.layer == number]
        best = heads[0]
        if self.construction:
            best = min(heads, key=lambda head: head.distance)
        status = decide(best.near)
        reason = ""
        if self.no_construction:
            reason = self.no_construction.rstrip(".")
        elif not self.fitted:
            reason = "the constants come from the task, not from this model"
        elif self.at_bound and best.role is not None and best.role.depends_on_constants:
            reason = f"the fit of {', '.join(self.at_bound)} ended at the bound of its range"
        if reason:
            status = Status.UNDECIDABLE
        several = best.n_heads > 1
        which = f" (head {best.head})" if several else ""
        subject = f"The nearest head of layer {number}: its" if several else f"Layer {number}'s"
        number_text = "—" if self.no_construction else f"{best.distance:.3f}{which}"
        return Claim(
            claim=f"{subject} attention is within {NEAR:g} of the reference construction's",
            status=status,
            evidence="Total variation between the two",
            number=number_text,
            threshold=f"< {NEAR:g} and < {NEARER:.0%} of uniform attention's",
            control="—" if self.no_construction else f"uniform {best.uniform_distance:.3f}",
            n_sequences=self.n_sequences,
            seed=self.seed,
            reason=reason,
        )

    def blocks(self) -> list[Block]:
        shown = len(self.map_tokens)
        about = (
            f"One sequence, its last {shown} positions. All maps share one scale and are coloured "
            "by the square root of the attention."
        )
        if self.construction:
            about += (
                f" The reference construction is {self.construction} with {self.constants_text}. "
                "Outlined: the lags (layer 1) or the last query (averaging layers). After layer 1 "
                "the construction is exact at the last query only."
            )
        blocks: list[Block] = [Text((about,), "soft")]
        if self.no_construction:
            blocks.append(Text((self.no_construction,)))
        for found, head in zip(self.maps, self.layers, strict=True):
            blocks.append(self._map_block(found, head))
        return blocks

    def _map_block(self, found: AttentionMap, head: HeadComparison) -> Maps:
        size = len(self.map_tokens)
        first = len(head.total_variation) - size
        outlines: tuple[tuple[Point, ...], ...] = ()
        if head.role is not None:
            outlines = (_outline(head.role, size, self.order),)
        sides = {f"model, {head.name}": found.own}
        if found.ideal is not None:
            sides[f"reference construction, layer {head.layer}"] = found.ideal
        panels = []
        for title, values in sides.items():
            panels.append(
                Map(
                    title,
                    values,
                    first_row=first,
                    first_column=first,
                    outlines=outlines,
                )
            )
        note = ""
        if math.isfinite(head.mass_on_lags):
            note = f"{head.mass_on_lags:.0%} of the attention is on the lags."
        if found.ideal is not None:
            note = (
                f"Total variation {head.distance:.3f} (uniform attention "
                f"{head.uniform_distance:.3f}). {note}"
            )
        title = head.name[0].upper() + head.name[1:]
        return Maps(title, tuple(panels), 1.0, "query", "key", note=note)


def _table_line(head: HeadComparison) -> str:
    rho = head.responsibility_correlation
    correlation = "" if math.isnan(rho) else f"{rho:.3f}"
    mass = f"{head.mass_on_lags:.3f}" if math.isfinite(head.mass_on_lags) else "—"
    distance = "—"
    if math.isfinite(head.distance):
        distance = f"{head.distance:.3f} ({head.uniform_distance:.3f})"
    name = f"{head.layer}" + (f", head {head.head}" if head.n_heads > 1 else "")
    return (
        f"  {name:<14} {distance:<28} {mass:<13} {head.distance_from_uniform:<13.3f} {correlation}"
    ).rstrip()


def _fall_text(slope: Slope) -> str:
    sure = slope.r2 >= FALLS_R2 and slope.value < -2 * slope.stderr
    verdict = "it falls, as a second step requires" if sure else "no sign of a second step"
    return (
        f"log-attention on w¹·γ: slope {with_error(slope.value, slope.stderr)}, R² "
        f"{r2_text(slope.r2)}: {verdict} (needed: R² ≥ {FALLS_R2:g}, and a slope below minus two "
        "standard errors)"
    )


def _outline(role: LayerRole, size: int, order: int) -> tuple[Point, ...]:
    """The part of a map that matters: the lags of every query, or the last query (in part)."""
    if role.counts_everywhere and size > order + 1:
        return (0, 1), (size - 1, size), (size - 1 - order, size), (0, order + 1)
    left = size - order if role.reads_next_lags else 0
    return (left, size - 1), (size, size - 1), (size, size), (left, size)


@register_probe(
    "compare_attention",
    label="How far is each head's attention from the reference construction's?",
    rank=40,
)
def compare_attention(
    model: LensTransformer,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    n_sequences: int = 256,
    seed: int = 0,
    explanation: Explanation | None = None,
) -> AttentionComparison:
    """Compare every head's attention with that of the reference construction.

    Args:
        model: any hooked model.
        task: the model's task.
        tokens: sequences [batch, pos] to compare on, of which at most about 256 are used; drawn
            from the task if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.
        explanation: the model's explanation at this length, if already known.

    Returns:
        One comparison per head.
    """
    sequence = readable_sequences(probe_sequences(model, task, tokens, n_sequences, seed))
    length = sequence.shape[1]
    if explanation is None or explanation.length != length:
        explanation = explain(model, task, length=length, seed=seed)
    reference = explanation.reference()
    evidence = task.evidence(sequence)
    layers = range(len(model.blocks))
    # All queries, not only the last one, because the maps show them too.
    own_patterns = attention_of(model, sequence, patterns=layers, last_only=False).patterns
    ideal_patterns: dict[int, Tensor] = {}
    if reference is not None:
        found = attention_of(reference, sequence, patterns=layers, last_only=False)
        ideal_patterns = found.patterns
    heads = []
    maps = []
    shown = slice(-min(MAP_POSITIONS, length), None)
    for layer in layers:
        role = None if explanation.roles is None else explanation.roles[layer]
        n_heads = own_patterns[layer].shape[1]
        ideal = None
        ideal_map = None
        if layer in ideal_patterns:
            # All built-in constructions have one head per layer, so the mean is that head.
            ideal = ideal_patterns[layer].double().mean(1)
            ideal_map = ideal[0, shown, shown]
        for head in range(n_heads):
            own = own_patterns[layer][:, head].double()
            fall = None
            if role is LayerRole.REWEIGHT:
                fall = _fall(model, sequence, task, evidence, explanation, layer, head)
            compare = _HeadComparer(task, evidence, layer, head, n_heads, role)
            heads.append(compare(own, ideal, fall))
            maps.append(AttentionMap(layer + 1, head + 1, own[0, shown, shown], ideal_map))
    return AttentionComparison(
        layers=tuple(heads),
        construction="" if reference is None else explanation.algorithm.label,
        no_construction=explanation.no_implementation,
        constants=explanation.constants,
        fitted=explanation.fitted,
        constants_text=f"{explanation.describe_constants()}, {explanation.source}",
        at_bound=explanation.at_bound,
        maps=tuple(maps),
        map_tokens=tuple(sequence[0, shown].tolist()),
        order=task.n_components,
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


@dataclass(frozen=True, eq=False)
class _HeadComparer:
    """Compares one head's attention with the reference construction's layer."""

    task: Task
    evidence: Evidence
    layer: int
    head: int
    n_heads: int
    role: LayerRole | None

    def __call__(
        self,
        own: Float64[Tensor, "batch query key"],
        ideal: Float64[Tensor, "batch query key"] | None,
        fall: Slope | None,
    ) -> HeadComparison:
        warm_up = self.task.warm_up
        everywhere = self.layer == 0 and (self.role is None or self.role.counts_everywhere)
        counts = slice(warm_up, None) if everywhere else slice(-1, None)
        missing = torch.full_like(own[0, :, 0], math.nan)
        distances = missing if ideal is None else total_variation(own, ideal).mean(0)
        visible = torch.ones_like(own[0]).tril()
        uniform = visible / visible.sum(-1, keepdim=True)
        control = missing if ideal is None else total_variation(uniform, ideal).mean(0)
        mass, correlation = self._on_lags(own, everywhere)
        averaged = torch.zeros_like(own[:, -1])
        averaged[:, warm_up:] = 1 / self.evidence.n_steps
        return HeadComparison(
            layer=self.layer + 1,
            head=self.head + 1,
            n_heads=self.n_heads,
            role=self.role,
            total_variation=distances,
            distance=distances[counts].mean().item(),
            uniform_distance=control[counts].mean().item(),
            mass_on_lags=mass,
            responsibility_correlation=correlation,
            distance_from_uniform=total_variation(own[:, -1], averaged).mean().item(),
            falls_with=fall,
        )

    def _on_lags(
        self, own: Float64[Tensor, "batch query key"], everywhere: bool
    ) -> tuple[float, float]:
        """Attention on the lags, and its correlation with γ in layer 1."""
        offsets = lag_offsets(self.task)
        if offsets is None:
            return math.nan, math.nan
        by_offset = attention_by_offset(own[:, None])[:, 0]
        if not everywhere:
            return by_offset[:, -1, offsets].sum(-1).mean().item(), math.nan
        sources = [offset + 1 for offset in offsets]
        lags = by_offset[:, self.task.warm_up :, sources]
        shares = lags / lags.sum(-1, keepdim=True).clamp_min(1e-12)
        correlation = _correlation(shares, self.evidence.responsibilities())
        return lags.sum(-1).mean().item(), correlation


def _fall(
    model: LensTransformer,
    tokens: Int[Tensor, "batch pos"],
    task: Task,
    evidence: Evidence,
    explanation: Explanation,
    layer: int,
    head: int,
) -> Slope:
    """How the last query's log-attention falls with w¹·γ_i over the positions with evidence."""
    values = explanation.algorithm.run(evidence, **explanation.constants)
    explained = torch.einsum("btg,bg->bt", values["responsibilities"], values["first_weights"])
    logs = attention_of(model, tokens, log_at_last=[layer], last_only=False).log_at_last[layer]
    by_position = logs[:, head].flip(-1)[:, task.warm_up :]
    # Scores that depend on the position alone do not re-weight evidence, so each position's mean
    # over sequences is subtracted on both sides.
    return fit_slope(varying(explained), varying(by_position))


def _correlation(x: Float[Tensor, "*shape"], y: Float[Tensor, "*shape"]) -> float:
    return torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1].item()
