"""The terms that a program is made of, in the order in which they are added.

Every term replaces a mean by what the weights compute: without its term, a quantity has its mean
over sequences. A term's constants are entries of the weights, or products of them; none is fitted
to the model's outputs.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """One part of a program."""

    name: str
    says: str
    """What it computes, in a few words."""
    refines: tuple[str, ...] = ()
    """The terms that it makes more exact, without which it means nothing."""


TERMS = (
    Term("output", "the tokens at the lags, mapped to the output and mixed with mean weights"),
    Term("step", "β·Γ̃ decides the weights: learned scores of the lags, averaged over positions"),
    Term("leak", "layer 1's attention off the lags, by token and position"),
    Term("averaging", "layer 2's weight of every position, by its token and offset"),
    Term("far", "what layer 1 gathers off the lags, instead of its mean", ("leak",)),
    Term("reads", "layer 3's reads of the average as a matrix, instead of β on its diagonal"),
    Term("skip", "layer 3's read of the last position's own lags"),
    Term("query", "layer 2's weights depend on the last position", ("averaging",)),
    Term("keys", "layer 2's weights depend on what layer 1 wrote", ("averaging",)),
    Term("content", "layer 3's scores depend on the tokens at its keys"),
    Term("gathered", "layer 3's scores depend on what layer 1 wrote at its keys"),
    Term("outside", "layer 3's attention off the lags"),
    Term("tokens", "layer 3's reads of token averages and of layer 2's offsets"),
    Term("rest", "everything else that the output reads"),
    Term(
        "earlier",
        "what layer 2 averages at layer 3's keys, instead of at the last position",
        ("averaging", "query", "keys", "rest"),
    ),
)
TERM = {term.name: term for term in TERMS}
NAMES = tuple(TERM)
BASE = ("output", "step")
"""Every program has these."""


def without(name: str, terms: Iterable[str]) -> tuple[str, ...]:
    """Some terms but one and those that refine it."""
    refining = {term.name for term in TERMS if name in term.refines}
    return tuple(entry for entry in terms if entry != name and entry not in refining)
