"""What is measured: one function a group, each returning lines of the table."""

import io
import os
from collections.abc import Callable
from contextlib import nullcontext, redirect_stderr
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformer_lens import patching

from mtdinterp.bench.measure import Measurement, interleaved_seconds, peak_megabytes
from mtdinterp.bench.reference import disentangled_forward, standard_forward
from mtdinterp.bench.workbench import click_to_bars
from mtdinterp.checkpoints import load_checkpoint
from mtdinterp.checks import check_option
from mtdinterp.estimators import exact_posterior_mean, gibbs_posterior_mean
from mtdinterp.interventions import patch_sweep
from mtdinterp.models import (
    DisentangledConfig,
    DisentangledTransformer,
    LensTransformer,
    StandardConfig,
    StandardTransformer,
    prediction_loss,
)
from mtdinterp.models.attention import eager_relative_attention
from mtdinterp.models.loss import loss_of_outputs
from mtdinterp.native import use_kernels
from mtdinterp.native.kernels import machine_rates
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.task import MTDTask, Sample
from probes import (
    compare_attention,
    decode_latents,
    identify_algorithm,
    recover_beta,
    recover_transition,
    trace_development,
)

VOCAB_SIZE = 5


def sampler(quick: bool) -> list[Measurement]:
    """Tokens a second of `MTDTask.sample`, latent lags and true next distribution included."""
    task = MTDTask.random(VOCAB_SIZE, order=4, seed=0)
    seconds = interleaved_seconds(
        {"sample": lambda: task.sample(4096, 64, seed=1)}, 10 if quick else 40
    )
    rate = 4096 * 64 / seconds["sample"] / 1e6
    return [Measurement("sampler, batch 4096, T = 64", rate, "million tokens/s", aim=50)]


def posterior(quick: bool) -> list[Measurement]:
    """The exact posterior mean against the paper's Gibbs sampler (200 + 2000), over one batch."""
    lines = []
    for order, length, batch_size in (
        (3, 64, 128),
        (4, 64, 128),
        (5, 64, 16),
        (3, 256, 64),
        (4, 256, 16),
        (5, 256, 4),
    ):
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
            Measurement(
                f"posterior mean, {where}", seconds["exact"] / batch_size * 1e3, "ms/sequence"
            ),
            Measurement(
                f"Gibbs 200+2000, {where}", seconds["gibbs"] / batch_size * 1e3, "ms/sequence"
            ),
            Measurement(
                f"posterior mean over Gibbs, {where}",
                seconds["gibbs"] / seconds["exact"],
                "× faster",
                aim,
            ),
            Measurement(
                f"posterior mean against tolerance 1e-11, {where}",
                _max_error(found["exact"], truth),
                "",
            ),
            Measurement(f"largest error of Gibbs, {where}", _max_error(found["gibbs"], truth), ""),
        ]
    return lines


STEPS = (
    ("disentangled", 64, 128, {"eager": 2.0, "fused": 10.0}),
    ("disentangled", 256, 32, {"eager": 2.0, "fused": 15.0}),
    ("standard", 64, 128, {"eager": None, "fused": 5.0}),
)
"""Architecture, length, batch size, and how many times faster than the reference the project aims
to be."""


def training_step(quick: bool) -> list[Measurement]:
    """Forward and backward with the loss at the last position, against gather-and-einsum at all
    positions."""
    lines = []
    rates = machine_rates() if use_kernels() else None
    for name, length, batch_size, aims in STEPS:
        data = MTDTask.random(VOCAB_SIZE, order=4, seed=0).sample(batch_size, length, seed=1)
        model, reference = _model(name, length)
        actions = {
            "reference": _reference_step(model, reference, data),
            "eager": _eagerly(_step(model, data)),
            "fused": _step(model, data),
        }
        seconds = interleaved_seconds(actions, 5 if quick else 20)
        where = f"{name}, T = {length}, batch {batch_size}"
        lines += [
            Measurement(f"{kind} step, {where}", seconds[kind] * 1e3, "ms") for kind in actions
        ]
        for kind, aim in aims.items():
            ratio = seconds["reference"] / seconds[kind]
            lines.append(
                Measurement(f"{kind} step over reference, {where}", ratio, "× faster", aim)
            )
        if rates is not None:
            least = _least_seconds(model, batch_size, length, rates)
            lines += [
                Measurement(f"arithmetic alone at the machine's rates, {where}", least * 1e3, "ms"),
                Measurement(
                    f"fused step over arithmetic alone, {where}",
                    seconds["fused"] / least,
                    "× slower",
                ),
            ]
        for kind, action in actions.items():
            lines.append(
                Measurement(
                    f"peak memory of the {kind} step, {where}", peak_megabytes(action), "MB"
                )
            )
    if rates is not None:
        lines += [
            Measurement("fused multiply-adds", rates[0] / 1e9, "billion/s"),
            Measurement("exponentials", rates[1] / 1e9, "billion/s"),
        ]
    return lines


