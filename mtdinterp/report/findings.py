"""Everything a report says about one checkpoint, measured once: probes, interventions, scores and
pictures' data."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

import probes
from mtdinterp.checkpoint_files import short_name
from mtdinterp.checkpoints import Checkpoint
from mtdinterp.checkpoints.digests import tensors_digest
from mtdinterp.fitting import FAMILIES, Evidence
from mtdinterp.interventions import (
    Circuit,
    DoseResponse,
    Interchange,
    SweepResult,
    Transplant,
    dose_response,
    interchange,
    minimal_circuit,
    patch_sweep,
    transplant_attention,
)
from mtdinterp.interventions.algorithm import ONE_STEP, TWO_STEP
from mtdinterp.metrics import Estimate, Score, divergences, paired_ratio, score
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.readout import attention, predictions
from mtdinterp.task import Sample
from mtdinterp.training.evaluation import held_out_data
from probes.compare_attention import construction_of, counterpart

MAP_POSITIONS = 64
"""Attention maps show at most this many of the last positions."""
TUNING_SEED, PAIR_SEEDS = (11, 0), (12, 13)
NOT_COMPUTED = Estimate(math.nan, math.nan)


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """One layer's attention on the report's sequence, and the construction's next to it."""

    layer: int
    own: Float[Tensor, "query key"]
    ideal: Float[Tensor, "query key"]


@dataclass(frozen=True, eq=False)
class Findings:
    """What was measured; `verdict` says what it means."""

    name: str
    checkpoint: Checkpoint
    seed: int
    model_score: Score
    """KL(truth ‖ model) on the held-out sequences of the task and length."""
    estimators: dict[str, Score]
    """The same of every estimator, its constants tuned to the truth on other sequences."""
    left_out: dict[str, str]
    """Estimators that could not be computed, and why."""
    kl_ratio: Estimate
    """KL of the model over that of tuned one-step mirror descent, on the same sequences; not a
    number where the latter is nothing."""
    bayes_ratio: Estimate
    """The same over the exact posterior mean's, where that was computed."""
    transition: probes.TransitionRecovery
    beta: probes.BetaRecovery
    attention: probes.AttentionComparison
    latents: probes.LatentDecoding
    algorithm: probes.AlgorithmIdentification
    development: probes.Development | None
    interchanges: dict[str, Interchange]
    steering: DoseResponse
    transplants: tuple[Transplant, ...]
    sweep: SweepResult
    circuit: Circuit | None
    """Only for three layers of a concatenated stream: more have too many edges to try one by one.
    """
    maps: tuple[AttentionMap, ...]
    tokens: tuple[int, ...]
    """The sequence of the maps, as far as they show it."""
    weights_hash: str


def told_apart(findings: Sequence[Findings]) -> list[Findings]:
    """With names that differ where the checkpoints do."""
    paths = [entry.checkpoint.path for entry in findings]
    return [replace(entry, name=short_name(entry.checkpoint.path, paths)) for entry in findings]


