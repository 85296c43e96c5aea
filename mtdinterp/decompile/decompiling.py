"""The terms of a model's program, each with what it adds, and which of them matter."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from jaxtyping import Float64, Int
from torch import Tensor

from mtdinterp.checks import check_count
from mtdinterp.criteria import DECOMPILED, DECOMPILED_SHARE, OUTPUT_FLOOR, SMALL_RISE
from mtdinterp.decompile.constants import Weights, means_of
from mtdinterp.decompile.program import Program, program_of, run_source
from mtdinterp.decompile.terms import BASE, NAMES, TERM, without
from mtdinterp.errors import CannotCompute, NotApplicable
from mtdinterp.estimators.expected_truth import expected_truth
from mtdinterp.evidence import Evidence
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
FRESH_SEED = 48
"""The same for the sequences that the short program is measured on, but not chosen on."""


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
    """How much it changes the KL to the truth when it is added; below 0 it helps. NaN for the first
    term."""
    truth_stderr: float
    truth_without: float | None
    """How much the KL to the truth rises if the whole program lacks it (and what refines it); None
    for the terms that every program has."""
    truth_without_stderr: float | None
    matters: bool
    """Whether the short program has it, because the KL to the truth might rise without it."""


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
    """The terms of the short program, which keeps the KL to the truth; see `SMALL_RISE`."""
    short_kl: float
    """KL(model ‖ short program)."""
    short_truth: float
    """How much higher the short program's KL to the truth is than the whole program's, on other
    sequences than those that chose its terms."""
    short_truth_stderr: float
    short_n_constants: int
    short_source: str = field(repr=False)
    short_code: str
    truth_kl: float
    """KL(truth ‖ model), for comparison."""

    @property
    def noise(self) -> tuple[str, ...]:
        """The terms that do nothing for the truth, beyond a negligible amount."""
        return tuple(term.name for term in self.terms if not term.matters)

    @property
    def complete(self) -> bool:
        """Whether the program reproduces the model closely."""
        near = self.kl <= DECOMPILED_SHARE * self.one_step_kl
        return self.kl <= SAME or (self.kl <= DECOMPILED and near)

    def predict(self, tokens: Int[Tensor, "batch pos"]) -> Float64[Tensor, "batch vocab"]:
        """What the program with all terms predicts after sequences of the model's length."""
        return run_source(self.source, tokens)

    def summary(self) -> str:
        lines = [
            f"Program of {counted(len(self.terms), 'term')} and {self.n_constants:,} constants: "
            f"KL(model ‖ program) = {self.kl:.1e} ± {self.kl_stderr:.0e}; one step of mirror "
            f"descent: {self.one_step_kl:.1e}.",
            f"Short program, {listed(self.short_terms)} ({self.short_n_constants:,} constants): "
            f"KL(model ‖ program) = {self.short_kl:.1e}. Its KL to the truth is "
            f"{self.short_truth:.1e} ± {self.short_truth_stderr:.0e} higher than the whole "
            f"program's; the model's own is {self.truth_kl:.5f}.",
        ]
        if self.kl > self.one_step_kl:
            return (
                f"{lines[0]}\nOne step is nearer to this model than its program, so the model is "
                "not of the program's form, and the terms say nothing about it."
            )
        if self.noise:
            lines.append(
                f"Noise: leaving out {listed(self.noise)} raises the KL to the truth by less than "
                f"{SMALL_RISE:.0%}."
            )
        return "\n".join(lines)

    def table(self) -> Table:
        """One row per term."""
        rows = []
        for term in self.terms:
            left_out = _change(term.truth_without, term.truth_without_stderr)
            rows.append(
                (
                    term.name,
                    term.says,
                    f"{term.n_constants:+,}",
                    f"{term.kl_after:.1e} ± {term.kl_stderr:.0e}",
                    _change(term.truth_effect, term.truth_stderr),
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
    "KL to the truth when added",
    "KL to the truth when left out",
    "matters",
)


def _change(value: float | None, stderr: float | None) -> str:
    """A change with its sign and standard error; a dash if there is none."""
    if value is None or not math.isfinite(value):
        return "—"
    return f"{value:+.1e} ± {stderr:.0e}"


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
NOTHING = Estimate(math.nan, math.nan)


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
    check_decompilable(model, task)
    weights = Weights(as_concatenated(model), task.n_components)
    length = model.config.length
    means = means_of(weights, task.sample(MEAN_SEQUENCES, length, [MEAN_SEED, seed]).tokens)
    judged = _Measured.draw(model, task, n_sequences, seed)
    known: dict[tuple[str, ...], _Scored] = {}

    def score(terms: tuple[str, ...]) -> _Scored:
        if terms not in known:
            known[terms] = judged.scored(program_of(weights, means, terms))
        return known[terms]

    present = _present(score)
    whole = score(present)
    truth_kl = judged.truth_kl
    short = score(_short(score, present, SMALL_RISE * truth_kl))
    fresh = _Measured.draw(model, task, n_sequences, (FRESH_SEED, seed))
    rise = fresh.scored(short.program).over(fresh.scored(whole.program))
    one_step = ESTIMATORS["one_step"].fit(judged.evidence, judged.raw)
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
        short_truth=rise.value,
        short_truth_stderr=rise.stderr,
        short_n_constants=short.program.n_constants,
        short_source=short.program.source,
        short_code=short.program.code,
        truth_kl=truth_kl,
        n_sequences=n_sequences,
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _Measured:
    """Sequences, and what the model predicts after them."""

    tokens: Int[Tensor, "batch pos"]
    evidence: Evidence
    raw: Float64[Tensor, "batch vocab"]
    """The model's predictions as they are."""
    predicted: Float64[Tensor, "batch vocab"]
    """The same, clipped."""
    expected: Float64[Tensor, "batch vocab"]
    """The mean of the truth given each sequence."""
    truth_kl: float
    """KL(truth ‖ model)."""

    @classmethod
    def draw(
        cls, model: LensTransformer, task: Task, n_sequences: int, seed: int | Sequence[int]
    ) -> "_Measured":
        """Draw sequences and run the model on them."""
        data = task.sample(n_sequences, model.config.length, seed)
        evidence = task.evidence(data.tokens)
        raw = predictions_of(model, data.tokens)
        predicted = to_distribution(raw, OUTPUT_FLOOR)
        expected = expected_truth(evidence, data.next_probs)
        truth_kl = kl_divergence(data.next_probs, predicted).mean().item()
        return cls(data.tokens, evidence, raw, predicted, expected, truth_kl)

    def scored(self, program: Program) -> _Scored:
        """Run a program and compare it with the model and the truth."""
        output = program.predict(self.tokens)
        if not output.isfinite().all():
            raise CannotCompute("the scores of layer 1 are too large for a program")
        output = to_distribution(output, OUTPUT_FLOOR)
        kl = kl_divergence(self.predicted, output)
        return _Scored(program, output, kl, kl_divergence(self.expected, output))


def check_decompilable(model: LensTransformer, task: Task) -> None:
    """Raise NotApplicable, with the reason, if a model or task does not fit a program's form."""
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
        truth = NOTHING if before is None else after.over(before)
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


def _short(score: Score, names: tuple[str, ...], allowed: float) -> tuple[str, ...]:
    """The terms that remain when all that do nothing for the truth are left out.

    Terms cancel, so several together may matter where none does alone; therefore each is judged
    without those that are already left out, from the last term to the first.

    Args:
        score: runs a program.
        names: the terms that the model has.
        allowed: how much the KL to the truth may rise, two standard errors up.

    Returns:
        The terms that remain.
    """
    whole = score(names)
    kept = names
    for name in reversed(names):
        if name in BASE or name not in kept:
            continue
        rise = score(without(name, kept)).over(whole)
        if rise.value + 2 * rise.stderr <= allowed:
            kept = without(name, kept)
    return kept


def _mean(values: Float64[Tensor, " batch"]) -> Estimate:
    return Estimate(values.mean().item(), mean_stderr(values))
