"""Causal abstraction: swap a variable between two sequences, in the model and in the algorithm, and compare.

The model runs on a base sequence with one of its sites as it is on a source sequence; the algorithm, with the constants
recovered from the model, does the same with one of its variables. If the site holds the variable, both outputs move
alike: R² = 1 - Σ‖Δmodel - Δalgorithm‖² / Σ‖Δalgorithm‖². The control swaps as much at a random place.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float64, Int
from torch import Tensor
from transformer_lens.tools.analysis.interchange import (
    LearnedSubspace,
    SubspaceInterchange,
    random_basis,
    run_with_intervention,
)

from mtdinterp.checks import ArrayLike, check_count, check_option
from mtdinterp.fitting import Evidence
from mtdinterp.interventions.algorithm import Algorithm, Variables, algorithm_of
from mtdinterp.interventions.edits import Edit, Source, activations, hook_name
from mtdinterp.interventions.patching import patch
from mtdinterp.metrics import clip_to_distribution, kl_divergence
from mtdinterp.models import LensTransformer
from mtdinterp.task import MTDTask

LEARNING_STEPS, LEARNING_RATE = 150, 0.05


@dataclass(frozen=True)
class Site:
    """Where a variable may live: a layer's attention or what it shows of the stream, at some positions."""

    hook: str
    layer: int
    block: str | None
    at_last: bool
    """At the last position alone; else at every position that is swapped."""

    @property
    def name(self) -> str:
        if self.block is not None:
            return f"{self.block} before layer {self.layer + 1}"
        return {"pattern": f"attention of layer {self.layer + 1}",
                "attn_out": f"all that layer {self.layer + 1} writes"}[self.hook]


@dataclass(frozen=True)
class Learned:
    """A subspace that was trained to hold the variable, judged on pairs that it was not trained on."""

    rank: int
    r2: float
    control_r2: float
    """Of a subspace trained the same way towards other sequences' answers."""


@dataclass(frozen=True)
class Interchange:
    """How well the model's best site for a variable stands in for it."""

    variable: str
    site: str
    r2: float
    kl: float
    """Mean KL(algorithm ‖ model), both with the swap."""
    control_r2: float
    sites: dict[str, float]
    """R² of every site that was tried."""
    algorithm: Algorithm
    learned: Learned | None

    def summary(self) -> str:
        others = ", ".join(f"{name} {r2:.3f}" for name, r2 in self.sites.items() if name != self.site)
        lines = [f"{self.variable}: swapping {self.site} moves the output as the algorithm says with R² {self.r2:.3f} "
                 f"(control {self.control_r2:.3f}), KL {self.kl:.2e}."]
        if others:
            lines.append(f"  Other sites: {others}.")
        if self.learned is not None:
            lines.append(f"  A learned subspace of rank {self.learned.rank}: R² {self.learned.r2:.3f} on new pairs "
                         f"(control {self.learned.control_r2:.3f}).")
        return "\n".join(lines)


