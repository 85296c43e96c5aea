"""The history of a run as text: one evaluation per line, as JSON, each with a checksum.

The checksum of a line also covers the checksum of the line before it, so that a line that is
changed, removed or moved is noticed. Files of older versions have no checksums. Nothing heavy is
imported here.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

CHECK = "check"
"""The name of the checksum in a line."""
MOST_ENTRIES = 100_000
MOST_BYTES = 100 * 10**6
LONGEST_TEXT = 200
LARGEST_STEP = 10**15

NUMBERS = (
    "loss",
    "kl",
    "kl_stderr",
    "clipped",
    "ratio",
    "beta",
    "beta_r2",
    "gain",
    "gain_r2",
    "transition_kl",
    "learning_rate",
    "seconds",
)
"""Fields that are a number, or null if it could not be computed."""
TEXTS = ("branch",)
"""Fields that are a text, or null."""
FIELDS = ("step", *NUMBERS, *TEXTS)
"""The fields of an evaluation that this version writes."""


class HistoryError(ValueError):
    """A history that is damaged or not one of ours, with the reason."""


def format_history(entries: Iterable[Mapping[str, Any]]) -> str:
    """The lines of a history.

    Args:
        entries: one evaluation each.

    Returns:
        The text of history.jsonl.
    """
    lines = []
    check = ""
    for entry in entries:
        check = _chained(check, entry)
        lines.append(json.dumps({**entry, CHECK: check}) + "\n")
    return "".join(lines)


def parse_history(text: str) -> list[dict[str, Any]]:
    """The evaluations of a history, checked field by field.

    Args:
        text: what `format_history` writes, or an older version without checksums.

    Returns:
        One entry per line.

    Raises:
        HistoryError: with the line and the reason.
    """
    lines = [line for line in text.split("\n", MOST_ENTRIES + 1) if line.strip()]
    if len(lines) > MOST_ENTRIES:
        raise HistoryError(f"expected at most {MOST_ENTRIES} lines, got more")
    entries = []
    checks = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = parse_object(line)
            check = entry.pop(CHECK, None)
            check_entry(entry)
        except HistoryError as error:
            raise HistoryError(f"line {number}: {error}") from None
        entries.append(entry)
        checks.append(check)
    _compare(checks, entries)
    check_order(entries)
    return entries


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object with finite numbers.

    Args:
        text: the JSON.

    Returns:
        The object.

    Raises:
        HistoryError: if the text is anything else.
    """
    found = _parse(text)
    if not isinstance(found, dict):
        raise HistoryError(f"expected an object, got {_shown(found)}")
    return found


def parse_list(text: str) -> list[Any]:
    """A JSON list of at most `MOST_ENTRIES` entries, with finite numbers; entries are not checked.

    Raises:
        HistoryError: if the text is anything else.
    """
    found = _parse(text)
    if not isinstance(found, list) or len(found) > MOST_ENTRIES:
        raise HistoryError(f"expected a list of at most {MOST_ENTRIES} evaluations")
    return found


def check_entry(entry: Any, complete: bool = False) -> None:
    """Refuse an evaluation with a field of the wrong type.

    Args:
        entry: the evaluation.
        complete: whether every field that this version writes must be there.

    Raises:
        HistoryError: with the field and the reason.
    """
    if not isinstance(entry, dict):
        raise HistoryError(f"expected an object, got {_shown(entry)}")
    step = entry.get("step")
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= LARGEST_STEP:
        raise HistoryError(f"expected step to be a non-negative integer, got {_shown(step)}")
    for name, value in entry.items():
        _check_field(name, value)
    missing = [name for name in FIELDS if complete and name not in entry]
    if missing:
        raise HistoryError(f"{missing[0]} is missing")


def check_order(entries: Sequence[Mapping[str, Any]]) -> None:
    """Refuse evaluations whose steps do not increase."""
    for earlier, later in itertools.pairwise(entries):
        if later["step"] <= earlier["step"]:
            raise HistoryError(
                f"expected increasing steps, got {later['step']} after {earlier['step']}"
            )


def _parse(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"not valid JSON ({error})") from error


def _check_field(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None:
        return
    if name in NUMBERS and not is_number:
        raise HistoryError(f"expected a number for {name}, got {_shown(value)}")
    if name in TEXTS and not isinstance(value, str):
        raise HistoryError(f"expected a text for {name}, got {_shown(value)}")
    # A whole number that float cannot hold is as useless as infinity.
    if is_number and not (abs(value) <= 1e300 and math.isfinite(value)):
        raise HistoryError(f"expected a finite number for {name}, got {_shown(value)}")
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        raise HistoryError(f"expected at most {LONGEST_TEXT} characters for {name}")
    if not is_number and not isinstance(value, str):
        raise HistoryError(f"expected a number, a text or null for {name}, got {_shown(value)}")


def _compare(checks: Sequence[Any], entries: Sequence[Mapping[str, Any]]) -> None:
    """Compare the stored checksums with the computed ones; either all lines have one or none."""
    if not any(check is not None for check in checks):
        return
    wanted = ""
    for number, (check, entry) in enumerate(zip(checks, entries, strict=True), start=1):
        wanted = _chained(wanted, entry)
        if check != wanted:
            raise HistoryError(f"line {number}: damaged (its checksum is wrong)")


def _chained(check: str, entry: Mapping[str, Any]) -> str:
    """The checksum of an entry after the entry with the given checksum."""
    content = check + json.dumps(dict(entry))
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _refuse_constant(name: str) -> NoReturn:
    raise HistoryError(f"expected finite numbers, got {name}")


def _shown(value: Any) -> str:
    """A value for an error message, truncated if it is long."""
    return f"{value!r:.60}"
