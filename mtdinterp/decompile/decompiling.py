"""The terms of a model's program, each with what it adds, and which of them matter."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import check_count
from mtdinterp.criteria import DECOMPILED, DECOMPILED_SHARE, OUTPUT_FLOOR
from mtdinterp.decompile.constants import Weights, means_of
from mtdinterp.decompile.program import Program, program_of, run_source
from mtdinterp.decompile.terms import BASE, NAMES, TERM, without
from mtdinterp.errors import NotApplicable
from mtdinterp.estimators.expected_truth import expected_truth
from mtdinterp.formatting import counted, listed
from mtdinterp.metrics import Estimate, kl_divergence, mean_stderr, to_distribution
from mtdinterp.models.lens import LensTransformer
from mtdinterp.pages.blocks import Block, Table, Text
from mtdinterp.readings.concatenated import as_concatenated
from mtdinterp.readings.predictions import predictions_of
from mtdinterp.registry import ESTIMATORS
from mtdinterp.results import Result
from mtdinterp.tasks.base import Task

MEAN_SEED = 47
"""First part of the seed of the sequences that means are taken over, which no effect is measured
on."""
MEAN_SEQUENCES = 512


SAME = 1e-9
"""Predictions closer than this are the same."""


@dataclass(frozen=True)
class TermEffect:
    """One term of a program, and what it does."""

    name: str
    says: str
    """What it computes, in a few words."""
    n_constants: int
    """How many numbers the program has more with it than before."""
    kl_after: float
    """KL(model ‖ program) with this term and those before it."""
    kl_stderr: float
    truth_effect: float
    """How much it changes the KL to the truth when it is added; below 0 it helps."""
    truth_stderr: float
    truth_without: float | None
    """How much the KL to the truth rises if the whole program lacks it (and what refines it); None
    for the terms that every program has."""
    truth_without_stderr: float | None
    matters: bool
    """Whether the short program has it."""


@dataclass(frozen=True, kw_only=True)
class Decompilation(Result):
    """A model as a program of named terms."""

    terms: tuple[TermEffect, ...]
    """Those that the model has, in the order in which they are added."""
    kl: float
    """KL(model ‖ program) with all terms."""
    kl_stderr: float
    one_step_kl: float
    """KL(model ‖ one-step mirror descent) with the β nearest to the predictions."""
    n_constants: int
    source: str = field(repr=False)
    """The program with all terms: NumPy code that defines `predict(tokens)`."""
    code: str
    """The same without its constants."""
    short_terms: tuple[str, ...]
    """The terms of the short program: without any of them, the KL to the truth would be higher."""
    short_kl: float
    """KL(model ‖ short program)."""
    short_truth: float
    """How much higher the short program's KL to the truth is than the whole program's."""
    short_truth_stderr: float
    short_n_constants: int
    short_source: str = field(repr=False)
    short_code: str
    truth_kl: float
    """KL(truth ‖ model), for comparison."""

    @property
    def noise(self) -> tuple[str, ...]:
        """The terms that do nothing for the truth."""
        return tuple(term.name for term in self.terms if not term.matters)

    @property
    def complete(self) -> bool:
        """Whether the program is the model, up to little."""
        return self.kl <= DECOMPILED and self.kl <= DECOMPILED_SHARE * self.one_step_kl

    def predict(self, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "batch vocab"]:
        """What the program with all terms predicts after each sequence."""
        return run_source(self.source, tokens)

    def summary(self) -> str:
        lines = [
            f"Program of {counted(len(self.terms), 'term')} and {self.n_constants:,} constants: "
            f"KL(model ‖ program) = {self.kl:.1e} ± {self.kl_stderr:.0e}; one step of mirror "
            f"descent: {self.one_step_kl:.1e}.",
            f"Short program, {listed(self.short_terms)} ({self.short_n_constants:,} constants): "
            f"KL(model ‖ program) = {self.short_kl:.1e}; its KL to the truth is "
            f"{self.short_truth:+.1e} ± {self.short_truth_stderr:.0e} from the whole program's "
            f"(the model's: {self.truth_kl:.5f}).",
        ]
        if self.noise:
            lines.append(f"Noise, for the truth: {listed(self.noise)}.")
        return "\n".join(lines)

    def table(self) -> Table:
        """One row per term."""
        rows = []
        for term in self.terms:
            left_out = "—"
            if term.truth_without is not None:
                left_out = f"{term.truth_without:+.1e} ± {term.truth_without_stderr:.0e}"
            rows.append(
                (
                    term.name,
                    term.says,
                    f"{term.n_constants:+,}",
                    f"{term.kl_after:.1e} ± {term.kl_stderr:.0e}",
                    f"{term.truth_effect:+.1e} ± {term.truth_stderr:.0e}",
                    left_out,
                    "yes" if term.matters else "no",
                )
            )
        return Table(HEADER, tuple(rows))

    def blocks(self) -> list[Block]:
        return [
            Text(tuple(self.summary().splitlines())),
            self.table(),
            Text(tuple(self.short_code.splitlines()), "code", "The short program"),
        ]


HEADER = (
    "term",
    "what it computes",
    "constants",
    "KL(model ‖ program so far)",
    "effect on the KL to the truth",
    "the same, left out of the whole",
    "matters",
)


@dataclass(frozen=True, eq=False)
class _Scored:
    """A program and its KLs per sequence."""

    program: Program
    output: Float64[Tensor, "batch vocab"]
    kl: Float64[Tensor, " batch"]
    """KL(model ‖ program)."""
    truth: Float64[Tensor, " batch"]
    """The same from the truth, up to what is the same for all programs."""

    def over(self, other: "_Scored") -> Estimate:
        """How much higher the KL to the truth is than another program's."""
        return _mean(self.truth - other.truth)


