"""What a case of the corpus is."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

TOLERANCE = 2e-5
"""Of float32 results, relative to the largest entry of the float64 reference."""
SMALL = 1e-2
"""References below this size count as this large: they are what is left after terms cancel."""


@dataclass(frozen=True)
class Case:
    """One call of a kernel's entry point."""

    name: str
    run: Callable[[], float]
    """Calls the entry point and returns the largest relative error."""
    refusal: str | None = None
    """What the ValueError must say; None if the input is valid."""

    def problem(self) -> str | None:
        """What went wrong, in words; None if nothing did."""
        try:
            error = self.run()
        except ValueError as raised:
            if self.refusal is None:
                return f"refused: {raised}"
            if not re.search(self.refusal, str(raised)):
                return f"refused in other words: {raised}"
            return None
        if self.refusal is not None:
            return "accepted"
        # Written so that NaN is wrong.
        return None if error <= TOLERANCE else f"off by {error:.1e}"


def worst_error(results: Iterable[Tensor], expected: Iterable[Tensor]) -> float:
    """The largest error of any tensor, relative to the largest entry of the one expected."""
    errors = [0.0]
    for got, wanted in zip(results, expected, strict=True):
        if got.shape != wanted.shape:
            return float("inf")
        if got.numel():
            size = wanted.abs().max().clamp_min(SMALL)
            errors.append(((got.double() - wanted).abs().max() / size).item())
    # The largest, but NaN if any is: max() alone may pass over it.
    return max(errors) if all(error == error for error in errors) else float("nan")
