"""A hash of the source files that decide the numbers of a training run.

A cell is trained again if one of them changes. Probes and everything that only shows results are
not among them: `sweep run` measures a finished cell again if it is asked for other probes.
"""

import hashlib
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
DECIDING = (
    "algorithms",
    "architectures",
    "criteria.py",
    "estimators",
    "evidence.py",
    "metrics.py",
    "models",
    "native",
    "readings",
    "tasks",
    "training",
)
"""Modules and folders of the package that a training run computes with. The estimators are among
them because every evaluation compares the model with them."""
NOT_DECIDING = ("training/zoo.py",)
"""Files in these folders that do not decide any numbers: the zoo's list names runs, and a new name
must not make all others start again."""
SUFFIXES = (".py", ".cpp", ".h")


@cache
def sources_digest() -> str:
    """SHA-256 of the names and contents of all deciding files."""
    digest = hashlib.sha256()
    for path in deciding_files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def deciding_files() -> list[Path]:
    """The files, in a fixed order."""
    found: set[Path] = set()
    for name in DECIDING:
        path = PACKAGE / name
        candidates = path.rglob("*") if path.is_dir() else [path]
        found |= {entry for entry in candidates if entry.suffix in SUFFIXES}
    return sorted(found - {PACKAGE / name for name in NOT_DECIDING})
