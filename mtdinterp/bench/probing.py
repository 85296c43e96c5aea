"""Benchmark of the probes on models of the zoo, as `mtdinterp probe` runs them."""

from collections.abc import Callable
from functools import partial

from mtdinterp.bench.measure import Measurement, interleaved_seconds
from mtdinterp.checkpoints import load_checkpoint
from mtdinterp.explanation import explain
from mtdinterp.registry import PROBES
from mtdinterp.report.collect import run_probe

PROBED = ("disentangled-m4-T64", "disentangled-m5-T64", "standard-m4-T64", "disentangled-m3-T64-L5")


def all_probes(quick: bool) -> list[Measurement]:
    """The explanation, and every registered probe with its default settings."""
    lines = []
    for name in PROBED[:1] if quick else PROBED:
        checkpoint = load_checkpoint(name)
        model = checkpoint.model
        task = checkpoint.task
        explanation = explain(model, task)
        actions: dict[str, Callable[[], object]] = {"explain": partial(explain, model, task)}
        for probe_name, probe in PROBES.items():
            actions[probe_name] = partial(run_probe, probe, checkpoint, model, task, explanation)
        seconds = interleaved_seconds(actions, repeats=1)
        for action, value in seconds.items():
            lines.append(Measurement(f"{action}, {name}", value, "s"))
        total = sum(seconds.values())
        lines.append(Measurement(f"all probes, {name}", total, "s", aim=20, at_most=True))
    return lines
