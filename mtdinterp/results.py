"""Results: what probes and interventions return, and how a result becomes plain values for JSON."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mtdinterp.claims import Claim
from mtdinterp.formatting import counted

if TYPE_CHECKING:
    from mtdinterp.pages.blocks import Block

__all__ = ["Result", "check_result", "origin_of", "to_plain"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Result:
    """What a probe or an intervention found, and on which sequences.

    Subclasses are frozen dataclasses with `kw_only=True`. They implement `summary()` and may
    override `claims()` and `blocks()`, which the report, the workbench and notebooks show.
    `n_sequences` and `seed` have no default: every result must be made with both.
    """

    n_sequences: int
    """How many sequences the numbers come from; required."""
    seed: int | None
    """The seed of those sequences, or None if they were given; required."""

    def summary(self) -> str:
        """The result in a few plain sentences."""
        raise NotImplementedError

    def claims(self) -> tuple[Claim, ...]:
        """What the result says about the model, in the order of the report."""
        return ()

    def blocks(self) -> "list[Block]":
        """The result as tables and pictures, in the order of the report."""
        return []

    def origin_note(self) -> str:
        """Which numbers come from fewer than `n_sequences` sequences; empty if there are none."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Everything in the result as plain values for JSON."""
        return to_plain(self)


def check_result(probe: str, result: Any) -> None:
    """Refuse what a probe must not return, in a sentence that names the probe.

    Args:
        probe: the probe's name.
        result: what it returned.
    """
    summary = getattr(result, "summary", None)
    if not callable(summary):
        raise TypeError(
            f"probe {probe!r}: expected a result with a method summary(), got "
            f"{type(result).__name__}"
        )
    if not isinstance(summary(), str):
        raise TypeError(f"probe {probe!r}: expected summary() to return a string")
    for claim in getattr(result, "claims", tuple)():
        if not isinstance(claim, Claim):
            raise TypeError(f"probe {probe!r}: expected claims() to return claims, got {claim!r}")


def origin_of(result: Any) -> str:
    """How many sequences a result comes from and their seed, and which numbers use fewer of them;
    empty if the result does not record them.
    """
    count = getattr(result, "n_sequences", None)
    if count is None:
        return ""
    seed = getattr(result, "seed", None)
    source = "given" if seed is None else f"seed {seed}"
    note = result.origin_note() if isinstance(result, Result) else ""
    return f"{counted(count, 'sequence')}, {source}" + (f"; {note}" if note else "")


def to_plain(value: Any) -> Any:
    """A result as plain values for JSON: dataclasses by field and property, NaN as null."""
    if isinstance(value, Tensor):
        value = value.tolist()
    named = _named_values(value)
    if named is not None:
        return {str(name): to_plain(entry) for name, entry in named.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    return _plain_scalar(value)


def _named_values(value: Any) -> Mapping[Any, Any] | None:
    """The entries of a mapping, named tuple or dataclass by name; None for anything else."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.repr]
        names += [name for name, entry in vars(type(value)).items() if isinstance(entry, property)]
        return {name: getattr(value, name) for name in names}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return value._asdict()
    if isinstance(value, Mapping):
        return value
    return None


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    return value
