"""Which estimator explains the model's predictions best?

Every registered estimator's constants are fitted to the model on half of the sequences,
KL(model ‖ estimator) is measured on the other half, and every further constant is penalised.
Estimators that agree on typical sequences are compared on sequences that are atypical of the prior:
weights at the corners, weights near uniform, tokens with other statistics. Among estimators that
still cannot be distinguished, the one with the fewest constants is named.

Only predictions are needed, so the model may be any function from tokens to predictions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from mtdinterp.checks import ArrayLike, as_transition, check_option
from mtdinterp.claims import Claim, Status, decide
from mtdinterp.criteria import AS_UNIFORM, CLOSE, NAMED, PRICE, RESEMBLES, TELLABLE
from mtdinterp.errors import CannotCompute
from mtdinterp.estimators.base import Constants, Fit, accuracy_notes
from mtdinterp.evidence import Evidence
from mtdinterp.explanation import Explanation
from mtdinterp.formatting import listed, share_text
from mtdinterp.metrics import (
    bootstrap_interval,
    divergences,
    share_explained,
    to_distribution,
)
from mtdinterp.naming import UNIFORM, Naming, naming_of, naming_sentence
from mtdinterp.native.threads import torch_on_one_thread
from mtdinterp.pages.blocks import Block, Table, Text
from mtdinterp.plugins import register_probe
from mtdinterp.readings import (
    Predictor,
    hooked_or_function,
    predictions_of,
    probe_sequences,
)
from mtdinterp.readings.comparison import (
    Divergences,
    fit_each,
    not_told_apart,
    score_each,
    simplest,
)
from mtdinterp.readings.transition import shown_transition
from mtdinterp.registry import ESTIMATORS
from mtdinterp.results import Result
from mtdinterp.tasks import MTDTask, Task, require_transition

APART_RULE = (
    f"two estimators are distinguished if one is farther by a factor of {CLOSE:g} and by two "
    f"standard errors, or by a factor of {TELLABLE:g}; each constant after the first counts as a "
    f"factor of {PRICE:g}"
)
"""When two estimators are distinguished, as shown on the pages."""
NAMING_RULE = (
    "Several estimators may fit equally well. Of these, those with the fewest constants are kept, "
    "those that fit worse on shifted sequences are dropped, and the one with the fewest steps is "
    "named."
)
"""How the named estimator is chosen, as shown on the pages."""
MATRICES = {"model": "the transition matrix read from the model", "given": "the given matrix"}
"""What estimators use if it is not the task's transition matrix."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmIdentification(Result):
    """The estimator that explains the model best, and how far every estimator is from it."""

    best: str
    divergences: dict[str, float]
    """Mean KL(model ‖ estimator) on held-out sequences of the prior."""
    intervals: dict[str, tuple[float, float]]
    """95 % bootstrap intervals of these divergences."""
    parameters: dict[str, Constants]
    """Constants fitted to the model on other sequences, and numbers derived from them."""
    at_bound: dict[str, tuple[str, ...]]
    """Constants that ended on a bound of their range: the predictions do not determine them."""
    flat: dict[str, tuple[str, ...]]
    """Constants whose optimum is flat: a wide range of values fits the predictions as well."""
    shifted: dict[str, dict[str, float]]
    """The same divergences on shifted sequences, by condition, with the same constants."""
    best_shifted: dict[str, str]
    tied: tuple[str, ...]
    """Estimators that the sequences cannot distinguish from the best."""
    explained: float
    """1 - KL(model ‖ best) / KL(model ‖ the model's mean prediction)."""
    beyond_uniform: float
    """1 - KL(model ‖ best) / KL(model ‖ uniform weights)."""
    left_out: dict[str, str]
    """Estimators that could not be computed, and why."""
    left_out_shifted: dict[str, dict[str, str]]
    """Estimators that could be computed, but not on shifted sequences, and why; by condition."""
    notes: dict[str, str]
    """How accurate the weights are of estimators that are not computed exactly here."""
    compared_on: str = "task"
    """Whose transition matrix the estimators use: "task", "model" or "given"."""
    transition: tuple[tuple[float, ...], ...] | None = None
    """That matrix, if it is not the task's."""

    @property
    def candidates(self) -> tuple[str, ...]:
        """The best estimator, and those that the evidence does not separate from it."""
        return (self.best, *self.tied)

    @property
    def n_held(self) -> int:
        """How many sequences divergences are measured on: the second half."""
        return self.n_sequences - self.n_sequences // 2

    @property
    def decided(self) -> bool:
        """Whether the evidence separates the best estimator from all others."""
        return not self.tied

    @property
    def naming(self) -> Naming:
        """Whether the best estimator explains enough to be named as the model's algorithm."""
        return naming_of(self.best, self.explained, self.beyond_uniform)

    @property
    def label(self) -> str:
        """The label of the best estimator, with a note if its step is negative."""
        return self._label_of(self.best)

    def _label_of(self, name: str) -> str:
        label = ESTIMATORS[name].label
        if self.parameters[name].get("beta", 0.0) < 0:
            return f"{label} with a negative step, against the likelihood"
        return label

    def _shares_of(self, name: str) -> tuple[float, float]:
        """`explained` and `beyond_uniform` of any estimator: both fall with its divergence."""
        if self.divergences[name] == self.divergences[self.best]:
            return self.explained, self.beyond_uniform
        ratio = self.divergences[name] / self.divergences[self.best]
        return 1 - (1 - self.explained) * ratio, 1 - (1 - self.beyond_uniform) * ratio

    def _described(self) -> str:
        """The estimator that the sentence and the claims give shares of.

        The best one; if none can be named, the nearest, unless it would pass but for the price of
        its constants.
        """
        nearest = self.by_divergence()[0]
        is_unnamed = self.naming is Naming.NONE
        if is_unnamed and naming_of(nearest, *self._shares_of(nearest)) is Naming.NONE:
            return nearest
        return self.best

    def sentence(self) -> str:
        """The answer in one sentence."""
        name = self._described()
        return naming_sentence(self.naming, name, self._label_of(name), *self._shares_of(name))

    def tie_sentence(self) -> str:
        """Which estimators cannot be distinguished from the best; empty if there are none."""
        if not self.tied or self.naming is Naming.NONE:
            return ""
        labels = listed([ESTIMATORS[name].label for name in self.tied])
        return f"Predictions alone do not distinguish it from {labels}."

    def constants_text(self, name: str) -> str:
        """An estimator's fitted constants with their symbols."""
        symbols = {constant.name: constant.symbol for constant in ESTIMATORS[name].constants}
        symbols |= {"learning_rate": "η", "beta": "β"}
        words = []
        for key, value in self.parameters[name].items():
            note = " (at the bound)" if key in self.at_bound[name] else ""
            note = " (flat)" if key in self.flat[name] else note
            words.append(f"{symbols.get(key, key)} = {value:.3g}{note}")
        return ", ".join(words)

    def remark_text(self, name: str) -> str:
        """An estimator's fitted constants, and how accurate it is if it is not computed exactly."""
        return ", ".join(filter(None, (self.constants_text(name), self.notes.get(name))))

    def by_divergence(self) -> list[str]:
        """Estimators from nearest to farthest."""
        return sorted(self.divergences, key=self.divergences.__getitem__)

    def summary(self) -> str:
        lines = ["KL(model ‖ estimator), constants fitted to the model (95 % interval)"]
        if self.compared_on != "task":
            lines.append(f"Estimators use {MATRICES[self.compared_on]}, not that of the task.")
        for name in self.by_divergence():
            low, high = self.intervals[name]
            interval = f"{self.divergences[name]:.2e} [{low:.1e}, {high:.1e}]"
            label = ESTIMATORS[name].label
            lines.append(f"  {label:<52} {interval}  {self.remark_text(name)}".rstrip())
        for name, why in self.left_out.items():
            lines.append(f"  {ESTIMATORS[name].label:<52} not computed: {why}")
        lines.append(self.sentence())
        if not ESTIMATORS[self.best].in_context and self.naming is Naming.LIKE:
            lines.append("It infers nothing in context; training first stalls at this point.")
        if self.tie_sentence():
            lines.append(self.tie_sentence())
        if self.naming is not Naming.NONE:
            lines += [NAMING_RULE, f"{APART_RULE.capitalize()}."]
            lines += [f"  {text}" for text in self._shift_lines()]
        return "\n".join(lines)

    def _shift_lines(self) -> Iterable[str]:
        yield (
            "On shifted sequences, with the same constants: the simplest estimator that cannot be "
            "distinguished from the nearest (its KL)"
        )
        for condition, name in self.best_shifted.items():
            found = self.shifted[condition]
            nearest = self.nearest_shifted(condition)
            compared = ""
            if nearest != name:
                compared = (
                    f"; {ESTIMATORS[nearest].label} is nearer ({found[nearest]:.2e}), but not "
                    "distinguishably"
                )
            yield f"  {condition}: {ESTIMATORS[name].label} ({found[name]:.2e}){compared}"
        for note in self._shift_notes():
            yield f"  {note}"

    def _shift_notes(self) -> list[str]:
        """What could not be computed on shifted sequences, one line for each."""
        notes = []
        for condition, reasons in self.left_out_shifted.items():
            for name, why in reasons.items():
                notes.append(f"{condition}: {ESTIMATORS[name].label} not computed: {why}")
        return notes

    def nearest_shifted(self, condition: str) -> str:
        """The estimator with the smallest divergence under a condition."""
        found = self.shifted[condition]
        return min(found, key=found.__getitem__)

    def origin_note(self) -> str:
        return f"divergences on {self.n_held} of them"

    def claims(self) -> tuple[Claim, ...]:
        name = self._described()
        label = self._label_of(name)
        is_uniform = name == UNIFORM
        explained, beyond_uniform = self._shares_of(name)
        share = explained if is_uniform else beyond_uniform
        needed = AS_UNIFORM if is_uniform else NAMED
        rest = (
            "how predictions differ from their mean"
            if is_uniform
            else "how predictions differ from those of uniform weights"
        )
        infers = ESTIMATORS[name].in_context
        low, high = self.intervals[name]
        uniform = self.divergences.get(UNIFORM, float("nan"))
        return (
            Claim(
                claim=f"One estimator explains at least {needed:.0%} of {rest}",
                status=decide(self.naming is Naming.LIKE),
                evidence=f"Share that {label} explains, and KL(model ‖ estimator)",
                number=f"{share_text(share)} (KL {self.divergences[name]:.1e} "
                f"[{low:.1e}, {high:.1e}])",
                threshold=f"≥ {needed:.0%}",
                control=f"uniform weights {uniform:.1e}",
                n_sequences=self.n_held,
                seed=self.seed,
            ),
            Claim(
                claim="Weights that depend on the sequence explain at least "
                f"{RESEMBLES:.0%} of how predictions differ from those of uniform weights",
                status=decide(infers and beyond_uniform >= RESEMBLES),
                evidence=f"Share that {label} explains",
                number=share_text(beyond_uniform),
                threshold=f"≥ {RESEMBLES:.0%}, by an estimator that reads the sequence",
                control="uniform weights 0%",
                n_sequences=self.n_held,
                seed=self.seed,
            ),
            self._decided_claim(),
        )

    def _decided_claim(self) -> Claim:
        named = self.naming is not Naming.NONE
        labels = [ESTIMATORS[name].label for name in self.candidates]
        count = "one" if len(labels) == 1 else str(len(labels))
        return Claim(
            claim="Predictions single out one estimator",
            status=decide(self.decided) if named else Status.UNDECIDABLE,
            evidence="Estimators that cannot be distinguished",
            number=f"{count}: {', '.join(labels)}",
            threshold=f"one; {APART_RULE}",
            control=f"{len(self.divergences)} estimators compared",
            n_sequences=self.n_held,
            seed=self.seed,
            reason="" if named else "no estimator explains the model",
        )

    def blocks(self) -> list[Block]:
        rows = []
        for name in self.by_divergence():
            low, high = self.intervals[name]
            rows.append(
                (
                    ESTIMATORS[name].label,
                    f"{self.divergences[name]:.2e}",
                    f"{low:.1e} to {high:.1e}",
                    self.remark_text(name),
                )
            )
        for name, why in self.left_out.items():
            rows.append((ESTIMATORS[name].label, "not computed", "", why))
        shifted = []
        for condition, name in self.best_shifted.items():
            found = self.shifted[condition]
            own = f"{found[self.best]:.2e}" if self.best in found else "—"
            nearest = self.nearest_shifted(condition)
            closest = f"{ESTIMATORS[nearest].label} ({found[nearest]:.2e})"
            row = (condition, ESTIMATORS[name].label, f"{found[name]:.2e}", closest, own)
            shifted.append(row)
        header = (
            "estimator",
            "KL(model ‖ estimator)",
            "95 % interval",
            "constants fitted to the model",
        )
        shifts = (
            "On sequences that are atypical of the prior, with the same constants: the simplest "
            "estimator that cannot be distinguished from the nearest, and the nearest."
        )
        shift_header = (
            "sequences",
            "simplest, not distinguishable from the nearest",
            "its KL",
            "nearest (its KL)",
            "KL of the estimator named above",
        )
        sentences = tuple(text for text in (self.sentence(), self.tie_sentence()) if text)
        blocks: list[Block] = [
            Text(sentences),
            Table(header, tuple(rows)),
            Text((NAMING_RULE, f"{APART_RULE.capitalize()}.", shifts), "soft"),
            Table(shift_header, tuple(shifted)),
        ]
        notes = self._shift_notes()
        return [*blocks, Text(tuple(notes), "soft")] if notes else blocks


