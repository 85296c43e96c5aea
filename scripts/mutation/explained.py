"""Survivors that no test can kill, with the reason: the entries of explained.txt.

An entry is a path, the line before, the line after and a sentence, with a blank line between
entries:

    mtdinterp/evidence.py
    - if len(impossible):
    + if not (len(impossible)):
    = Why no test can tell the two apart.

If a file has the same change at several places, the entry is about the first; for another one the
path is followed by its number, as in `mtdinterp/evidence.py, occurrence 2`.
"""

from pathlib import Path

Change = tuple[str, str, str, int]
"""A path, the stripped line before, the stripped line after, and which occurrence of the two."""

_PREFIXES = ("- ", "+ ", "= ")


def read_explained(path: Path) -> dict[Change, str]:
    """Read the reasons.

    Args:
        path: a file of entries; lines that start with # are comments.

    Returns:
        One sentence per change.

    Raises:
        ValueError: if an entry is incomplete.
    """
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    reasons: dict[Change, str] = {}
    for entry in "\n".join(lines).split("\n\n"):
        parts = entry.strip().split("\n")
        if parts == [""]:
            continue
        marks = tuple(part[:2] for part in parts[1:])
        if marks != _PREFIXES:
            raise ValueError(
                f"{path.name}: expected entries of four lines (path, '- ' before, '+ ' after, "
                f"'= ' reason), got {entry!r}"
            )
        place, before, after, reason = parts
        file, _, occurrence = place.partition(", occurrence ")
        change = (file, before[2:].strip(), after[2:].strip(), int(occurrence or 1))
        if change in reasons:
            raise ValueError(f"{path.name}: the same change is explained twice: {entry!r}")
        reasons[change] = reason[2:].strip()
    return reasons
