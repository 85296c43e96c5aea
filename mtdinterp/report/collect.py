"""Measure everything that a report says about one model: scores, probes, interventions."""

import inspect
import json
from collections.abc import Callable, Iterable
from typing import Any

from mtdinterp.checkpoints import Checkpoint
from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.errors import CannotCompute, PluginFailed
from mtdinterp.explanation import Explanation, explain
from mtdinterp.models.lens import LensTransformer
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.pages.page import panel
from mtdinterp.plugins import Probe
from mtdinterp.providers import failures_named
from mtdinterp.readings import Predictions
from mtdinterp.registry import PROBES
from mtdinterp.report.document import claims_table, result_blocks
from mtdinterp.report.findings import Findings, result_claims
from mtdinterp.report.intervening import QUICK_LEAVES_OUT, run_interventions
from mtdinterp.report.scores import held_out_scores
from mtdinterp.results import check_result, to_plain
from mtdinterp.tasks import Task

LONG = 128
"""Fewer sequences are scored if they are longer than this, to bound the time of a report."""
QUICK_SEQUENCES = 256
"""Sequences of a quick report, unless another number is given."""

Stage = Callable[[str], None]
"""A function that is called with the name of the next stage."""


def _silent(name: str) -> None:
    pass


@torch_on_one_thread()
def collect(
    source: Checkpoint | LensTransformer,
    task: Task | None = None,
    *,
    n_sequences: int | None = None,
    quick: bool = False,
    seed: int = 0,
    stage: Stage = _silent,
) -> Findings:
    """Measure everything about a model.

    Runs on one thread. The work is thousands of small operations: a second thread does not speed
    them up, and makes them ten times slower while another program uses that core.

    Args:
        source: a checkpoint, or a model together with its task.
        task: the model's task; the checkpoint's own if None.
        n_sequences: the number of sequences for scores, explanation and probes. By default each
            uses its own number, or `QUICK_SEQUENCES` in a quick report. Interventions draw their
            own.
        quick: whether to leave out `QUICK_LEAVES_OUT`.
        seed: seed for drawing all sequences.
        stage: called with the name of each stage before it starts.

    Returns:
        The findings.
    """
    model, known_task, details = _opened(source, task)
    n_scored = 1024 if model.config.length <= LONG else 256
    if quick and n_sequences is None:
        n_sequences = QUICK_SEQUENCES
    settings = _settings(n_sequences, seed)
    stage("scores")
    scores = held_out_scores(model, known_task, n_sequences or n_scored)
    stage("explanation")
    explanation = explain(model, known_task, **settings)
    probes, not_computed, failed = run_probes(
        source, model, known_task, explanation, stage=stage, **settings
    )
    stage("steering and transplants" if quick else "interventions")
    interventions, missing = run_interventions(model, known_task, explanation, seed, quick)
    return Findings(
        model=model,
        task=known_task,
        seed=seed,
        explanation=explanation,
        scores=scores,
        probes=probes,
        interventions=interventions,
        not_computed=not_computed | missing,
        failed=failed,
        left_out=QUICK_LEAVES_OUT if quick else (),
        weights_hash=tensors_digest(model.state_dict()),
        **details,
    )


def collect_probes(
    checkpoint: Checkpoint,
    names: Iterable[str] | None = None,
    *,
    n_sequences: int | None = None,
    seed: int = 0,
    stage: Stage = _silent,
) -> Findings:
    """The explanation and the probes alone: enough for a verdict on predictions and mechanism.

    Args:
        checkpoint: the checkpoint to probe.
        names: names of the probes; all that apply if None.
        n_sequences: number of sequences to draw; by default each probe uses its own number.
        seed: seed for drawing all sequences.
        stage: called with the name of each stage before it starts.

    Returns:
        The findings, without scores and interventions.
    """
    stage("explanation")
    model = checkpoint.model
    settings = _settings(n_sequences, seed)
    explanation = explain(model, checkpoint.task, **settings)
    probes, missing, failed = run_probes(
        checkpoint, model, checkpoint.task, explanation, names, stage, **settings
    )
    return Findings(
        name=checkpoint.path.name,
        model=model,
        task=checkpoint.task,
        seed=seed,
        explanation=explanation,
        probes=probes,
        not_computed=missing,
        failed=failed,
    )


