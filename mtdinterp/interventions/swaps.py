"""Swap sites of a model between two sets of sequences, and, as a control, swap in wrong content.

`interchange` compares the resulting movements of the prediction with those of the algorithm.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float64, Int
from torch import Tensor
from transformer_lens.tools.analysis.interchange import (
    NormMatchedPlacebo,
    SubspaceInterchange,
    neuron_basis,
    random_basis,
)

from mtdinterp.interventions.edits import Edit, Source
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.patching import patch
from mtdinterp.interventions.places import hook_name
from mtdinterp.interventions.sites import ATTENTION, Site
from mtdinterp.models.lens import LensTransformer

RANDOM_SITES = 5
"""Draws of the random-site control."""


class Swaps:
    """Swaps at sites of one model, between fixed sequences and at fixed positions."""

    def __init__(
        self,
        model: LensTransformer,
        base: Int[Tensor, "batch pos"],
        source: Int[Tensor, "batch pos"],
        positions: Sequence[int],
        generator: torch.Generator,
    ) -> None:
        """
        Args:
            model: any hooked model.
            base: the sequences that the model runs on.
            source: the sequences that swapped values come from.
            positions: positions to swap at, for sites that are not only at the last one.
            generator: generator for the random sites.
        """
        self.model = model
        self.base = base
        self.source = source
        self.positions = list(positions)
        self.generator = generator
        self.before: Float64[Tensor, "batch vocab"] = patch(model, base, []).before.double()

    def swap(self, site: Site) -> Float64[Tensor, "batch vocab"]:
        """The movement of the prediction when a site has its value on the source."""
        return self._movement(site, self._values(site))

    def swap_mismatched(self, site: Site) -> Float64[Tensor, "batch vocab"]:
        """Like `swap`, with the value on the source of another pair."""
        return self._movement(site, self._values(site).roll(1, 0))

    def swap_mean(self, site: Site) -> Float64[Tensor, "batch vocab"]:
        """Like `swap`, with the mean over sources, which only removes the value on the base."""
        values = self._values(site)
        return self._movement(site, values.mean(0, keepdim=True).expand_as(values))

    def swap_random(self, site: Site) -> list[Float64[Tensor, "batch vocab"]]:
        """Movements when the site gets the wrong content, once per random site.

        Attention is replaced by that of another layer. In the stream, the activation moves as far
        as it does in the swap, but in random directions.
        """
        if site.hook == ATTENTION:
            return self._other_attention(site)
        return self._random_directions(site)

    def _other_attention(self, site: Site) -> list[Float64[Tensor, "batch vocab"]]:
        n_heads = self.model.layers[site.layer].attn.n_heads if site.head is None else 1
        movements = []
        for layer in range(len(self.model.blocks)):
            if layer == site.layer:
                continue
            attention = self._values(Site(ATTENTION, layer, site.at_last))
            if attention.shape[1] != n_heads:
                # Heads of different layers do not correspond, so each one gets the mean.
                attention = attention.mean(1, keepdim=True)
            movements.append(self._movement(site, attention))
        return movements

    def _random_directions(self, site: Site) -> list[Float64[Tensor, "batch vocab"]]:
        layer = self.model.layers[site.layer]
        existing = layer.writes if site.block is None else layer.reads
        columns = existing if site.block is None else self.model.stream[site.block]
        n_existing = existing.stop - existing.start
        n_columns = columns.stop - columns.start
        # A random subspace of most of the stream would contain most of the site.
        rank = min(n_columns, max(1, n_existing // 4))
        width = self.model.cfg.d_model
        swapped = SubspaceInterchange(neuron_basis(width, range(columns.start, columns.stop)))
        whole = replace(site, block=None)
        values = self._values(whole)
        movements = []
        for _ in range(RANDOM_SITES):
            seed = int(torch.randint(2**31, (1,), generator=self.generator))
            basis = torch.zeros(width, rank)
            basis[existing] = random_basis(n_existing, rank, seed)
            placebo = NormMatchedPlacebo(swapped, basis)
            movements.append(self._movement(whole, partial(_apply, placebo, values)))
        return movements

    def _values(self, site: Site) -> Tensor:
        """The activation of a site on the source, at the swapped positions."""
        name = hook_name(self.model, Edit(site.hook, "zero", layer=site.layer))
        value = activations(self.model, self.source, [name])[name]
        last = self.source.shape[1] - 1
        positions = torch.tensor([last] if site.at_last else self.positions)
        if site.hook == ATTENTION:
            heads = slice(None) if site.head is None else slice(site.head, site.head + 1)
            return value[:, heads, positions]
        columns = slice(None) if site.block is None else self.model.stream[site.block]
        return value[:, positions, columns]

    def _movement(self, site: Site, new: Source) -> Float64[Tensor, "batch vocab"]:
        edit = Edit(
            site.hook,
            new,
            position=[-1] if site.at_last else self.positions,
            head=site.head,
            block=site.block,
            layer=site.layer,
        )
        return patch(self.model, self.base, [edit]).after.double() - self.before


def _apply(placebo: Callable[[Tensor, Tensor], Tensor], values: Tensor, own: Tensor) -> Tensor:
    """A placebo as the function of an edit: it changes the model's own activation."""
    return placebo(own, values)