Score = Callable[[tuple[str, ...]], _Scored]


def decompile(
    model: LensTransformer, task: Task, *, n_sequences: int = 1024, seed: int = 0
) -> Decompilation:
    """Write a three-layer model as a program, term by term.

    Constants are read from the weights, or are means of the stream over other sequences; none is
    fitted to the outputs. A standard transformer is decompiled by its effective circuits.

    Args:
        model: a transformer with three layers and one head per layer.
        task: the model's task, whose components must be the last tokens.
        n_sequences: number of sequences to measure on.
        seed: seed for drawing the sequences.

    Returns:
        The terms, what each adds, and the program as code.

    Raises:
        NotApplicable: for other models and tasks.
    """
    check_count("n_sequences", n_sequences, minimum=8)
    _check_applicable(model, task)
    weights = Weights(as_concatenated(model), task.n_components)
    length = model.config.length
    means = means_of(weights, task.sample(MEAN_SEQUENCES, length, [MEAN_SEED, seed]).tokens)
    data = task.sample(n_sequences, length, seed)
    evidence = task.evidence(data.tokens)
    expected = expected_truth(evidence, data.next_probs)
    raw = predictions_of(model, data.tokens)
    predicted = to_distribution(raw, OUTPUT_FLOOR)
    known: dict[tuple[str, ...], _Scored] = {}

    def score(terms: tuple[str, ...]) -> _Scored:
        if terms not in known:
            program = program_of(weights, means, terms)
            output = to_distribution(program.predict(data.tokens), OUTPUT_FLOOR)
            kl, truth = kl_divergence(predicted, output), kl_divergence(expected, output)
            known[terms] = _Scored(program, output, kl, truth)
        return known[terms]

    present = _present(score)
    whole = score(present)
    short = score(_short(score, present))
    one_step = ESTIMATORS["one_step"].fit(evidence, raw)
    return Decompilation(
        terms=tuple(_effects(score, present, short.program.terms)),
        kl=_mean(whole.kl).value,
        kl_stderr=_mean(whole.kl).stderr,
        one_step_kl=one_step.divergence,
        n_constants=whole.program.n_constants,
        source=whole.program.source,
        code=whole.program.code,
        short_terms=short.program.terms,
        short_kl=_mean(short.kl).value,
        short_truth=short.over(whole).value,
        short_truth_stderr=short.over(whole).stderr,
        short_n_constants=short.program.n_constants,
        short_source=short.program.source,
        short_code=short.program.code,
        truth_kl=kl_divergence(data.next_probs, predicted).mean().item(),
        n_sequences=n_sequences,
        seed=seed,
    )


def _check_applicable(model: LensTransformer, task: Task) -> None:
    """Refuse models and tasks that the program's form does not fit."""
    config = model.config
    needed = "decompiling needs a model of three layers with one head each"
    if config.n_layers != 3:
        raise NotApplicable(f"{needed}, got {counted(config.n_layers, 'layer')}")
    if set(config.heads_per_layer) != {1}:
        heads = listed([str(count) for count in config.heads_per_layer])
        raise NotApplicable(f"{needed}, got layers of {heads} heads")
    if config.logits:
        raise NotApplicable("decompiling needs a model whose output is linear, not a softmax")
    if list(task.read_offsets) != list(range(task.n_components)):
        raise NotApplicable("decompiling needs a task whose components are the last tokens")


def _present(score: Score) -> tuple[str, ...]:
    """The terms that the model has: without any other one, the program predicts the same."""
    present = NAMES
    for name in reversed(NAMES):
        if name in BASE:
            continue
        fewer = without(name, present)
        change = score(fewer).output - score(present).output
        if change.abs().max() <= SAME:
            present = fewer
    return present


def _effects(score: Score, names: tuple[str, ...], short: tuple[str, ...]) -> Iterable[TermEffect]:
    """What each term adds, in their order, and what the whole lacks without it."""
    whole = score(names)
    before: _Scored | None = None
    for count, name in enumerate(names, start=1):
        term = TERM[name]
        after = score(names[:count])
        truth = _mean(after.truth) if before is None else after.over(before)
        lacks = None if name in BASE else score(without(name, names)).over(whole)
        kl = _mean(after.kl)
        earlier = 0 if before is None else before.program.n_constants
        yield TermEffect(
            name=term.name,
            says=term.says,
            n_constants=after.program.n_constants - earlier,
            kl_after=kl.value,
            kl_stderr=kl.stderr,
            truth_effect=truth.value,
            truth_stderr=truth.stderr,
            truth_without=None if lacks is None else lacks.value,
            truth_without_stderr=None if lacks is None else lacks.stderr,
            matters=term.name in short,
        )
        before = after


def _short(score: Score, names: tuple[str, ...]) -> tuple[str, ...]:
    """The terms that remain when all that do nothing for the truth are left out.

    From the last term to the first, each is left out if the KL to the truth is then not higher than
    the whole program's by more than two standard errors. Terms cancel, so several together may
    matter where none does alone; therefore each is judged without those that are already left out.
    """
    whole = score(names)
    kept = names
    for name in reversed(names):
        if name in BASE or name not in kept:
            continue
        rise = score(without(name, kept)).over(whole)
        if rise.value <= 2 * rise.stderr:
            kept = without(name, kept)
    return kept


def _mean(values: Float64[Tensor, " batch"]) -> Estimate:
    return Estimate(values.mean().item(), mean_stderr(values))