def _settings(n_sequences: int | None, seed: int) -> dict[str, Any]:
    """Arguments of probes; if no number of sequences is given, each probe uses its own."""
    if n_sequences is None:
        return {"seed": seed}
    return {"seed": seed, "n_sequences": n_sequences}


def _opened(
    source: Checkpoint | LensTransformer, task: Task | None
) -> tuple[LensTransformer, Task, dict[str, Any]]:
    """The model, its task, and what is known about where they come from."""
    if isinstance(source, Checkpoint):
        details = {"name": source.path.name, "path": source.path, "config": source.config}
        return source.model, source.task if task is None else task, details
    if task is None:
        raise ValueError("task: expected the model's task")
    return source, task, {"name": source.config.architecture}


def run_probes(
    source: Checkpoint | LensTransformer,
    model: LensTransformer,
    task: Task,
    explanation: Explanation,
    names: Iterable[str] | None = None,
    stage: Stage = _silent,
    **settings: Any,
) -> tuple[dict[str, Any], dict[str, str], tuple[str, ...]]:
    """Some probes, or every registered one that applies.

    Args:
        source: where the model comes from; some probes need a checkpoint.
        model: the model to probe.
        task: the model's task.
        explanation: the explanation of the model, for probes that take one.
        names: of the probes; all that apply if None.
        stage: called with the name of each probe before it runs.
        **settings: such as `seed` and `n_sequences`; see `run_probe`.

    Returns:
        Results by probe, why the others could not be computed, and the names of those whose plugin
        failed.
    """
    results: dict[str, Any] = {}
    not_computed: dict[str, str] = {}
    failed: list[str] = []
    for name in PROBES if names is None else names:
        probe = PROBES[name]
        if names is None and probe.needs == "checkpoint" and not _was_trained(source):
            continue  # a construction was never trained
        stage(name)
        try:
            results[name] = run_probe(probe, source, model, task, explanation, **settings)
        except CannotCompute as error:
            not_computed[name] = str(error)
            if isinstance(error, PluginFailed):
                failed.append(name)
    return results, not_computed, tuple(failed)


def _was_trained(source: Checkpoint | LensTransformer) -> bool:
    """Whether there is a training history, or snapshots of the training."""
    return isinstance(source, Checkpoint) and bool(source.history or source.snapshots)


def run_probe(
    probe: Probe,
    source: Checkpoint | LensTransformer,
    model: LensTransformer,
    task: Task,
    explanation: Explanation | None,
    **settings: Any,
) -> Any:
    """One probe with the arguments that it takes.

    Args:
        probe: the registered probe.
        source: where the model comes from.
        model: the model to probe.
        task: the model's task.
        explanation: passed on if the probe takes one.
        **settings: such as `seed` and `n_sequences`; passed on if the probe takes them.

    Returns:
        The probe's result.
    """
    provider = PROBES.provider(probe.name)
    with failures_named("probe", probe.name, provider):
        result = _run_function(probe, source, model, task, explanation, **settings)
        if provider is not None:
            # A mistake in a plugin's summary, claims or blocks must not end the whole report.
            check_result(probe.name, result)
            _try_to_show(result)
    return result


def _try_to_show(result: Any) -> None:
    """Make the HTML and JSON of a result once, so that its mistakes show now and not at the end."""
    panel(result_blocks(result))
    panel([claims_table(result_claims(result))])
    json.dumps(to_plain(result))


def _run_function(
    probe: Probe,
    source: Checkpoint | LensTransformer,
    model: LensTransformer,
    task: Task,
    explanation: Explanation | None,
    **settings: Any,
) -> Any:
    if probe.needs == "checkpoint":
        return probe.function(source)
    if probe.needs == "predictions":
        settings["length"] = model.config.length
    subject = model if probe.needs == "model" else Predictions(model)
    accepted = inspect.signature(probe.function).parameters
    known = {**settings, "explanation": explanation}
    arguments = {name: value for name, value in known.items() if name in accepted}
    return probe.function(subject, task, **arguments)