@torch_on_one_thread()
def collect(
    checkpoint: Checkpoint, seed: int = 0, stage: Callable[[str], None] = lambda name: None
) -> Findings:
    """Measure everything; `stage` is told what comes next.

    On one thread: it is thousands of small operations, which two threads do no faster, and ten
    times slower while another program wants a core.
    """
    model, task = checkpoint.model, checkpoint.task
    length = model.config.length
    stage("scores")
    data = held_out_data(task, length, n_sequences=1024 if length <= 128 else 256)
    outputs = predictions(model, data.tokens)
    if not outputs.isfinite().all():
        raise ValueError(f"{checkpoint.path.name}: the model's predictions are not finite numbers")
    predicted, left_out = _estimators(checkpoint, data)
    own, by_name = (
        divergences(data.next_probs, outputs),
        {name: divergences(data.next_probs, found) for name, found in predicted.items()},
    )
    stage("transition matrix")
    transition = probes.recover_transition(model, task, seed=seed)
    stage("β")
    beta = probes.recover_beta(model, task, seed=seed)
    stage("attention")
    compared = probes.compare_attention(model, task, seed=seed)
    maps, tokens = _maps(checkpoint, compared, seed)
    stage("latents")
    latents = probes.decode_latents(model, task, seed=seed)
    stage("algorithm")
    algorithm = probes.identify_algorithm(
        model, task, n_sequences=1024 if length <= 128 else 256, seed=seed
    )
    stage("interventions")
    some = 128 if length <= 64 else 32
    base, source = (task.sample(some, length, seed=[part, seed]).tokens for part in PAIR_SEEDS)
    variables = (
        () if model.config.n_layers < 3 else ONE_STEP if model.config.n_layers < 5 else TWO_STEP
    )
    interchanges = {
        variable: interchange(model, task, base, source, variable, seed=seed)
        for variable in variables
    }
    corrupted = source[:8].clone()
    corrupted[:, -task.order :] = base[:8, -task.order :]
    fresh = task.sample(some, length, seed=[PAIR_SEEDS[1], seed, 1])
    last = model.config.n_layers - 1
    places = {0: "responsibilities", 1: "uniform", last: "one_step"} if last >= 2 else {}
    transplants = tuple(
        transplant_attention(model, task, fresh, layer, name) for layer, name in places.items()
    )
    vertex = torch.eye(task.order, dtype=torch.float64)[0]
    stage("circuit")
    circuit = None
    if model.config.n_layers == 3 and hasattr(model, "streams"):
        circuit = minimal_circuit(model, base[: 32 if length <= 64 else 8], faithfulness=0.95)
    return Findings(
        name=checkpoint.path.name,
        checkpoint=checkpoint,
        seed=seed,
        model_score=score(data.next_probs, outputs),
        estimators={name: score(data.next_probs, found) for name, found in predicted.items()},
        left_out=left_out,
        kl_ratio=paired_ratio(own, by_name["one_step"]),
        bayes_ratio=paired_ratio(own, by_name["exact_bayes"])
        if "exact_bayes" in by_name
        else NOT_COMPUTED,
        transition=transition,
        beta=beta,
        attention=compared,
        latents=latents,
        algorithm=algorithm,
        development=probes.trace_development(checkpoint) if checkpoint.history else None,
        interchanges=interchanges,
        steering=dose_response(model, task, base, vertex),
        transplants=transplants,
        sweep=patch_sweep(model, base[:8], corrupted),
        circuit=circuit,
        maps=maps,
        tokens=tokens,
        weights_hash=tensors_digest(model.state_dict()),
    )


def _estimators(
    checkpoint: Checkpoint, data: Sample
) -> tuple[dict[str, Float64[Tensor, "batch vocab"]], dict[str, str]]:
    """Predictions of every family, tuned to the truth on sequences of their own; and which have
    none, and why."""
    task = checkpoint.task
    tuning = task.sample(1000, data.tokens.shape[1], TUNING_SEED)
    fitting, held = Evidence(task, tuning.tokens), Evidence(task, data.tokens)
    found, left_out = {}, {}
    for name, family in FAMILIES.items():
        try:
            weights = family.weights(held, family.fit(fitting, tuning.next_probs))
        except (
            ValueError,
            RuntimeError,
        ) as error:  # many lags on long sequences, or no convergence
            left_out[name] = str(error)
            continue
        if weights.isfinite().all():
            found[name] = held.predict(weights)
        else:
            left_out[name] = "it has no such rate for this prior"
    return found, left_out


def _maps(
    checkpoint: Checkpoint, compared: probes.AttentionComparison, seed: int
) -> tuple[tuple[AttentionMap, ...], tuple[int, ...]]:
    """Attention of every layer on one sequence, the model's and the construction's, over the last
    positions."""
    model, task = checkpoint.model, checkpoint.task
    tokens = task.sample(1, model.config.length, seed=[21, seed]).tokens
    reference = construction_of(task, tokens.shape[1], compared.constants)
    layers = range(len(model.blocks))
    own = attention(model, tokens, patterns=layers, last_only=False).patterns
    ideal = attention(
        reference, tokens, patterns=range(len(reference.blocks)), last_only=False
    ).patterns
    shown = slice(-min(MAP_POSITIONS, tokens.shape[1]), None)
    others = [counterpart(layer, len(layers), len(reference.blocks)) for layer in layers]
    maps = tuple(
        AttentionMap(
            layer + 1,
            own[layer][0].double().mean(0)[shown, shown],
            ideal[other][0].double().mean(0)[shown, shown],
        )
        for layer, other in zip(layers, others, strict=True)
    )
    return maps, tuple(tokens[0, shown].tolist())
