"""Causal abstraction: swap a variable between two sequences, in the model and in the algorithm, and
compare.

The model runs on a base sequence with one of its sites as it is on a source sequence; the
algorithm, with the constants recovered from the model, does the same with one of its variables. If
the site holds the variable, both outputs move alike: R² = 1 - Σ‖Δmodel - Δalgorithm‖² /
Σ‖Δalgorithm‖². Which site is best is decided on half of the pairs; what is reported of it comes
from the other half.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import torch
from jaxtyping import Float64, Int
from torch import Tensor
from transformer_lens.tools.analysis.interchange import (
    LearnedSubspace,
    NormMatchedPlacebo,
    SubspaceInterchange,
    neuron_basis,
    random_basis,
    run_with_intervention,
)

from mtdinterp.checks import ArrayLike, check_count, check_option
from mtdinterp.fitting import Evidence
from mtdinterp.interventions.algorithm import Algorithm, Variables, algorithm_of
from mtdinterp.interventions.edits import Edit, Source
from mtdinterp.interventions.hooking import activations
from mtdinterp.interventions.patching import patch
from mtdinterp.interventions.places import hook_name
from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.models import LensTransformer
from mtdinterp.readout import sequences
from mtdinterp.task import MTDTask

LEARNING_STEPS, LEARNING_RATE = 150, 0.05
RANDOM_SITES = 5
"""Draws of the random-site control."""


@dataclass(frozen=True)
class Site:
    """Where a variable may live: a layer's attention, what it writes, or a block before it, at some
    positions."""

    hook: str
    layer: int
    block: str | None
    at_last: bool
    """At the last position alone; else at every position that is swapped."""

    @property
    def name(self) -> str:
        if self.block is not None:
            return f"{self.block} before layer {self.layer + 1}"
        return {
            "pattern": f"attention of layer {self.layer + 1}",
            "attn_out": f"all that layer {self.layer + 1} writes",
        }[self.hook]


@dataclass(frozen=True)
class Learned:
    """A subspace that was trained to hold the variable, judged on pairs that it was not trained
    on."""

    rank: int
    r2: float
    control_r2: float
    """Of a subspace trained the same way towards other sequences' answers."""


@dataclass(frozen=True)
class Interchange:
    """How well the model's best site for a variable stands in for it; numbers are from pairs that
    did not choose it."""

    variable: str
    site: str
    r2: float
    kl: float
    """Mean KL(algorithm ‖ model), both with the swap."""
    control_r2: float
    """Of as far a move in random directions at the same point, or of another layer's attention: a
    random site."""
    mismatched_r2: float
    """Of the same site taken from another sequence than the algorithm's source."""
    mean_r2: float
    """Of the same site at its mean over sources: what is gained by just forgetting the base's
    value."""
    sites: dict[str, float]
    """R² of every site that was tried, on the pairs that chose."""
    algorithm: Algorithm
    learned: Learned | None

    def summary(self) -> str:
        lines = [
            f"{self.variable}: swapping {self.site} moves the output as the algorithm says with R² "
            f"{self.r2:.3f} "
            f"(random site {self.control_r2:.2f}, another source {self.mismatched_r2:.2f}, mean "
            f"{self.mean_r2:.2f}), KL {self.kl:.2e}."
        ]
        others = ", ".join(
            f"{name} {r2:.2f}" for name, r2 in self.sites.items() if name != self.site
        )
        if others:
            lines.append(f"  Other sites: {others}.")
        if not self.algorithm.identified:
            lines.append(
                "  The algorithm's constants are only partly determined by the model's "
                "predictions, and with "
                "them its answer."
            )
        if self.learned is not None:
            lines.append(
                f"  A learned subspace of rank {self.learned.rank}: R² {self.learned.r2:.3f} on "
                "new pairs "
                f"(control {self.learned.control_r2:.3f})."
            )
        return "\n".join(lines)