def interchange(
    model: LensTransformer, task: MTDTask, base: ArrayLike, source: ArrayLike,
    variable: str = "mean_responsibilities", *, learn_rank: int | None = None, seed: int = 0,
) -> Interchange:
    """Swap a variable of the algorithm from `source` into `base` at every site that may hold it; the best is reported.

    `responsibilities` are swapped at a random half of the positions (all of them would be Γ again), everything else at
    the last one. With `learn_rank` a subspace of the stream is trained to hold the variable as well.
    """
    first, second = model.check_tokens(base), model.check_tokens(source)
    if first.shape != second.shape:
        raise ValueError(f"source: expected the base tokens' shape {list(first.shape)}, got {list(second.shape)}")
    here, there = Evidence(task, first), Evidence(task, second)
    algorithm = algorithm_of(model, here)
    check_option("variable", variable, algorithm.variables)
    generator = torch.Generator().manual_seed(seed)
    n_steps = here.length - task.order
    steps = torch.randperm(n_steps, generator=generator)[: max(1, n_steps // 2)].sort().values
    swapped = _swap(algorithm, here, there, variable, steps)
    answer, change = algorithm.predict(here, swapped), algorithm.predict(here, swapped) - algorithm.predict(here)
    positions = (steps + task.order).tolist()
    tried = {}
    for site in candidate_sites(model, variable):
        before, after = _at_site(model, first, second, site, positions)
        _, controlled = _at_site(model, first, second, site, positions, control=generator)
        tried[site] = (_r2(after - before, change), _r2(controlled - before, change),
                       kl_divergence(answer, clip_to_distribution(after)[0]).mean().item())
    best = max(tried, key=lambda site: tried[site][0])
    learned = None
    if learn_rank is not None:
        learned = _learn(model, first, second, variable, answer, algorithm.predict(here), learn_rank, seed)
    return Interchange(variable, best.name, tried[best][0], tried[best][2], tried[best][1],
                       {site.name: found[0] for site, found in tried.items()}, algorithm, learned)


def candidate_sites(model: LensTransformer, variable: str) -> list[Site]:
    """Where the constructions keep the variable, as far as the model has such places."""
    last = len(model.blocks) - 1
    blocks, layer, attends = {
        "responsibilities": (("L1.lag", "responsibilities"), 0, True),
        "mean_responsibilities": (("L2.L1.lag", "mean_responsibilities"), 1, False),
        "first_weights": (("L3.lag",), 2, True),
        "reweighted": (("L4.L1.lag",), 3, False),
        "weights": ((), last, True),
    }[variable]
    at_last = variable != "responsibilities"
    sites = [Site("resid_pre", layer + 1, block, at_last) for block in blocks if block in model.stream]
    sites += [Site("pattern", layer, None, at_last)] if attends else []
    sites += [Site("attn_out", layer, None, at_last)] if variable != "weights" else []
    return sites


def _swap(algorithm: Algorithm, here: Evidence, there: Evidence, variable: str, steps: Tensor) -> Variables:
    """The variable as the source has it; responsibilities only at some steps."""
    value = algorithm.run(there)[variable]
    if variable == "responsibilities":
        mixed = here.responsibilities.clone()
        mixed[:, steps] = value[:, steps]
        value = mixed
    return {variable: value}


def _at_site(
    model: LensTransformer, base: Tensor, source: Tensor, site: Site, positions: Sequence[int],
    control: torch.Generator | None = None,
) -> tuple[Float64[Tensor, "batch vocab"], Float64[Tensor, "batch vocab"]]:
    """Outputs before and after the swap; with a control, of as much at a random place."""
    edit = Edit(site.hook, "zero", layer=site.layer, block=None if control else site.block,
                position=-1 if site.at_last else list(positions))
    name = hook_name(model, edit)
    taken = activations(model, source, [name])[name]
    rows = torch.tensor([base.shape[1] - 1] if site.at_last else list(positions))
    if site.hook == "pattern":
        new: Source = _shuffled_keys(taken[:, :, rows], rows, control) if control else taken[:, :, rows]
    elif control is None:
        new = taken[:, rows][..., model.stream[site.block] if site.block else slice(None)]
    else:
        move, target = _random_move(model, site, taken, control), taken[:, rows]
        new = lambda own: move(own, target)  # noqa: E731
    found = patch(model, base, [Edit(site.hook, new, layer=site.layer, block=edit.block, position=edit.position)])
    return found.before.double(), found.after.double()


def _random_move(
    model: LensTransformer, site: Site, taken: Tensor, generator: torch.Generator
) -> SubspaceInterchange:
    """A swap in random directions of the columns that exist at the site: as many as its block has, or an eighth."""
    block = cast(Any, model.blocks[site.layer])
    columns: slice = block.reads if site.block else block.writes
    width = columns.stop - columns.start
    rank = model.stream.width_of(site.block) if site.block else max(1, width // 8)
    basis = torch.zeros(taken.shape[-1], rank).to(taken)
    basis[columns] = random_basis(width, rank, seed=int(torch.randint(2**31, (1,), generator=generator))).to(taken)
    return SubspaceInterchange(basis)


def _shuffled_keys(pattern: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
    """The same attention on random keys of those that each query sees."""
    shuffled = torch.zeros_like(pattern)
    for index, row in enumerate(rows.tolist()):
        order = torch.randperm(row + 1, generator=generator)
        shuffled[:, :, index, : row + 1] = pattern[:, :, index, order]
    return shuffled


def _r2(change: Float64[Tensor, "batch vocab"], wanted: Float64[Tensor, "batch vocab"]) -> float:
    return 1 - (change - wanted).square().sum().item() / wanted.square().sum().clamp_min(1e-300).item()


def _learn(
    model: LensTransformer, base: Int[Tensor, "batch pos"], source: Int[Tensor, "batch pos"], variable: str,
    answer: Tensor, unswapped: Tensor, rank: int, seed: int,
) -> Learned:
    """Train a subspace of the stream at the last position, before the layer that reads the variable, on half the pairs.

    The loss is the squared distance of the outputs from the algorithm's with the swap.
    """
    if variable == "responsibilities":
        raise ValueError("learn_rank: a learned subspace is for variables at the last position, not responsibilities")
    check_count("learn_rank", rank)
    layer = {"mean_responsibilities": 2, "first_weights": 3, "reweighted": 4}.get(variable, len(model.blocks) - 1)
    name, reads = f"blocks.{layer}.hook_resid_pre", cast(Any, model.blocks[layer]).reads
    half, last = len(base) // 2, base.shape[1] - 1
    held = activations(model, source, [name])[name][:, last]
    # What comes before the layer does not change: runs start from the stream that enters it.
    streams = activations(model, base, [name])[name][..., reads]
    positions = torch.full((len(base),), last)
    other = torch.randperm(len(base), generator=torch.Generator().manual_seed(seed))

    def outputs(stream: Tensor) -> Tensor:
        return model.to_probabilities(model.run_layers(stream, layer, last_only=True, watched=True)[:, -1])

    def moved(subspace: LearnedSubspace, pairs: slice) -> Tensor:
        return run_with_intervention(model, name, SubspaceInterchange(subspace), streams[pairs], held[pairs], outputs,
                                     positions=positions[pairs])

    def trained(targets: Tensor) -> float:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            subspace = LearnedSubspace(model.cfg.d_model, rank).to(held)
        optimizer = torch.optim.Adam(subspace.parameters(), lr=LEARNING_RATE)
        for _ in range(LEARNING_STEPS):
            optimizer.zero_grad()
            (moved(subspace, slice(0, half)) - targets[:half].to(held)).square().sum(-1).mean().backward()
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