@register_probe(
    "identify_algorithm",
    label="Which estimator explains the model's predictions best?",
    needs="predictions",
    rank=10,
)
@torch_on_one_thread()
def identify_algorithm(
    model: Predictor,
    task: Task,
    tokens: ArrayLike | None = None,
    *,
    length: int | None = None,
    transition: str | ArrayLike = "task",
    names: Sequence[str] | None = None,
    n_sequences: int = 1024,
    seed: int = 0,
    explanation: Explanation | None = None,
) -> AlgorithmIdentification:
    """Fit every estimator to the model's predictions and say which explains them best.

    Args:
        model: a hooked model, or any function from tokens [batch, pos] (an int64 tensor) to
            predictions [batch, vocab] after the last one (a tensor or array of probabilities).
        task: the model's task.
        tokens: sequences [batch, pos] to compare on; drawn from the task if None. Shifted
            sequences, a quarter as many, are always drawn.
        length: length of the drawn sequences; a hooked model's own if None. A function needs
            either `length` or `tokens`.
        transition: the transition matrix that estimators use: "task" for the task's own, "model"
            for the one read from the model (see `recover_transition`), or a matrix [vocab, vocab].
            A model that follows an algorithm exactly, but on a matrix of its own, is recognised on
            that matrix only.
        names: estimators to compare; all registered ones if None.
        n_sequences: number of sequences to draw.
        seed: seed for drawing the sequences.
        explanation: the explanation of the model, if already known. Its constants are then used, so
            that no page shows two fits of one constant; otherwise constants are fitted on the first
            half of the sequences. Divergences are always measured on the second half.

    Returns:
        Divergences of every estimator, and the one that is named.
    """
    subject = hooked_or_function(model)
    sequence = probe_sequences(subject, task, tokens, n_sequences, seed, least=32, length=length)
    given = predictions_of(subject, sequence)
    if given.shape[1] != task.vocab_size:
        raise ValueError(
            f"model: expected predictions over the task's {task.vocab_size} tokens, "
            f"got {given.shape[1]}"
        )
    # Sequences always come from the task. What estimators infer from them depends on π.
    compared_on, compared = _compared_task(subject, task, transition, sequence)
    # Constants are fitted on one half and compared on the other, so that an estimator with more
    # constants has no advantage.
    half = len(sequence) // 2
    fitting = compared.evidence(sequence[:half])
    explained = given[:half]
    known_fits: dict[str, Fit] = {}
    is_own = compared is task
    if explanation is not None and is_own and _is_separate(explanation, sequence.shape[1]):
        fitting = task.evidence(explanation.tokens)
        explained = explanation.predictions
        known_fits[explanation.algorithm.name] = explanation.nearest
    held = compared.evidence(sequence[half:])
    fits, scores, left_out = fit_each(
        _chosen(names), fitting, explained, held, given[half:], known_fits
    )
    if not scores:
        raise CannotCompute(f"names: none of these can be computed here: {left_out}")
    n_shifted = max(64, len(sequence) // 4)
    shifted, left_out_shifted = _shifted_scores(
        subject, task, compared, fits, sequence.shape[1], n_shifted, seed
    )
    n_constants = {name: len(fit.constants) for name, fit in fits.items()}
    ties = not_told_apart(scores, n_constants)
    best = simplest(ties, n_constants, shifted.values())
    uniform = held.divergence(given[half:], held.uniform)
    mean_prediction = given[half:].mean(0, keepdim=True).expand_as(given[half:])
    clipped = to_distribution(given[half:])
    constant = divergences(clipped, mean_prediction)
    return AlgorithmIdentification(
        best=best,
        divergences=_means(scores),
        intervals={name: bootstrap_interval(value, seed=seed) for name, value in scores.items()},
        parameters=_parameters(fits, fitting),
        at_bound={name: fit.at_bound for name, fit in fits.items()},
        flat={name: fit.flat for name, fit in fits.items()},
        shifted={condition: _means(found) for condition, found in shifted.items()},
        best_shifted=_named_for_each(shifted, n_constants),
        tied=tuple(name for name in ties if name != best),
        explained=share_explained(scores[best], constant),
        beyond_uniform=share_explained(scores[best], uniform),
        left_out=left_out,
        left_out_shifted=left_out_shifted,
        notes=accuracy_notes(scores, held),
        compared_on=compared_on,
        transition=None if is_own else _rows(compared),
        n_sequences=len(sequence),
        seed=seed if tokens is None else None,
    )


def _compared_task(
    model: Predictor, task: Task, transition: str | ArrayLike, tokens: Int[Tensor, "batch pos"]
) -> tuple[str, Task]:
    """Whose transition matrix estimators use, and the task with that matrix."""
    if isinstance(transition, str):
        source = check_option("transition", transition, ("task", "model"))
        if source == "task":
            return source, task
        matrix: ArrayLike = shown_transition(model, task, tokens)
    else:
        source, matrix = "given", transition
    known = require_transition(task, "Another transition matrix")
    rows = as_transition(matrix)
    if len(rows) != task.vocab_size:
        raise ValueError(
            f"transition: expected a {task.vocab_size} × {task.vocab_size} matrix, like the "
            f"task's, got {len(rows)} rows"
        )
    return source, MTDTask(rows, known.order, task.concentration)


def _rows(task: Task) -> tuple[tuple[float, ...], ...]:
    """The task's transition matrix as plain numbers, which can be compared and printed."""
    matrix = require_transition(task, "The comparison").transition
    return tuple(tuple(row) for row in matrix.tolist())


def _is_separate(explanation: Explanation, length: int) -> bool:
    """Whether an explanation's sequences have this length and are not those of the probe."""
    return explanation.seed is not None and explanation.length == length


def _chosen(names: Sequence[str] | None) -> list[str]:
    """The estimators to compare, simplest first; an unknown name is an error."""
    if names is None:
        return list(ESTIMATORS)
    wanted = {ESTIMATORS[name].name for name in names}
    if not wanted:
        raise ValueError(f"names: expected at least one of {', '.join(ESTIMATORS)}")
    return [name for name in ESTIMATORS if name in wanted]


def _parameters(fits: dict[str, Fit], fitting: Evidence) -> dict[str, Constants]:
    """Fitted constants of every estimator, and numbers derived from them."""
    parameters = {}
    for name, fit in fits.items():
        derived = ESTIMATORS[name].derived(fitting, fit.constants)
        parameters[name] = {**derived, **fit.constants}
    return parameters


def _named_for_each(shifted: dict[str, Divergences], n_constants: dict[str, int]) -> dict[str, str]:
    """The estimator that would be named by each kind of shifted sequences alone."""
    named = {}
    for condition, found in shifted.items():
        if found:
            named[condition] = simplest(not_told_apart(found, n_constants), n_constants)
    return named


def _means(scores: Divergences) -> dict[str, float]:
    return {name: value.mean().item() for name, value in scores.items()}


def _shifted_scores(
    model: Predictor,
    task: Task,
    compared: Task,
    fits: dict[str, Fit],
    length: int,
    n_sequences: int,
    seed: int,
) -> tuple[dict[str, Divergences], dict[str, dict[str, str]]]:
    """Divergences on sequences that are atypical of the prior, by condition.

    Args:
        model: any hooked model.
        task: the task that sequences come from.
        compared: the task whose transition matrix the estimators use.
        fits: the estimators to compare, with their constants.
        length: tokens per sequence.
        n_sequences: sequences per condition.
        seed: seed for drawing them.

    Returns:
        Divergences by condition, and for each condition in which an estimator could not be
        computed, why.
    """
    scores: dict[str, Divergences] = {}
    left_out: dict[str, dict[str, str]] = {}
    for number, variant in enumerate(task.shifted(), start=1):
        tokens = variant.sample(n_sequences, length, [seed, number])
        predictions = predictions_of(model, tokens)
        found, reasons = score_each(fits, compared.evidence(tokens), predictions)
        scores[variant.name] = found
        if reasons:
            left_out[variant.name] = reasons
    return scores, left_out
