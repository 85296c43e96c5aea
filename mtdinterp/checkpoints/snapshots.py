"""Snapshots: the weights of a run at some of its steps, in the directory of its checkpoint.

Each is a file like model.safetensors, with the same checksums. Its evaluation holds only the step.
A snapshot is read when it is used, so a damaged one does not affect the checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtdinterp import registry
from mtdinterp.checkpoint_files import (
    CONFIG,
    CheckpointError,
    parse_config,
    read_together,
    snapshot_file,
    snapshot_steps,
)
from mtdinterp.checkpoints.digests import RUN_PARTS, config_digest
from mtdinterp.checkpoints.stored_weights import fill, format_weights
from mtdinterp.models import LensTransformer
from mtdinterp.models.config import ModelConfig
from mtdinterp.storage import write_file


@dataclass(frozen=True)
class Snapshot:
    """The weights of a run after some step; nothing has been read yet."""

    step: int
    """Steps that the run had taken."""
    source: Path
    """The directory of the checkpoint."""
    model_config: ModelConfig = field(repr=False)
    config: Mapping[str, Any] = field(repr=False, compare=False)
    """The contents of the checkpoint's config.json."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.source / snapshot_file(self.step)

    def load(self) -> LensTransformer:
        """The model at this step, a new one in evaluation mode.

        Raises:
            CheckpointError: if the file is missing, damaged or belongs to another run.
        """
        name = snapshot_file(self.step)
        contents = read_together(self.source, (CONFIG, name))
        config = parse_config(self.source, contents.get(CONFIG))
        if config_digest(config, RUN_PARTS) != config_digest(self.config, RUN_PARTS):
            raise CheckpointError(
                f"{self.path}: belongs to another run, which has replaced the checkpoint since it "
                "was loaded"
            )
        model = registry.ARCHITECTURES[self.model_config.architecture].build(self.model_config)
        evaluation = fill(model, self.path, contents.get(name), self.config)
        if evaluation is None or evaluation["step"] != self.step:
            found = "none" if evaluation is None else f"that of step {evaluation['step']}"
            raise CheckpointError(
                f"{self.path}: expected a snapshot of step {self.step}, got {found}"
            )
        return model.eval()


def find_snapshots(
    source: Path, model_config: ModelConfig, config: Mapping[str, Any]
) -> dict[int, Snapshot]:
    """The snapshots of a checkpoint, by step and in order; none of them is read.

    Args:
        source: the checkpoint's directory.
        model_config: the configuration of its model.
        config: the contents of its config.json.

    Returns:
        The snapshots; empty if there are none.
    """
    steps = snapshot_steps(source)
    return {step: Snapshot(step, source, model_config, config) for step in steps}


def write_snapshot(
    directory: Path, step: int, model: LensTransformer, config: Mapping[str, Any]
) -> None:
    """Write the weights of a run after some step.

    Args:
        directory: the run's directory.
        step: steps that the run has taken.
        model: the model after these steps.
        config: the contents of the directory's config.json.
    """
    # Not the whole evaluation: it contains times, and a repeated step shall give the same contents.
    write_file(directory / snapshot_file(step), format_weights(model, config, {"step": step}))
