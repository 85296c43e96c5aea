"""The training runs of a cell: each attempt has its own, a copy of the one that came furthest."""

import contextlib
from pathlib import Path

from mtdinterp.checkpoint_files import (
    CONFIG,
    HISTORY,
    TRAINING,
    WEIGHTS,
    CheckpointError,
    read_together,
    snapshot_file,
    snapshot_steps,
)
from mtdinterp.storage import publish_new, remove_tree, remove_unfinished, staged, write_file
from mtdinterp.sweep import attempts
from mtdinterp.training.state import read_state

RUN_FILES = (CONFIG, WEIGHTS, HISTORY, TRAINING)


def newest_run(directory: Path) -> tuple[Path, int] | None:
    """The run of an earlier attempt that has come furthest and can be resumed, with its step."""
    best: tuple[Path, int] | None = None
    for record in attempts.records(directory):
        path = record.path / attempts.RUN
        with contextlib.suppress(CheckpointError):
            step = read_state(path)["step"]
            if isinstance(step, int) and (best is None or step >= best[1]):
                best = (path, step)
    return best


def copy_run(source: Path, target: Path) -> None:
    """Copy a run that another process may still write to, in one step."""
    contents = read_together(source, RUN_FILES)
    with staged(target) as staging:
        for name, content in contents.items():
            write_file(staging / name, content)
        # After the state: every snapshot before the step from which the copy resumes is there now.
        for step in snapshot_steps(source):
            name = snapshot_file(step)
            for content in read_together(source, (name,)).values():
                write_file(staging / name, content)
        publish_new(staging, target)


def remove_runs(directory: Path, but: Path | None = None) -> None:
    """Remove training states that nobody needs any more, and unfinished files.

    Args:
        directory: the cell's directory.
        but: the attempt whose run stays.
    """
    for record in attempts.records(directory):
        if record.path == but:
            continue
        with contextlib.suppress(OSError):
            remove_tree(record.path / attempts.RUN)
            remove_unfinished(record.path)
