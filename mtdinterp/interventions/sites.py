"""Where a model may keep a variable of its algorithm.

Candidates come from two places. If a construction is known for the model, its named blocks come
first. The others follow from the algorithm and the depth alone, so every architecture has them:
the attention of layers, and what layers write.
"""

from dataclasses import dataclass

from mtdinterp.algorithms.base import Algorithm, Variable
from mtdinterp.construction.base import Implementation
from mtdinterp.explanation import Explanation
from mtdinterp.models.lens import LensTransformer

STREAM, ATTENTION, WRITES = "resid_pre", "pattern", "attn_out"
"""Short names of the hook points where sites are."""


@dataclass(frozen=True)
class Site:
    """A part of a model's activations that may hold a variable."""

    hook: str
    """STREAM, ATTENTION or WRITES."""
    layer: int
    """The layer of the hook point, from 0."""
    at_last: bool
    """Whether only the last position is swapped; otherwise every position of the swap."""
    block: str | None = None
    """A named block of the stream before the layer."""
    head: int | None = None
    """One head's attention, from 0; the attention of all heads if None."""

    @property
    def name(self) -> str:
        """The site in a few words; layers and heads count from 1."""
        layer = self.layer + 1
        if self.hook == STREAM:
            return f"{self.block} before layer {layer}"
        if self.hook == WRITES:
            return f"all that layer {layer} writes"
        if self.head is None:
            return f"attention of layer {layer}"
        return f"attention of layer {layer}, head {self.head + 1}"


def candidate_sites(
    model: LensTransformer, explanation: Explanation, variable: Variable
) -> list[Site]:
    """The sites that may hold a variable, the most specific ones first.

    Args:
        model: any hooked model.
        explanation: the algorithm and, if one is known, how the architecture carries it out.
        variable: one of the algorithm's variables.

    Returns:
        Named blocks, then attention and writes by layer. Single heads come before all heads of
        their layer together. Empty if the model is too shallow for the variable.
    """
    named = _named_sites(model, explanation.implementation, variable)
    return named + _general_sites(model, explanation.algorithm, variable)


def _named_sites(
    model: LensTransformer, implementation: Implementation | None, variable: Variable
) -> list[Site]:
    """The blocks in which the construction keeps the variable; with several heads, one per head."""
    if implementation is None or variable.name not in implementation.sites:
        return []
    layer = implementation.sites[variable.name].layer
    blocks = implementation.blocks_of(model.stream, variable.name)
    return [Site(STREAM, layer, not variable.per_step, block=block) for block in blocks]


def _general_sites(model: LensTransformer, algorithm: Algorithm, variable: Variable) -> list[Site]:
    """The attention and the writes of the layers that can hold a variable in any architecture."""
    at_last = not variable.per_step
    is_result = variable is algorithm.variables[-1]
    sites: list[Site] = []
    for layer in _possible_layers(len(model.blocks), algorithm, variable):
        if variable.as_attention or is_result:
            sites += _attention_sites(model, layer, at_last)
        # The layer that attends with the weights already writes the prediction.
        if not is_result:
            sites.append(Site(WRITES, layer, at_last))
    return sites


def _possible_layers(n_layers: int, algorithm: Algorithm, variable: Variable) -> range:
    """The layers, from 0, that can compute a variable and leave a layer to read it.

    One layer computes one variable from those before it, so the variable number k (from 0) cannot
    be ready before layer k. A trained model may merge the later ones (Γ itself can stand in for
    w¹), so from the third variable on the third layer is the earliest.
    """
    order = algorithm.variables.index(variable)
    last = n_layers - 1
    if variable.per_step:
        return range(order, min(order + 1, n_layers))
    if variable is algorithm.variables[-1]:
        return range(1, n_layers)
    return range(min(order, 2), last)


def _attention_sites(model: LensTransformer, layer: int, at_last: bool) -> list[Site]:
    """Each head's attention if there are several, then the attention of the whole layer."""
    n_heads = model.layers[layer].attn.n_heads
    sites = []
    if n_heads > 1:
        sites = [Site(ATTENTION, layer, at_last, head=head) for head in range(n_heads)]
    sites.append(Site(ATTENTION, layer, at_last))
    return sites