def interchange(
    model: LensTransformer,
    task: MTDTask,
    base: ArrayLike,
    source: ArrayLike,
    variable: str = "mean_responsibilities",
    *,
    learn_rank: int | None = None,
    seed: int = 0,
) -> Interchange:
    """Swap a variable of the algorithm from `source` into `base` at every site that may hold it;
    the best is reported.

    `responsibilities` are swapped at a random half of the positions (all of them would be Γ again),
    everything else at the last one. With `learn_rank` a subspace of the stream is trained to hold
    the variable as well.
    """
    first, second = (sequences(model, task, tokens, 0, 0, least=4) for tokens in (base, source))
    if first.shape != second.shape:
        raise ValueError(
            f"source: expected the base tokens' shape {list(first.shape)}, got {list(second.shape)}"
        )
    here, there = Evidence(task, first), Evidence(task, second)
    algorithm = algorithm_of(model, task, here.length, seed)
    check_option("variable", variable, algorithm.variables)
    sites = candidate_sites(model, variable)
    if not sites:
        raise ValueError(
            f"variable: a model of {len(model.blocks)} layers has no site for {variable}"
        )
    generator = torch.Generator().manual_seed(seed)
    n_steps = here.length - task.order
    steps = torch.randperm(n_steps, generator=generator)[: max(1, n_steps // 2)].sort().values
    swapped = _swap(algorithm, here, there, variable, steps)
    unswapped, answer = algorithm.predict(here), algorithm.predict(here, swapped)
    swap = _Swap(model, first, second, (steps + task.order).tolist(), generator)
    half = len(first) // 2
    choosing, judging = slice(0, half), slice(half, None)
    moves = {site: swap.change(site) for site in sites}
    tried = {
        site: _r2(move[choosing], (answer - unswapped)[choosing]) for site, move in moves.items()
    }
    best = max(
        tried, key=lambda site: round(tried[site], 2)
    )  # of equals the first: the named block
    wanted = (answer - unswapped)[judging]
    after = clip_to_distribution((swap.before + moves[best])[judging])[0]
    learned = None
    if learn_rank is not None:
        learned = _learn(model, first, second, variable, answer, unswapped, learn_rank, seed)
    return Interchange(
        variable,
        best.name,
        _r2(moves[best][judging], wanted),
        kl_divergence(answer[judging], after).mean().item(),
        control_r2=fmean(_r2(move[judging], wanted) for move in swap.random_changes(best)),
        mismatched_r2=_r2(swap.change(best, lambda value: value.roll(1, 0))[judging], wanted),
        mean_r2=_r2(
            swap.change(best, lambda value: value.mean(0, keepdim=True).expand_as(value))[judging],
            wanted,
        ),
        sites={site.name: found for site, found in tried.items()},
        algorithm=algorithm,
        learned=learned,
    )


def candidate_sites(model: LensTransformer, variable: str) -> list[Site]:
    """Where a model of this depth may keep the variable: where the constructions do, and the same
    in later layers."""
    n_layers = len(model.blocks)
    last = n_layers - 1
    blocks, layers, kinds = {
        "responsibilities": (("L1.lag", "responsibilities"), [0], ("pattern", "attn_out")),
        "mean_responsibilities": (
            ("L2.L1.lag", "mean_responsibilities"),
            range(1, last),
            ("attn_out",),
        ),
        "first_weights": (("L3.lag",), range(2, last), ("pattern", "attn_out")),
        "reweighted": (("L4.L1.lag",), range(2, last), ("attn_out",)),
        "weights": ((), range(1, n_layers), ("pattern",)),
    }[variable]
    at_last = variable != "responsibilities"
    written = {
        "responsibilities": 0,
        "mean_responsibilities": 1,
        "first_weights": 2,
        "reweighted": 3,
    }
    sites = [
        Site("resid_pre", written[variable] + 1, block, at_last)
        for block in blocks
        if block in model.stream and written[variable] < last
    ]
    return sites + [
        Site(kind, layer, None, at_last) for layer in layers if layer < n_layers for kind in kinds
    ]


def _swap(
    algorithm: Algorithm, here: Evidence, there: Evidence, variable: str, steps: Tensor
) -> Variables:
    """The variable as the source has it; responsibilities only at some steps."""
    value = algorithm.run(there)[variable]
    if variable == "responsibilities":
        mixed = here.responsibilities.clone()
        mixed[:, steps] = value[:, steps]
        value = mixed
    return {variable: value}


class _Swap:
    """Swaps at sites of a model, between fixed sequences and positions."""

    def __init__(
        self,
        model: LensTransformer,
        base: Tensor,
        source: Tensor,
        positions: Sequence[int],
        generator: torch.Generator,
    ) -> None:
        self.model, self.base, self.source, self.generator = model, base, source, generator
        self.positions = list(positions)
        self.before = patch(model, base, []).before.double()

    def change(
        self, site: Site, of: Callable[[Tensor], Tensor] = lambda value: value
    ) -> Float64[Tensor, "batch vocab"]:
        """How the prediction moves when the site is as on the source, or as some function of
        that."""
        taken = of(self._taken(site, self.source))
        return self._moved(
            site, taken[..., self.model.stream[site.block]] if site.block else taken, site.block
        )

    def random_changes(self, site: Site) -> list[Float64[Tensor, "batch vocab"]]:
        """The same at random sites: other layers' attention, or as far a move in random directions
        of the stream."""
        if site.hook == "pattern":
            others = [layer for layer in range(len(self.model.blocks)) if layer != site.layer]
            return [
                self._moved(
                    site, self._taken(Site("pattern", layer, None, site.at_last), self.source), None
                )
                for layer in others
            ]
        layer = self.model.layers[site.layer]
        exist: slice = layer.reads if site.block else layer.writes
        columns = self.model.stream[site.block] if site.block else exist
        taken, width = self._taken(site, self.source), self.model.cfg.d_model
        reference = SubspaceInterchange(neuron_basis(width, range(columns.start, columns.stop)))
        rank = min(columns.stop - columns.start, max(1, (exist.stop - exist.start) // 4))
        changes = []
        for _ in range(RANDOM_SITES):
            basis = torch.zeros(width, rank)
            seed = int(torch.randint(2**31, (1,), generator=self.generator))
            basis[exist] = random_basis(exist.stop - exist.start, rank, seed)
            placebo = NormMatchedPlacebo(reference, basis)
            changes.append(self._moved(site, partial(_towards, placebo, taken), None))
        return changes

    def _taken(self, site: Site, tokens: Tensor) -> Tensor:
        """What the site's hook point shows at the swapped positions."""
        name = hook_name(self.model, Edit(site.hook, "zero", layer=site.layer))
        value = activations(self.model, tokens, [name])[name]
        rows = torch.tensor([tokens.shape[1] - 1] if site.at_last else self.positions)
        return value[:, :, rows] if site.hook == "pattern" else value[:, rows]

    def _moved(self, site: Site, new: Source, block: str | None) -> Float64[Tensor, "batch vocab"]:
        edit = Edit(
            site.hook,
            new,
            layer=site.layer,
            block=block,
            position=[-1] if site.at_last else self.positions,
        )
        return patch(self.model, self.base, [edit]).after.double() - self.before


def _towards(move: NormMatchedPlacebo, taken: Tensor, own: Tensor) -> Tensor:
    return move(own, taken)


def _r2(change: Float64[Tensor, "batch vocab"], wanted: Float64[Tensor, "batch vocab"]) -> float:
    """Not a number where the algorithm does not move."""
    total = wanted.square().sum().item()
    return 1 - (change - wanted).square().sum().item() / total if total > 0 else math.nan


@torch.enable_grad()
def _learn(
    model: LensTransformer,
    base: Int[Tensor, "batch pos"],
    source: Int[Tensor, "batch pos"],
    variable: str,
    answer: Tensor,
    unswapped: Tensor,
    rank: int,
    seed: int,
) -> Learned:
    """Train a subspace of the stream at the last position, before the layer that reads the
    variable, on half the pairs.

    The loss is the squared distance of the predictions from the algorithm's with the swap.
    """
    if variable == "responsibilities":
        raise ValueError(
            "learn_rank: a learned subspace is for variables at the last position, not "
            "responsibilities"
        )
    layer = {"mean_responsibilities": 2, "first_weights": 3, "reweighted": 4}.get(
        variable, len(model.blocks) - 1
    )
    name, reads = f"blocks.{layer}.hook_resid_pre", model.layers[layer].reads
    if check_count("learn_rank", rank) > reads.stop:
        raise ValueError(
            f"learn_rank: expected at most the stream's {reads.stop} dimensions there, got {rank}"
        )
    half, last = len(base) // 2, base.shape[1] - 1
    held = activations(model, source, [name])[name][:, last]
    # What comes before the layer does not change: runs start from the stream that enters it.
    streams = activations(model, base, [name])[name][..., reads]
    positions = torch.full((len(base),), last)
    other = torch.randperm(len(base), generator=torch.Generator().manual_seed(seed))

    def outputs(stream: Tensor) -> Tensor:
        return model.to_probabilities(
            model.run_layers(stream, layer, last_only=True, watched=True)[:, -1]
        )

    def moved(subspace: LearnedSubspace, pairs: slice) -> Tensor:
        return run_with_intervention(
            model,
            name,
            SubspaceInterchange(subspace),
            streams[pairs],
            held[pairs],
            outputs,
            positions=positions[pairs],
        )

    def trained(targets: Tensor) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            subspace = LearnedSubspace(model.cfg.d_model, rank).to(held)
        optimizer = torch.optim.Adam(subspace.parameters(), lr=LEARNING_RATE)
        for _ in range(LEARNING_STEPS):
            optimizer.zero_grad()
            (moved(subspace, slice(0, half)) - targets[:half].to(held)).square().sum(
                -1
            ).mean().backward()
            optimizer.step()
        new = slice(half, None)
        with torch.no_grad():
            change = moved(subspace, new) - outputs(streams[new])
        return _r2(change.double(), answer[new] - unswapped[new])

    learning = {parameter: parameter.requires_grad for parameter in model.parameters()}
    try:
        model.requires_grad_(False)
        return Learned(rank, trained(answer), trained(unswapped + (answer - unswapped)[other]))
    finally:
        for parameter, value in learning.items():
            parameter.requires_grad_(value)
