"""Change a run and see what follows: patches, sweeps, transplants, steering, interchange, circuits."""

from mtdinterp.interventions.edits import Edit, FromRun, MeanOver, Noise
from mtdinterp.interventions.interchange import Interchange, interchange
from mtdinterp.interventions.patching import PatchResult, patch
from mtdinterp.interventions.steering import (
    DoseResponse,
    Transplant,
    dose_response,
    steer_weights,
    transplant_attention,
)
from mtdinterp.interventions.sweep import SweepResult, patch_sweep

__all__ = [
    "DoseResponse",
    "Edit",
    "FromRun",
    "Interchange",
    "MeanOver",
    "Noise",
    "PatchResult",
    "SweepResult",
    "Transplant",
    "dose_response",
    "interchange",
    "patch",
    "patch_sweep",
    "steer_weights",
    "transplant_attention",
]
