"""Benchmark of the probes on models of the zoo."""

from collections.abc import Callable
from functools import partial

from mtdinterp.bench.measure import Measurement, interleaved_seconds
from mtdinterp.checkpoints import load_checkpoint
from probes import (
    compare_attention,
    decode_latents,
    identify_algorithm,
    recover_beta,
    recover_transition,
    trace_development,
)

PROBED = ("disentangled-m4-T64", "disentangled-m5-T64", "standard-m4-T64", "disentangled-m3-T64-L5")
MODEL_PROBES = (
    recover_transition,
    recover_beta,
    compare_attention,
    decode_latents,
    identify_algorithm,
)
"""Probes of a model and its task; `trace_development` takes a checkpoint."""


def all_probes(quick: bool) -> list[Measurement]:
    """Every probe with its default settings."""
    lines = []
    for name in PROBED[:1] if quick else PROBED:
        checkpoint = load_checkpoint(name)
        actions: dict[str, Callable[[], object]] = {}
        for probe in MODEL_PROBES:
            actions[probe.__name__] = partial(probe, checkpoint.model, checkpoint.task)
        actions["trace_development"] = partial(trace_development, checkpoint)
        seconds = interleaved_seconds(actions, repeats=1)
        for probe_name, value in seconds.items():
            lines.append(Measurement(f"{probe_name}, {name}", value, "s"))
        total = sum(seconds.values())
        lines.append(Measurement(f"all probes, {name}", total, "s", aim=20, at_most=True))
    return lines
