"""Checkpoints: directories that hold a model, its task, and how it was trained or constructed.

`mtdinterp.checkpoint_files` describes the files.
"""

from mtdinterp.checkpoints.importing import UncheckedOrientation, import_checkpoint
from mtdinterp.checkpoints.load import Checkpoint, load_checkpoint
from mtdinterp.checkpoints.save import save_checkpoint
from mtdinterp.checkpoints.snapshots import Snapshot

__all__ = [
    "Checkpoint",
    "Snapshot",
    "UncheckedOrientation",
    "import_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
]
