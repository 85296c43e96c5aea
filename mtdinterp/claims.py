"""What a claim is: a sentence that holds, fails, or cannot be decided, with its evidence.

Probes and interventions turn their own numbers into claims, with thresholds from `criteria`. The
report's `judge` is the only place that weighs claims against each other.
"""

from dataclasses import dataclass
from enum import Enum

__all__ = ["Claim", "Status", "decide"]


class Status(Enum):
    """Whether a claim holds."""

    HOLDS = "holds"
    FAILS = "fails"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One row of the table of claims."""

    claim: str
    """The claim as a statement, such as "Layer 1 weighs lags by their likelihood"."""
    status: Status
    evidence: str
    """The quantity that was measured."""
    number: str
    """Its value, with an uncertainty if it has one."""
    threshold: str
    """The threshold that decides, such as "R² ≥ 0.5"."""
    control: str
    """The value of the same measurement when there is nothing to find."""
    n_sequences: int
    seed: int | None
    """The seed of the sequences; None if they were given."""
    reason: str = ""
    """Why the claim cannot be decided; empty otherwise."""

    @property
    def passed(self) -> bool | None:
        """True, False, or None if the claim cannot be decided."""
        return {Status.HOLDS: True, Status.FAILS: False, Status.UNDECIDABLE: None}[self.status]

    def sentence(self) -> str:
        """The claim with its status and number, as a line of its own."""
        if self.status is Status.UNDECIDABLE:
            return f"Undecidable: {self.claim} ({self.reason})."
        verb = "Holds" if self.status is Status.HOLDS else "Does not hold"
        return f"{verb}: {self.statement()}"

    def statement(self) -> str:
        """The claim with its number, for a list that already says whether its claims hold."""
        return (
            f"{self.claim}. {self.evidence}: {self.number} (needed: {self.threshold}; control: "
            f"{self.control})."
        )


def decide(condition: bool) -> Status:
    """HOLDS if the condition is true, FAILS if not."""
    return Status.HOLDS if condition else Status.FAILS
