"""How well sequences determine a tuned constant: the interval around the optimum, and flat optima.

Let KL_i(β) be the objective on sequence i, β* the minimiser of its mean over n sequences, and
d_i(β) = KL_i(β) - KL_i(β*). The *paired* standard error s(β) of the mean of d_i is the right unit
for "no worse than the optimum": the KLs of one sequence at two values of β vary together, and most
of that variation cancels in d_i.

Near β*, d_i is linear in δ = β - β* with slope g_i, and its mean is h·δ²/2, since the mean slope is
0 at the minimum. With σ the standard deviation of the slopes,

    mean(d) / s = (h·δ²/2) / (σ·|δ|/√n) = |δ| / (2·σ/(h·√n)) = |δ| / (2 standard errors of β*),

because σ/(h·√n) is the standard error of the minimiser of a mean. So β is within **one** standard
error of β* where the mean difference is at most **half** its paired standard error. The interval is
the connected set of such β that contains β*; about 68% of such intervals contain the β that an
unlimited number of sequences would give. The set with a whole paired standard error would be an
interval of two standard errors.

An optimum on an end of the searched range is not a minimum of the function: the mean slope is not
0, mean(d) / s does not go to 0, and the derivation does not apply. Such an optimum is clear only if
the values inside are worse by `CLEAR_EDGE` paired standard errors, which is the limit there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float64
from scipy.optimize import brentq
from torch import Tensor

from mtdinterp.criteria import CLEAR_EDGE, FLAT_EDGE_SPAN, FLAT_SPAN
from mtdinterp.formatting import flat_text, with_interval
from mtdinterp.metrics import mean_stderr

PerSequence = Callable[[float], Float64[Tensor, " sequence"]]
"""The objective of every sequence as a function of the constant."""

ONE_STDERR = 0.5
"""Paired standard errors of the objective at one standard error of β*: see the derivation above."""
END_TOLERANCE = 0.01
"""Accuracy of an end of the interval, as a share of its distance from the optimum."""
ROUNDING = 1e-15
"""Mean differences of KLs below this are rounding errors: terms of a KL are products of
probabilities with logarithms of order 1, computed in float64."""
MOST_ERRORS = 10.0
"""The distance in paired standard errors is cut here, so that the search for an end meets finite
numbers only. It is far above every limit."""


class Interval(NamedTuple):
    """The values within one standard error of an optimum."""

    low: float | None
    """None if the interval is open: it reaches the lower end of the searched range."""
    high: float | None
    """None if the interval is open: it reaches the upper end of the searched range."""

    def contains(self, value: float) -> bool:
        """Whether a value lies in the interval, whose open ends are unbounded."""
        is_above = self.low is None or value >= self.low
        is_below = self.high is None or value <= self.high
        return is_above and is_below

    def closed(self, searched: tuple[float, float]) -> tuple[float, float]:
        """The ends, with those of the searched range for open ones."""
        low = searched[0] if self.low is None else self.low
        high = searched[1] if self.high is None else self.high
        return low, high

    def middle(self, searched: tuple[float, float]) -> float:
        """The geometric middle, with the ends of the searched range for open ends."""
        low, high = self.closed(searched)
        return math.sqrt(low * high)

    def text(self, symbol: str, value: float, flat: bool) -> str:
        """An optimum with its interval, or what is known of one that is flat.

        Args:
            symbol: the constant's symbol.
            value: the optimum.
            flat: whether it is flat; its value is then not shown.

        Returns:
            The text, such as "16.13 (15.92 to 16.35)" or "flat: every β ≥ 2.1 fits equally well".
        """
        if flat:
            return flat_text(symbol, self.low, self.high)
        if self.low is None or self.high is None:
            return f"{value:.3g} (at the bound of its range)"
        return with_interval(value, self.low, self.high)

    def scaled(self, factor: float) -> "Interval":
        """The interval of a positive multiple of the constant."""
        low = None if self.low is None else factor * self.low
        high = None if self.high is None else factor * self.high
        return Interval(low, high)


class PairedObjective:
    """A mean over sequences that remembers every sequence's value wherever it was evaluated."""

    def __init__(self, per_sequence: PerSequence) -> None:
        """
        Args:
            per_sequence: the objective of every sequence.
        """
        self._per_sequence = per_sequence
        self._known: dict[float, Float64[Tensor, " sequence"]] = {}

    @property
    def evaluated(self) -> list[float]:
        """Where it was evaluated, in increasing order."""
        return sorted(self._known)

    def each(self, value: float) -> Float64[Tensor, " sequence"]:
        """The objective of every sequence."""
        if value not in self._known:
            self._known[value] = self._per_sequence(value)
        return self._known[value]

    def mean(self, value: float) -> float:
        """The mean over sequences, which is minimised."""
        return self.each(value).mean().item()

    def errors_above(self, value: float, best: float) -> float:
        """The mean difference from the optimum, in paired standard errors.

        Args:
            value: the value to compare.
            best: the optimum.

        Returns:
            The number, at most `MOST_ERRORS`; 0 for a difference within rounding, and for a single
            sequence, which decides nothing.
        """
        difference = self.each(value) - self.each(best)
        mean = difference.mean().item()
        if not math.isfinite(mean):
            return MOST_ERRORS
        if mean <= ROUNDING or len(difference) == 1:
            return 0.0
        stderr = mean_stderr(difference)
        return min(MOST_ERRORS, mean / stderr) if stderr > 0 else MOST_ERRORS


