"""Replace a layer's attention by the reference construction's, or by that of another model.

If a layer does what the construction's layer does, it still works with that attention: the KL to
the truth does not rise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import check_number, check_option
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.construction.base import LayerRole
from mtdinterp.criteria import SPARED
from mtdinterp.errors import NotApplicable
from mtdinterp.explanation import Explanation, explain
from mtdinterp.interventions.edits import Edit
from mtdinterp.interventions.indices import counted
from mtdinterp.interventions.patching import patch
from mtdinterp.interventions.reporting import unknown_constants
from mtdinterp.metrics import divergences, mean_stderr
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Heading, Table
from mtdinterp.readings import attention_of, probe_sequences
from mtdinterp.results import Result
from mtdinterp.tasks.base import Sample, Task

TRANSPLANTS = {
    "responsibilities": LayerRole.LAGS,
    "uniform": LayerRole.AVERAGE,
    "one_step": LayerRole.WEIGHTS,
}
"""Attention of the reference construction by name, with the role of the layers that have it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Transplant(Result):
    """KL to the truth with a layer's own attention, and with another attention in its place."""

    layer: int
    """The layer that gets the attention, from 0."""
    source: str
    """A short name for the attention's origin."""
    kl_before: float
    kl_after: float
    difference_stderr: float
    """Standard error of the mean difference over the same sequences."""
    kl_uniform: float
    """KL to the truth of uniform weights on the same sequences, as a control."""
    role: LayerRole | None = None
    """What the attention does in the reference construction; None if it is another model's."""
    n_heads: int = 1
    """Heads of the layer; all of them get the attention."""
    explanation: Explanation | None = field(default=None, repr=False)
    """What the reference construction was made from; None if the attention is another model's."""

    @property
    def difference(self) -> float:
        """How much the KL rises."""
        return self.kl_after - self.kl_before

    def summary(self) -> str:
        """Both KLs, and whether their difference is more than chance."""
        if not abs(self.difference) > 2 * self.difference_stderr:
            verdict = "within two standard errors"
        elif self.difference < 0:
            verdict = "an improvement"
        else:
            verdict = "a deterioration"
        return (
            f"Layer {self.layer + 1} with {self.source} attention: KL to the truth "
            f"{self.kl_before:.5f} -> {self.kl_after:.5f} "
            f"({self.difference:+.5f} ± {self.difference_stderr:.5f}, {verdict})."
        )

    def claims(self) -> tuple[Claim, ...]:
        """Whether the layer works with the attention that the reference construction has there.

        Attention of another model, or of a layer with another role, is an experiment and makes
        no claim.
        """
        if self.explanation is None or self.explanation.roles is None:
            return ()
        if self.role is not self.explanation.roles[self.layer]:
            return ()
        reason = ""
        if not self.kl_before < self.kl_uniform:
            reason = "the model predicts no better than uniform weights with its own attention"
        elif self.role is not None and self.role.depends_on_constants:
            reason = unknown_constants(self.explanation)
        allowed = SPARED * self.kl_before
        if math.isfinite(self.difference_stderr):
            allowed = max(allowed, 2 * self.difference_stderr)
        claim = Claim(
            claim=f"With the reference construction's attention in layer {self.layer + 1}, the KL "
            f"rises by at most {SPARED:.0%} or two standard errors",
            status=Status.UNDECIDABLE if reason else decide(self.difference <= allowed),
            evidence="KL to the truth after the transplant"
            + (f" into all {self.n_heads} heads" if self.n_heads > 1 else ""),
            number=f"{self.kl_after:.5f} ({self.difference:+.5f} ± {self.difference_stderr:.5f})",
            threshold=f"rises by at most {allowed:.5f}",
            control=f"its own attention {self.kl_before:.5f}, uniform weights "
            f"{self.kl_uniform:.5f}",
            n_sequences=self.n_sequences,
            seed=self.seed,
            reason=reason,
        )
        return (claim,)

    def blocks(self) -> list[Block]:
        """A table with one row; `transplant_blocks` makes one table of several results."""
        return transplant_blocks([self])


def transplant_blocks(results: Sequence[Transplant]) -> list[Block]:
    """One table of several transplants."""
    if not results:
        return []
    rows = []
    for found in results:
        what = found.source.replace("_", " ")
        if found.role is not None:
            what = f"{what}: {found.role.value}"
        row = (
            str(found.layer + 1),
            what,
            f"{found.kl_before:.5f}",
            f"{found.kl_after:.5f}",
            f"{found.difference:+.5f} ± {found.difference_stderr:.5f}",
            str(found.n_sequences),
        )
        rows.append(row)
    header = ("layer", "transplanted attention", "KL before", "KL after", "difference", "sequences")
    return [Heading("Transplanted attention"), Table(header, tuple(rows))]


