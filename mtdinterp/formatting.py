"""Numbers as text, the same in every claim, table and summary.

A number is shown only as far as it is meaningful. A share below 0 means that nothing is explained,
and an R² below -1 that a fit is useless; how far below carries no information.
"""

import math
from collections.abc import Sequence

MISSING = "—"
"""Stands for a number that does not exist."""
MOST_DECIMALS = 5


def counted(count: int, noun: str) -> str:
    """A count with its noun, such as "1 sequence" and "2 sequences".

    Args:
        count: how many there are.
        noun: the singular, whose plural ends in "s".

    Returns:
        The text.
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """A text in one line that cannot control a terminal; it may quote names from anybody's file.

    Args:
        text: any text.

    Returns:
        The text with line breaks, control characters and lone surrogates escaped.
    """
    marks = [mark if mark.isprintable() else repr(mark)[1:-1] for mark in text]
    return "".join(marks)


def fixed(value: float, digits: int = 2) -> str:
    """A number with a fixed count of decimals, never "-0.00"; a dash if it is not finite.

    Args:
        value: the number.
        digits: decimals.

    Returns:
        The text.
    """
    if not math.isfinite(value):
        return MISSING
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(value, digits) + 0.0:.{digits}f}"


def with_error(value: float, stderr: float, digits: int = 2) -> str:
    """A number with its standard error, if that is finite.

    Args:
        value: the number.
        stderr: its standard error.
        digits: decimals of both.

    Returns:
        The text, such as "16.02 ± 0.06".
    """
    error = f" ± {fixed(stderr, digits)}" if math.isfinite(stderr) else ""
    return fixed(value, digits) + error


def measured(value: float, stderr: float = math.nan) -> str:
    """A number with as many digits as its standard error justifies.

    The last digit is the second of the standard error. There are at most four significant digits,
    three if there is no standard error, and at most five decimals.

    Args:
        value: the number.
        stderr: its standard error; NaN if there is none.

    Returns:
        The text, such as "3.14" for 3.14229 with a standard error of 0.48.
    """
    return fixed(value, measured_decimals(value, stderr))


def measured_decimals(value: float, stderr: float) -> int:
    """How many decimals `measured` shows."""
    has_error = math.isfinite(stderr) and stderr > 0
    most = MOST_DECIMALS
    if has_error:
        most = min(most, 1 - _magnitude(stderr))
    if math.isfinite(value) and value:
        most = min(most, (3 if has_error else 2) - _magnitude(value))
    return max(0, most)


def _magnitude(value: float) -> int:
    """The power of ten of the first digit."""
    return math.floor(math.log10(abs(value)))


def with_interval(value: float, low: float, high: float) -> str:
    """A number with the ends of its interval, with as many digits as its width justifies.

    Args:
        value: the number.
        low: the lower end.
        high: the upper end.

    Returns:
        The text, such as "16.13 (15.92 to 16.35)".
    """
    decimals = measured_decimals(value, (high - low) / 2)
    ends = f"{fixed(low, decimals)} to {fixed(high, decimals)}"
    return f"{fixed(value, decimals)} ({ends})"


def flat_text(symbol: str, low: float | None, high: float | None) -> str:
    """What is known of a constant whose optimum is flat.

    Args:
        symbol: the constant's symbol.
        low: the smallest value that fits as well as the best; None if there is no bound.
        high: the largest such value; None if there is no bound.

    Returns:
        The text, such as "flat: every β ≥ 2.1 fits equally well".
    """
    if low is not None and high is not None:
        which = f"every {symbol} from {_two_digits(low)} to {_two_digits(high)}"
    elif low is not None:
        which = f"every {symbol} ≥ {_two_digits(low)}"
    elif high is not None:
        which = f"every {symbol} ≤ {_two_digits(high)}"
    else:
        which = f"every {symbol}"
    return f"flat: {which} fits equally well"


def _two_digits(value: float) -> str:
    """A positive number to two significant digits, without an exponent unless it is extreme."""
    return f"{float(f'{value:.2g}'):g}"


def share_text(value: float, digits: int = 1) -> str:
    """A share as a percentage; "less than 0%" if it is negative, a dash if it is not finite.

    Args:
        value: the share; 1 is 100%.
        digits: decimals of the percentage.

    Returns:
        The text.
    """
    if not math.isfinite(value):
        return MISSING
    if round(value, digits + 2) < 0:
        return "less than 0%"
    return f"{abs(round(value, digits + 2)):.{digits}%}"


def explained_text(value: float, digits: int = 1) -> str:
    """A share as the object of "explains"; "nothing" if it is negative.

    Args:
        value: the share; 1 is 100%.
        digits: decimals of the percentage.

    Returns:
        The text, to be followed by "of".
    """
    is_negative = math.isfinite(value) and round(value, digits + 2) < 0
    return "nothing" if is_negative else share_text(value, digits)


def listed(names: Sequence[str]) -> str:
    """Names as a list in a sentence, such as "weights, attention and output"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def r2_text(value: float, digits: int = 2) -> str:
    """An R²; "below -1" if it is, because how far below means nothing.

    Args:
        value: the R².
        digits: decimals.

    Returns:
        The text; a dash if it is not finite.
    """
    return "below -1" if value < -1 else fixed(value, digits)
