"""Checkpoints: a directory that holds a model, the task it belongs to, and how it came to be.

`checkpoint_files` says which files those are.
"""

from mtdinterp.checkpoints.load import Checkpoint, load_checkpoint
from mtdinterp.checkpoints.save import save_checkpoint

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]