def _least_seconds(
    model: LensTransformer, batch_size: int, length: int, rates: tuple[float, float]
) -> float:
    """What the multiplications and exponentials of one step take at full rate, loss at the last
    position.

    Counted are products with attention, forward and backward, over keys that are not in the future,
    and the products with the layers' matrices; nothing is recomputed, and one-hot tokens need no
    gradient.
    """
    products = exponentials = 0
    layers = model.folded_layers()
    for index, layer in enumerate(layers):
        heads, d_in, _ = layer.M.shape
        d_rel, first, last = layer.values.shape[-1], index == 0, index == len(layers) - 1
        queries, pairs = (1, length) if last else (length, length * (length + 1) // 2)
        forward = 3 * d_in + d_rel  # scores by content and by position, content, position
        backward = (
            3 * d_in + 2 * d_rel + (0 if first else 3 * d_in)
        )  # dA, dq, both tables; dp, dk and dv
        projections = d_in**2 + (0 if layer.mix is None else d_in * layer.d_out)
        products += heads * (
            pairs * (forward + backward) + queries * projections * (2 if first else 3)
        )
        exponentials += heads * pairs
    return batch_size * (products / rates[0] + exponentials / rates[1])


def long_step(quick: bool) -> list[Measurement]:
    """One step on the paper's longest sequences."""
    length, batch_size = (496, 32) if quick else (1984, 128)
    data = MTDTask.random(VOCAB_SIZE, order=4, seed=0).sample(batch_size, length, seed=1)
    step = _step(_model("disentangled", length)[0], data)
    where = f"disentangled, T = {length}, batch {batch_size}"
    peak = peak_megabytes(step)
    seconds = interleaved_seconds({"step": step}, 1)["step"]
    return [
        Measurement(f"fused step, {where}", seconds * 1e3, "ms"),
        Measurement(f"peak memory of the fused step, {where}", peak, "MB", aim=4000, at_most=True),
    ]


Output = Callable[[Any, Tensor], Tensor]
"""The output at the last position, from a model and tokens."""


def _model(name: str, length: int) -> tuple[LensTransformer, Output]:
    """A fresh model, and its last output by the obvious implementation at all positions."""
    if name == "disentangled":
        config = DisentangledConfig(vocab_size=VOCAB_SIZE, length=length, d_rel=4)
        return DisentangledTransformer(config), lambda model, tokens: disentangled_forward(
            model, tokens
        )[:, -1]
    standard = StandardTransformer(StandardConfig(vocab_size=VOCAB_SIZE, length=length))
    return standard, lambda model, tokens: standard_forward(model, tokens)[:, -1]


def _reference_step(model: LensTransformer, output: Output, data: Sample) -> Callable[[], None]:
    """One forward and backward pass of the mean squared error at the last position."""
    target, parameters = data.next_probs.float(), tuple(model.parameters())

    def step() -> None:
        torch.autograd.grad(loss_of_outputs(output(model, data.tokens), target, "mse"), parameters)

    return step


def _step(model: LensTransformer, data: Sample) -> Callable[[], None]:
    """The same by `prediction_loss`, as training does it."""
    target, parameters = data.next_probs.float(), tuple(model.parameters())

    def step() -> None:
        with torch_on_one_thread() if use_kernels() else nullcontext():
            torch.autograd.grad(prediction_loss(model, data.tokens, target), parameters)

    return step


def _eagerly(action: Callable[[], Any]) -> Callable[[], Any]:
    """The action without compiled kernels."""

    def run() -> Any:
        before = os.environ.get("MTDINTERP_KERNEL")
        os.environ["MTDINTERP_KERNEL"] = "eager"
        try:
            return action()
        finally:
            if before is None:
                del os.environ["MTDINTERP_KERNEL"]
            else:
                os.environ["MTDINTERP_KERNEL"] = before

    return run


def hooks(quick: bool) -> list[Measurement]:
    """What the hook points cost when nobody listens, and what a full cache costs, with eager
    attention."""
    task = MTDTask.random(VOCAB_SIZE, order=4, seed=0)
    tokens = task.sample(128, 64, seed=1).tokens
    model = DisentangledTransformer(
        DisentangledConfig(vocab_size=VOCAB_SIZE, length=64, d_rel=4)
    ).eval()

    @torch.no_grad()
    def bare() -> Tensor:
        """The same arithmetic without modules or hook points."""
        h = model.embed.identity[tokens]
        for attn in model.attention:
            x = h[:, :, None]
            q = torch.einsum("bphd,hde->bphe", x, attn.W_A)
            written = torch.cat(eager_relative_attention(q, x, x, x, attn.R_A, attn.R_V), dim=-1)
            h = torch.cat([h, written.flatten(2)], dim=-1)
        return h @ model.W_U

    with torch.no_grad():
        plain, caching = (
            _eagerly(lambda: model(tokens)),
            _eagerly(lambda: model.run_with_cache(tokens)),
        )
        seconds = interleaved_seconds(
            {"bare": bare, "plain": plain, "caching": caching}, 10 if quick else 40
        )
    names = {"plain": "idle hook points, forward at T = 64", "caching": "caching every hook point"}
    return [
        Measurement(name, 100 * (seconds[key] / seconds["bare"] - 1), "% on top")
        for key, name in names.items()
    ]


PROBED = ("disentangled-m4-T64", "disentangled-m5-T64", "standard-m4-T64", "disentangled-m3-T64-L5")


def all_probes(quick: bool) -> list[Measurement]:
    """Every probe with its own settings on models of the zoo."""
    asked = (
        recover_transition,
        recover_beta,
        compare_attention,
        decode_latents,
        identify_algorithm,
    )
    lines = []
    for name in PROBED[:1] if quick else PROBED:
        checkpoint = load_checkpoint(name)
        actions: dict[str, Callable[[], object]] = {
            probe.__name__: partial(probe, checkpoint.model, checkpoint.task) for probe in asked
        }
        actions["trace_development"] = partial(trace_development, checkpoint)
        seconds = interleaved_seconds(actions, 1)
        lines += [Measurement(f"{probe}, {name}", value, "s") for probe, value in seconds.items()]
        lines.append(
            Measurement(f"all probes, {name}", sum(seconds.values()), "s", aim=20, at_most=True)
        )
    return lines


def sweep(quick: bool) -> list[Measurement]:
    """A patch sweep of one pair of sequences, batched, against TransformerLens' one patch at a
    time."""
    lines = []
    for name in ("disentangled-m4-T64", "standard-m4-T64"):
        checkpoint = load_checkpoint(name)
        model = checkpoint.model
        clean, corrupted = (checkpoint.task.sample(1, 64, seed=seed).tokens for seed in (1, 2))
        with torch.no_grad():
            _, cache = model.run_with_cache(clean)
            theirs = {
                "resid_pre": patching.get_act_patch_resid_pre,
                "head": patching.get_act_patch_attn_head_out_by_pos,
            }
            for kind, one_at_a_time in theirs.items():
                actions: dict[str, Callable[[], object]] = {
                    "batched": partial(patch_sweep, model, clean, corrupted, kind),
                    "one at a time": partial(_silently, one_at_a_time, model, corrupted, cache),
                }
                seconds = interleaved_seconds(actions, 1 if quick else 3)
                ratio = seconds["one at a time"] / seconds["batched"]
                lines += [
                    Measurement(f"patch sweep over {kind}, {name}", seconds["batched"] * 1e3, "ms"),
                    Measurement(f"the same over one at a time, {name}", ratio, "× faster", aim=10),
                ]
    return lines


def _silently(
    one_at_a_time: Callable[..., Tensor], model: LensTransformer, tokens: Tensor, cache: Any
) -> Tensor:
    """TransformerLens' sweep without its progress bar."""
    with redirect_stderr(io.StringIO()):
        return one_at_a_time(model, tokens, cache, lambda outputs: outputs[:, -1].mean())


def _max_error(estimate: Tensor, truth: Tensor) -> float:
    return (estimate - truth).abs().max().item()


GROUPS: dict[str, Callable[[bool], list[Measurement]]] = {
    "sampler": sampler,
    "posterior": posterior,
    "training-step": training_step,
    "long-step": long_step,
    "hooks": hooks,
    "probes": all_probes,
    "sweep": sweep,
    "app": click_to_bars,
}


def run_group(name: str, quick: bool = False) -> list[Measurement]:
    """Measure one group; `quick` repeats less and leaves out the slow sizes."""
    return GROUPS[check_option("group", name, GROUPS)](quick)
