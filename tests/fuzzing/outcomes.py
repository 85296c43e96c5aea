"""What can come of a case, and when the sentence of a refusal is good enough."""

from dataclasses import asdict, dataclass
from typing import Any

LOADED = "loaded"
"""The reader accepted the input, and what it returned could be used."""
REFUSED = "refused"
"""The reader refused the input with one sentence, in the class of errors that it documents."""
DEFECT = "defect"
"""Anything else: another exception, a crash, a hang, too much memory, or code that ran."""
LONGEST_SENTENCE = 800
"""Characters of a refusal: a sentence that quotes a whole file is not clear."""


@dataclass(frozen=True)
class Outcome:
    """What came of one case."""

    kind: str
    """`LOADED`, `REFUSED` or `DEFECT`."""
    detail: str
    seconds: float
    bytes: int
    """Memory that reading used in addition to what the process had."""

    def to_dict(self) -> dict[str, Any]:
        """The fields, as JSON can hold them."""
        return asdict(self)


def complaint(sentence: str) -> str:
    """What is wrong with the sentence of a refusal; empty if nothing is."""
    if not sentence.strip():
        return "it is empty"
    if len(sentence) > LONGEST_SENTENCE:
        return f"it has {len(sentence)} characters"
    if not sentence.isprintable():
        return "it contains line breaks or control characters"
    return ""