def interval_around(best: float, objective: PairedObjective, limit: float = ONE_STDERR) -> Interval:
    """The connected interval around an optimum where the objective is not clearly worse.

    It is searched on the range in which the objective was evaluated before, from the optimum
    outwards over the known values; each end is then found between two of them.

    Args:
        best: the optimum, one of the evaluated values; all of them are positive.
        objective: the objective, with what is known of it.
        limit: the largest mean difference from the optimum, in paired standard errors.

    Returns:
        The interval; an end is None where it reaches the end of the evaluated range.
    """
    known = objective.evaluated
    place = known.index(best)
    below = known[:place][::-1]
    above = known[place + 1 :]
    return Interval(_end(best, below, objective, limit), _end(best, above, objective, limit))


def _end(
    best: float, outwards: Sequence[float], objective: PairedObjective, limit: float
) -> float | None:
    """Where the objective first exceeds the limit on one side of the optimum; None if nowhere."""
    inside = best
    for outside in outwards:
        if objective.errors_above(outside, best) > limit:
            return _crossing(best, inside, outside, objective, limit)
        inside = outside
    return None


def _crossing(
    best: float, inside: float, outside: float, objective: PairedObjective, limit: float
) -> float:
    """Where the objective reaches the limit, between a value inside and one outside.

    The distance in paired standard errors is nearly linear in log β, which Brent's method uses.
    """
    ratio = outside / inside

    def at(share: float) -> float:
        # The power would round the outer value, and what is known of it could not be used.
        return outside if share == 1 else inside * ratio**share

    def excess(share: float) -> float:
        return objective.errors_above(at(share), best) - limit

    tolerance = END_TOLERANCE * math.log(outside / best) / math.log(ratio)
    return at(brentq(excess, 0.0, 1.0, xtol=tolerance))


@dataclass(frozen=True)
class Optimum:
    """The minimiser of a mean over sequences, and how well the sequences determine it."""

    best: float
    """The minimiser on the searched range."""
    divergence: float
    """The mean at `best`."""
    interval: Interval
    searched: tuple[float, float]
    """The ends of the searched range."""

    @property
    def at_edge(self) -> bool:
        """Whether the minimiser is an end of the searched range."""
        return self.best in self.searched

    @property
    def flat(self) -> bool:
        """Whether the sequences cannot decide where the optimum is.

        Inside the searched range: the interval reaches an end of the range or spans more than
        `FLAT_SPAN`. At an end of the range: it spans more than `FLAT_EDGE_SPAN`.
        """
        low, high = self.interval.closed(self.searched)
        if self.at_edge:
            return high / low > FLAT_EDGE_SPAN
        return None in self.interval or high / low > FLAT_SPAN

    @property
    def middle(self) -> float:
        """The geometric middle of the interval: a value for a flat optimum that is not noise."""
        return self.interval.middle(self.searched)


def optimum_at(best: float, objective: PairedObjective) -> Optimum:
    """The optimum at a minimiser that was found, with its interval.

    Args:
        best: the minimiser, one of the evaluated values.
        objective: the objective, with what is known of it.

    Returns:
        The optimum.
    """
    known = objective.evaluated
    searched = (known[0], known[-1])
    limit = CLEAR_EDGE if best in searched else ONE_STDERR
    interval = interval_around(best, objective, limit)
    return Optimum(best, objective.mean(best), interval, searched)
