"""What is on a disk after a loss of power: a model of files whose changes may not have been synced.

The system may write changes to the disk in any order until it is told to sync. Two extremes bound
what can happen. Either nothing survives that was not synced, or all names survive at once while the
contents of files do not: a file that was renamed before it was synced is then empty.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from faults.injection import Call


@dataclass
class File:
    """The bytes that programs see, and those that are on the disk."""

    current: bytes = b""
    synced: bytes = b""


@dataclass
class Directory:
    """The names that programs see, and those that are on the disk."""

    current: dict[str, "File | Directory"] = field(default_factory=dict)
    synced: dict[str, "File | Directory"] = field(default_factory=dict)


def tree_at(path: Path) -> Directory:
    """A directory as it is, with everything on the disk."""
    found = Directory()
    for entry in os.scandir(path):
        inner = Path(entry.path)
        if entry.is_dir():
            found.current[entry.name] = tree_at(inner)
        else:
            content = inner.read_bytes()
            found.current[entry.name] = File(content, content)
    found.synced = dict(found.current)
    return found


def after(root: Path, tree: Directory, record: Iterable[Call]) -> None:
    """Apply calls to a model of the directory `root`, in place."""

    def find(path: Path) -> File | Directory:
        found: File | Directory = tree
        for part in path.relative_to(root).parts:
            found = found.current[part]
        return found

    for call in record:
        parent = find(call.path.parent).current if call.path != root else {}
        name = call.path.name
        match call.name:
            case "create_file":
                parent[name] = File()
            case "make_directory":
                parent[name] = Directory()
            case "write":
                parent[name].current += call.content
            case "sync_file" | "sync_directory":
                found = find(call.path)
                found.synced = found.current if isinstance(found, File) else dict(found.current)
            case "unlink" | "remove_directory":
                del parent[name]
            case "rename":
                moved = parent.pop(name)
                find(call.target.parent).current[call.target.name] = moved
            case "exchange":
                other = find(call.target.parent).current
                parent[name], other[call.target.name] = other[call.target.name], parent[name]
            case _:
                raise AssertionError(f"unknown call {call.name}")


def write_remains(tree: Directory, path: Path, names_survive: bool) -> None:
    """Write what is left after a loss of power into a new directory.

    Args:
        tree: the model of the directory.
        path: the directory to make.
        names_survive: whether names that were not synced survive; contents never do.
    """
    path.mkdir()
    for name, entry in (tree.current if names_survive else tree.synced).items():
        if isinstance(entry, File):
            (path / name).write_bytes(entry.synced)
        else:
            write_remains(entry, path / name, names_survive)