def transplant_attention(
    model: LensTransformer,
    task: Task,
    data: Sample,
    layer: int,
    source: str | LensTransformer | None = None,
    beta: float | None = None,
    source_layer: int | None = None,
    *,
    seed: int = 0,
    explanation: Explanation | None = None,
) -> Transplant:
    """Replace a layer's attention and measure how the KL to the truth changes.

    Args:
        model: the model that gets the attention.
        task: the task that the sequences come from.
        data: sequences with their true next-token distributions.
        layer: the layer of `model`, from 0; negative numbers count from the end.
        source: None for the attention that the reference construction has in this layer. A name
            for the attention of its layer with that role: "responsibilities" (γ), "uniform" (over
            all positions with evidence) or "one_step" (softmax(β·Γ), or the weights of a deeper
            construction). Or a model that gives its own attention.
        beta: β of the reference construction; that of the explanation if None.
        source_layer: the layer that the attention comes from if `source` is a model; the same
            layer by default.
        seed: seed of the explanation.
        explanation: the explanation of `model` at the length of the sequences; computed with the
            seed if None.

    Returns:
        The KL to the truth before and after.

    Raises:
        NotApplicable: if no reference construction is known for the model, or if it has no layer
            with that role.
    """
    tokens = probe_sequences(model, task, data.tokens, 0, 0, least=1)
    target = counted("layer", layer, len(model.blocks), "expected a layer in")
    role = None
    if isinstance(source, LensTransformer):
        name = "another model's"
        giver = source
        given_layer = target if source_layer is None else source_layer
        explanation = None
    else:
        if source is not None:
            check_option("source", source, TRANSPLANTS)
        if explanation is None:
            explanation = explain(model, task, length=tokens.shape[1], seed=seed)
        giver = _reference(explanation, tokens.shape[1], beta)
        given_layer, role = _layer_with_role(explanation, source, target)
        name = source if source is not None else "reference"
    attention = _attention_of(giver, tokens, given_layer)
    if attention.shape[1] != model.layers[target].attn.n_heads:
        # Heads of different models do not correspond, so every head gets the mean.
        attention = attention.mean(1, keepdim=True)
    found = patch(model, tokens, [Edit("pattern", attention, layer=target)])
    before = divergences(data.next_probs, found.before)
    after = divergences(data.next_probs, found.after)
    evidence = task.evidence(tokens)
    uniform = divergences(data.next_probs, evidence.predict(evidence.uniform))
    return Transplant(
        layer=target,
        source=name,
        kl_before=before.mean().item(),
        kl_after=after.mean().item(),
        difference_stderr=mean_stderr(after - before),
        kl_uniform=uniform.mean().item(),
        role=role,
        n_heads=model.layers[target].attn.n_heads,
        explanation=explanation,
        n_sequences=len(tokens),
        seed=None,
    )


def _reference(explanation: Explanation, length: int, beta: float | None) -> LensTransformer:
    """The reference construction, with another β if one is given.

    Args:
        explanation: the model's explanation.
        length: length of the sequences that the reference construction must read.
        beta: β, or None for the explanation's constants.

    Returns:
        The reference construction.

    Raises:
        NotApplicable: if none is known, or if its algorithm has no β.
    """
    if explanation.length != length:
        raise ValueError(
            f"explanation: expected an explanation at the sequences' length {length}, got "
            f"{explanation.length}"
        )
    constants = dict(explanation.constants)
    if beta is not None:
        if "beta" not in constants:
            raise NotApplicable(
                f"beta: {explanation.algorithm.label} has no constant β; it has "
                f"{', '.join(constants)}"
            )
        constants["beta"] = check_number("beta", beta)
    reference = explanation.reference(constants)
    if reference is None:
        raise NotApplicable(
            "There is no reference construction to take attention from. "
            f"{explanation.no_implementation}"
        )
    return reference


def _layer_with_role(
    explanation: Explanation, source: str | None, target: int
) -> tuple[int, LayerRole]:
    """The layer of the reference construction that has the wanted attention, and its role.

    Args:
        explanation: with a reference construction.
        source: a name of TRANSPLANTS, or None for the role of the target layer.
        target: the layer that gets the attention; it is preferred if it has the role.

    Returns:
        A layer, from 0, and its role.
    """
    roles = explanation.roles or ()
    wanted = roles[target] if source is None else TRANSPLANTS[source]
    if roles[target] is wanted:
        return target, wanted
    if wanted not in roles:
        raise NotApplicable(f"source: the reference construction has no layer that {wanted.value}")
    return roles.index(wanted), wanted


def _attention_of(
    model: LensTransformer, tokens: Int[Tensor, "batch pos"], layer: int
) -> Float64[Tensor, "batch head query key"]:
    """A layer's attention on the sequences."""
    known = counted("source_layer", layer, len(model.blocks), "expected a layer in")
    found = attention_of(model, tokens, patterns=[known], last_only=False)
    return found.patterns[known].double()
