"""Past failures: one JSON line each, replayed first in every run.

A line has what went wrong, the case, and the kind of outcome that is expected now; the file is
named after the reader. A line that takes seconds to build is marked as slow.
"""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "corpus"


def past_failures() -> list[dict[str, Any]]:
    """All lines of the corpus, in the order of the files."""
    found = []
    for path in sorted(FOLDER.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            found.append({"reader": path.stem, **json.loads(line)})
    return found
