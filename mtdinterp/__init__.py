"""mtdinterp: which algorithm did a transformer learn?

The names below are imported on first use: `import mtdinterp` alone must stay instant, because the
command line's `--help` goes through it, and torch takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mtdinterp.checkpoint_files import CheckpointError
    from mtdinterp.checkpoints import (
        Checkpoint,
        import_checkpoint,
        load_checkpoint,
        save_checkpoint,
    )
    from mtdinterp.explanation import Explanation, explain
    from mtdinterp.tasks import MTDTask, Sample, Task
    from mtdinterp.tasks.lag_specific import LagSpecificMTDTask

__version__ = "0.1.0"

_HOME = {
    "LagSpecificMTDTask": "mtdinterp.tasks.lag_specific",
    "MTDTask": "mtdinterp.tasks",
    "Sample": "mtdinterp.tasks",
    "Task": "mtdinterp.tasks",
    "Explanation": "mtdinterp.explanation",
    "explain": "mtdinterp.explanation",
    "Checkpoint": "mtdinterp.checkpoints",
    "CheckpointError": "mtdinterp.checkpoint_files",
    "import_checkpoint": "mtdinterp.checkpoints",
    "load_checkpoint": "mtdinterp.checkpoints",
    "save_checkpoint": "mtdinterp.checkpoints",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Explanation",
    "LagSpecificMTDTask",
    "MTDTask",
    "Sample",
    "Task",
    "__version__",
    "explain",
    "import_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'mtdinterp' has no attribute {name!r}; it has {', '.join(_HOME)}"
        )
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
