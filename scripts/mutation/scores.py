"""The share of mutants that tests kill, with its interval."""

import math
from dataclasses import dataclass

NORMAL_QUANTILE = 1.959963984540054
"""97.5 % of a normal distribution lie below it."""


@dataclass(frozen=True)
class Score:
    """How many of a number of mutants were killed."""

    killed: int
    survived: int

    @property
    def share(self) -> float:
        """killed / (killed + survived), or NaN without mutants."""
        total = self.killed + self.survived
        return self.killed / total if total else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The Wilson 95 % interval of the share."""
        total = self.killed + self.survived
        if not total:
            return (0.0, 1.0)
        spread = NORMAL_QUANTILE**2 / total
        centre = (self.share + spread / 2) / (1 + spread)
        variance = self.share * (1 - self.share) * spread + spread**2 / 4
        half_width = math.sqrt(variance) / (1 + spread)
        return (max(0.0, centre - half_width), min(1.0, centre + half_width))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.share:.1%} [{low:.1%}, {high:.1%}]"
