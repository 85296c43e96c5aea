"""Checked reading of JSON values: each parser returns the value or says what it expected.

A parser is a function of a name, for error messages, and of a JSON value. `integer`, `number` and
`sequence_of` make parsers; `Fields` applies them to the fields of an object.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mtdinterp.app.errors import StateError
from mtdinterp.checks import check_option

LARGEST = 1e6
"""Larger numbers are typing errors, and would only lead to infinities."""
LONGEST_NAME = 200
LONGEST_SHOWN = 60
"""The number of characters of a wrong value that an error message shows."""

Range = tuple[int, int]
"""The first index, and the one after the last, as in a slice."""
Item = TypeVar("Item")
Parser = Callable[[str, Any], Item]


class Fields:
    """The fields of one JSON object, each parsed on request."""

    def __init__(
        self, name: str, given: Any, known: Iterable[str], needed: Sequence[str], prefix: str = ""
    ) -> None:
        """Check which fields an object has.

        Args:
            name: the name of the object in error messages.
            given: the JSON value that should be an object.
            known: all fields that it may have.
            needed: the fields that it must have, with values other than null.
            prefix: precedes the names of fields in error messages.
        """
        if not isinstance(given, Mapping):
            raise StateError(f"{name}: expected an object, got {_shown(given)}")
        for field in given:
            option(f"{name}'s field", field, list(known))
        for field in needed:
            if given.get(field) is None:
                raise StateError(f"{name}: {field} is missing")
        self._given = given
        self._prefix = prefix

    def get(self, field: str, parse: Parser[Item], default: Any = None) -> Item:
        """A field that is needed or has a default.

        Args:
            field: the name of the field.
            parse: the parser of its value.
            default: the value if the field is missing or null; it is parsed too.

        Returns:
            The parsed value.
        """
        value = self._given.get(field)
        return parse(self._prefix + field, default if value is None else value)

    def optional(self, field: str, parse: Parser[Item]) -> Item | None:
        """A field that may be missing or null, which both mean None."""
        value = self._given.get(field)
        return None if value is None else parse(self._prefix + field, value)

    def has(self, field: str) -> bool:
        """Whether a field is present and not null."""
        return self._given.get(field) is not None


def anything(name: str, value: Any) -> Any:
    """A JSON value, to be parsed later."""
    return value


def text(name: str, value: Any) -> str:
    """A non-empty string of moderate length."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME:
        raise StateError(f"{name}: expected a name, got {_shown(value)}")
    return value


def boolean(name: str, value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise StateError(f"{name}: expected true or false, got {_shown(value)}")
    return value


def option(name: str, value: Any, known: Sequence[str] | Mapping[str, Any]) -> str:
    """One of the known names.

    Args:
        name: the name of the value in error messages.
        value: the JSON value.
        known: the names to choose from; an error lists them.

    Returns:
        The name.
    """
    given = text(name, value)
    try:
        return check_option(name, given, known)
    except ValueError as error:
        raise StateError(str(error)) from None


def option_of(known: Sequence[str] | Mapping[str, Any]) -> Parser[str]:
    """A parser for one of the known names."""
    return lambda name, value: option(name, value, known)


def integer(least: int, most: int) -> Parser[int]:
    """A parser for an integer in least..most."""

    def parse(name: str, value: Any) -> int:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not least <= value <= most:
            raise StateError(f"{name}: expected an integer in {least}..{most}, got {_shown(value)}")
        return int(value)

    return parse


def number(least: float = -LARGEST) -> Parser[float]:
    """A parser for a number from `least` to `LARGEST`."""

    def parse(name: str, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= LARGEST:
            raise StateError(
                f"{name}: expected a number in {least:g}..{LARGEST:g}, got {_shown(value)}"
            )
        return float(value)

    return parse


def sequence_of(parse: Parser[Item], most: int) -> Parser[tuple[Item, ...]]:
    """A parser for a list of at most `most` entries."""

    def parse_all(name: str, value: Any) -> tuple[Item, ...]:
        if not isinstance(value, list | tuple):
            raise StateError(
                f"{name}: expected a list of at most {most} entries, got {_shown(value)}"
            )
        if len(value) > most:
            raise StateError(f"{name}: expected a list of at most {most} entries, got {len(value)}")
        return tuple(parse(f"{name}[{index}]", entry) for index, entry in enumerate(value))

    return parse_all


def numbers(most: int) -> Parser[tuple[float, ...]]:
    """A parser for a list of 1 to `most` numbers."""

    def parse(name: str, value: Any) -> tuple[float, ...]:
        found = sequence_of(number(), most)(name, value)
        if not found:
            raise StateError(f"{name}: expected at least one number")
        return found

    return parse


def weights(most: int) -> Parser[tuple[float, ...]]:
    """A parser for 1 to `most` non-negative numbers that sum to 1."""

    def parse(name: str, value: Any) -> tuple[float, ...]:
        found = numbers(most)(name, value)
        if min(found) < 0 or not math.isclose(sum(found), 1, abs_tol=1e-6):
            raise StateError(
                f"{name}: expected non-negative weights that sum to 1, got a sum of "
                f"{sum(found):.6g} and a smallest entry of {min(found):.6g}"
            )
        return found

    return parse


def index_range(length: int) -> Parser[Range]:
    """A parser for a non-empty range [start, stop] of indices below `length`."""

    def parse(name: str, value: Any) -> Range:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise StateError(f"{name}: expected [start, stop], got {_shown(value)}")
        start = integer(0, length)(name, value[0])
        stop = integer(0, length)(name, value[1])
        if start >= stop:
            raise StateError(
                f"{name}: expected [start, stop] with start < stop, got [{start}, {stop}]"
            )
        return start, stop

    return parse


def _shown(value: Any) -> str:
    """A value for an error message, truncated if it is long."""
    shown = repr(value)
    if len(shown) <= LONGEST_SHOWN:
        return shown
    return shown[: LONGEST_SHOWN - 3] + "…"
