"""What is measured: one function a group, each returning lines of the table."""

from collections.abc import Callable

import torch
from torch import Tensor

from mtdinterp.bench.measure import Measurement, interleaved_seconds, peak_megabytes
from mtdinterp.bench.reference import disentangled_forward
from mtdinterp.checks import check_option
from mtdinterp.estimators import exact_posterior_mean, gibbs_posterior_mean
from mtdinterp.models import DisentangledConfig, DisentangledTransformer, relative_attention
from mtdinterp.task import MTDTask

VOCAB_SIZE = 5


def sampler(quick: bool) -> list[Measurement]:
    """Tokens a second of `MTDTask.sample`, latent lags and true next distribution included."""
    task = MTDTask.random(VOCAB_SIZE, order=4, seed=0)
    seconds = interleaved_seconds({"sample": lambda: task.sample(4096, 64, seed=1)}, 10 if quick else 40)
    rate = 4096 * 64 / seconds["sample"] / 1e6
    return [Measurement("sampler, batch 4096, T = 64", rate, "million tokens/s", aim=20)]


def posterior(quick: bool) -> list[Measurement]:
    """The exact posterior mean against the paper's Gibbs sampler (200 + 2000), over one batch."""
    lines = []
    for order, length, batch_size in ((3, 64, 128), (4, 64, 128), (5, 64, 16), (3, 256, 64), (4, 256, 16),
                                      (5, 256, 4)):
        if quick and (order == 5 or length == 256):
            continue
        task = MTDTask.random(VOCAB_SIZE, order, seed=0)
        tokens = task.sample(batch_size, length, seed=1).tokens
        problem = (task.transition, tokens, order)
        found: dict[str, Tensor] = {}

        def exact(problem: tuple = problem, found: dict = found) -> None:
            found["exact"] = exact_posterior_mean(*problem)

        def gibbs(problem: tuple = problem, found: dict = found) -> None:
            found["gibbs"] = gibbs_posterior_mean(*problem)

        seconds = interleaved_seconds({"exact": exact, "gibbs": gibbs}, 2 if quick else 3)
        truth = exact_posterior_mean(*problem, tolerance=1e-11)
        where = f"m = {order}, T = {length}"
        aim = 20.0 if length == 64 and order < 5 else None
        lines += [
            Measurement(f"exact Bayes, {where}", seconds["exact"] / batch_size * 1e3, "ms/sequence"),
            Measurement(f"Gibbs 200+2000, {where}", seconds["gibbs"] / batch_size * 1e3, "ms/sequence"),
            Measurement(f"exact Bayes over Gibbs, {where}", seconds["gibbs"] / seconds["exact"], "× faster", aim),
            Measurement(f"largest error of exact Bayes, {where}", _max_error(found["exact"], truth), ""),
            Measurement(f"largest error of Gibbs, {where}", _max_error(found["gibbs"], truth), ""),
        ]
    return lines


def training_step(quick: bool) -> list[Measurement]:
    """Forward and backward with the loss at the last position, against gather-and-einsum at all positions."""
    lines = []
    for length, batch_size in ((64, 128), (256, 32)):
        task = MTDTask.random(VOCAB_SIZE, order=4, seed=0)
        data = task.sample(batch_size, length, seed=1)
        target = data.next_probs.float()
        model = DisentangledTransformer(DisentangledConfig(vocab_size=VOCAB_SIZE, length=length, d_rel=4))
        tokens = data.tokens

        def step(forward: Callable[[], Tensor], model: torch.nn.Module = model, target: Tensor = target) -> None:
            model.zero_grad(set_to_none=True)
            (forward() - target).square().sum(-1).mean().backward()

        def reference(model: DisentangledTransformer = model, tokens: Tensor = tokens) -> Tensor:
            return disentangled_forward(model, tokens)[:, -1]

        def ours(model: DisentangledTransformer = model, tokens: Tensor = tokens) -> Tensor:
            return model(tokens, last_only=True)

        actions = {"reference": lambda step=step, f=reference: step(f), "model": lambda step=step, f=ours: step(f)}
        seconds = interleaved_seconds(actions, 5 if quick else 20)
        where = f"T = {length}, batch {batch_size}"
        lines += [
            Measurement(f"reference step, {where}", seconds["reference"] * 1e3, "ms"),
            Measurement(f"training step, {where}", seconds["model"] * 1e3, "ms"),
            Measurement(f"training step over reference, {where}", seconds["reference"] / seconds["model"],
                        "× faster", aim=2.0),
            Measurement(f"peak memory of the reference, {where}", peak_megabytes(actions["reference"]), "MB"),
            Measurement(f"peak memory of the step, {where}", peak_megabytes(actions["model"]), "MB"),
        ]
    return lines


def hooks(quick: bool) -> list[Measurement]:
    """What the hook points cost when nobody listens, and what a full cache costs."""
    task = MTDTask.random(VOCAB_SIZE, order=4, seed=0)
    tokens = task.sample(128, 64, seed=1).tokens
    model = DisentangledTransformer(DisentangledConfig(vocab_size=VOCAB_SIZE, length=64, d_rel=4)).eval()

    @torch.no_grad()
    def bare() -> Tensor:
        """The same arithmetic without modules or hook points."""
        h = model.embed.identity[tokens]
        for attn in model.attention:
            x = h[:, :, None]
            parts = relative_attention(torch.einsum("bphd,hde->bphe", x, attn.W_A), x, x, x, attn.R_A, attn.R_V)
            h = torch.cat([h, torch.cat(parts, dim=-1).flatten(2)], dim=-1)
        return h @ model.W_U

    with torch.no_grad():
        seconds = interleaved_seconds(
            {"bare": bare, "model": lambda: model(tokens), "cache": lambda: model.run_with_cache(tokens)},
            10 if quick else 40,
        )
    return [
        Measurement("idle hook points, forward at T = 64", 100 * (seconds["model"] / seconds["bare"] - 1), "% slower"),
        Measurement("caching every hook point", 100 * (seconds["cache"] / seconds["bare"] - 1), "% slower"),
    ]


def _max_error(estimate: Tensor, truth: Tensor) -> float:
    return (estimate - truth).abs().max().item()


GROUPS: dict[str, Callable[[bool], list[Measurement]]] = {
    "sampler": sampler,
    "posterior": posterior,
    "training-step": training_step,
    "hooks": hooks,
}


def run_group(name: str, quick: bool = False) -> list[Measurement]:
    """Measure one group; `quick` repeats less and leaves out the slow sizes."""
    return GROUPS[check_option("group", name, GROUPS)](quick)
